//! The first rows of each key: `ROW_NUMBER() OVER (PARTITION BY k ORDER BY x) <= n`, `RANK()` and `DENSE_RANK()`.
//!
//! Such a query is an aggregation whose only aggregate keeps the first rows of its group ([`top`]). The first rows of a
//! union are among the first rows of its parts, so they are gathered in parts like any other aggregate, and everything
//! that holds for groups holds for them: shards, windows, expiry, stored state. What the sink is told is the difference
//! between the rows before and after ([`changes`]).

pub(super) mod changes;
pub(super) mod closed;
pub(super) mod top;
pub(super) mod window;

use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::{BinaryExpr, Expr, LogicalPlan, Operator, SortExpr, Window};

use super::error::SqlError;
use super::shape::{self, Shape};
use crate::catalog::SinkTable;

/// The functions by which rows are numbered.
pub(super) const FUNCTIONS: [&str; 3] = ["row_number", "rank", "dense_rank"];

/// Why there cannot be two of them.
pub(super) const SEVERAL: &str = "several window functions in one query are not supported: number the rows once, by \
    ROW_NUMBER(), RANK() or DENSE_RANK()";

/// The most rows that are kept for one key, ties apart.
const MOST_ROWS: usize = 10_000;

/// How rows of a key are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numbering {
    /// 1, 2, 3, 4.
    RowNumber,
    /// 1, 2, 2, 4.
    Rank,
    /// 1, 2, 2, 3.
    DenseRank,
}

impl Numbering {
    /// The function's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::RowNumber => "row_number",
            Self::Rank => "rank",
            Self::DenseRank => "dense_rank",
        }
    }
}

/// The ranking of a query, over the table's columns.
#[derive(Clone, Debug)]
pub(super) struct Ranked {
    pub(super) numbering: Numbering,
    /// By what the rows of a key are ordered.
    pub(super) order: Vec<SortExpr>,
    /// The columns of the rows.
    pub(super) rows: Vec<Expr>,
    /// What the plan calls them.
    pub(super) names: Vec<Column>,
    /// PARTITION BY expressions that are computed from columns, over the columns that stand for the rows'.
    pub(super) computed: Vec<(usize, Expr)>,
}

/// The one window function of a node, apart from that of its groups' window.
pub(super) fn call(node: &Window) -> Result<(&WindowFunction, Numbering), SqlError> {
    let written: Vec<_> = node.window_expr.iter().filter(|expr| !window::is(expr)).collect();
    let [expr] = written.as_slice() else {
        return Err(SqlError::new(SEVERAL));
    };
    let Expr::WindowFunction(call) = strip(expr) else {
        return Err(SqlError::new(format!("{expr} is no window function that is supported")));
    };
    let numbering = match call.fun.name().to_ascii_lowercase().as_str() {
        "row_number" => Numbering::RowNumber,
        "rank" => Numbering::Rank,
        "dense_rank" => Numbering::DenseRank,
        other => {
            return Err(SqlError::new(format!(
                "the window function {other}(...) is not supported: its result over a stream would never be final"
            )));
        }
    };
    Ok((call, numbering))
}

fn strip(expr: &Expr) -> &Expr {
    match expr {
        Expr::Alias(alias) => strip(&alias.expr),
        other => other,
    }
}

impl Ranked {
    /// Which of the columns those are that are kept, in the order in which they are; `None`: one that was made on the way.
    pub(super) fn kept(&self, input: &LogicalPlan) -> Vec<Option<usize>> {
        let place = |column: Column| self.names.iter().position(|name| *name == column);
        input.schema().columns().into_iter().map(place).collect()
    }
}

/// How many rows of each key can pass the conditions. Refuses conditions that let all pass.
pub(super) fn limit(shape: &Shape, numbering: Numbering) -> Result<usize, SqlError> {
    let bound = shape.having.iter().filter_map(bound).min();
    let name = numbering.name().to_uppercase();
    match bound {
        Some(rows) if rows <= MOST_ROWS => Ok(rows),
        Some(rows) => Err(SqlError::new(format!(
            "{name}() up to {rows} would keep so many rows of each key; at most {MOST_ROWS} are supported"
        ))),
        None => Err(SqlError::new(format!(
            "{name}() over a stream needs a bound, since all rows would have to be kept and numbered anew with each \
             record: put it around the query, as in SELECT ... FROM (SELECT *, {name}() OVER (PARTITION BY k ORDER BY ts) \
             AS rn FROM t) WHERE rn <= 3, or write QUALIFY {name}() OVER (...) <= 3"
        ))),
    }
}

/// The highest rank that satisfies a condition, if it bounds it.
fn bound(condition: &Expr) -> Option<usize> {
    match condition {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            let (number, op) = match (is_rank(left), is_rank(right)) {
                (true, false) => (whole(right)?, *op),
                (false, true) => (whole(left)?, op.swap()?),
                _ => return None,
            };
            match op {
                Operator::Eq | Operator::LtEq => usize::try_from(number.max(0)).ok(),
                Operator::Lt => usize::try_from((number - 1).max(0)).ok(),
                _ => None,
            }
        }
        Expr::Between(between) if !between.negated && is_rank(&between.expr) => {
            usize::try_from(whole(&between.high)?.max(0)).ok()
        }
        Expr::InList(list) if !list.negated && is_rank(&list.expr) => {
            let numbers: Option<Vec<_>> = list.list.iter().map(whole).collect();
            usize::try_from(numbers?.into_iter().max()?.max(0)).ok()
        }
        _ => None,
    }
}

fn is_rank(expr: &Expr) -> bool {
    match expr {
        Expr::Cast(cast) => is_rank(&cast.expr),
        other => shape::is_rank(other),
    }
}

fn whole(expr: &Expr) -> Option<i128> {
    match expr {
        Expr::Cast(cast) => whole(&cast.expr),
        Expr::Literal(value, _) => match value {
            ScalarValue::Int64(value) => value.map(i128::from),
            ScalarValue::UInt64(value) => value.map(i128::from),
            ScalarValue::Int32(value) => value.map(i128::from),
            ScalarValue::Decimal128(Some(value), _, 0) => Some(*value),
            _ => None,
        },
        _ => None,
    }
}

/// The columns of the primary key that tell rows of one group apart.
enum Apart {
    /// There is no primary key.
    NoKey,
    /// None: each group has one row.
    Nothing,
    /// Their rank alone.
    Rank,
    /// A column of the rows.
    Row,
}

fn apart(shape: &Shape, sink: &SinkTable) -> Apart {
    if sink.primary_key.is_empty() {
        return Apart::NoKey;
    }
    let mut apart = Apart::Nothing;
    for (_, expr) in shape.output.iter().filter(|(name, _)| sink.primary_key.contains(name)) {
        for column in expr.column_refs() {
            let column = Expr::Column(column.clone());
            if shape::row(&column).is_some() {
                return Apart::Row;
            }
            if shape::is_rank(&column) {
                apart = Apart::Rank;
            }
        }
    }
    apart
}

/// Refuses a primary key under which rows of one key would overwrite each other.
pub(super) fn check_key(ranked: &Ranked, shape: &Shape, sink: &SinkTable) -> Result<(), SqlError> {
    let limit = limit(shape, ranked.numbering)?;
    let name = ranked.numbering.name().to_uppercase();
    let refused = match (apart(shape, sink), ranked.numbering) {
        (Apart::Nothing, Numbering::RowNumber) if limit > 1 => {
            Some(format!("up to {limit} rows of a key, which all have the same primary key"))
        }
        (Apart::Nothing | Apart::Rank, Numbering::Rank | Numbering::DenseRank) => {
            Some("rows of one rank, which all have the same primary key".to_owned())
        }
        _ => None,
    };
    match refused {
        Some(what) => Err(SqlError::new(format!(
            "{name}() lets through {what} ({}) of {}, so they would overwrite each other: add the number of a row, or a \
             column that tells rows apart, to PRIMARY KEY",
            sink.primary_key.join(", "),
            sink.name
        ))),
        None => Ok(()),
    }
}

/// Why the rows of a ranking cannot be forgotten after some time, if they cannot.
pub(super) fn no_ttl(ranked: &Ranked, shape: &Shape, sink: &SinkTable) -> Option<String> {
    let one = ranked.numbering == Numbering::RowNumber && limit(shape, ranked.numbering).is_ok_and(|limit| limit == 1);
    let replaced = matches!(apart(shape, sink), Apart::NoKey | Apart::Nothing);
    if !one || !replaced {
        return Some(
            "rows of a key that was forgotten would stay in the sink beside those of its next life; it can be with \
             ROW_NUMBER() ... = 1 and a primary key of the PARTITION BY columns alone, where a row replaces the other"
                .into(),
        );
    }
    let others = shape.having.iter().any(|condition| {
        bound(condition).is_none()
            && condition.column_refs().iter().any(|column| shape::group(&Expr::Column((*column).clone())).is_none())
    });
    others.then(|| {
        "a row that no longer satisfies a condition beside ROW_NUMBER() ... = 1 could not be taken back once its key was \
         forgotten; put the condition into the inner query"
            .into()
    })
}

/// Refuses what a numbering cannot have.
pub(super) fn check(call: &WindowFunction, numbering: Numbering, input: &LogicalPlan) -> Result<(), SqlError> {
    let name = numbering.name().to_uppercase();
    let params = &call.params;
    if params.order_by.is_empty() {
        return Err(SqlError::new(format!(
            "{name}() OVER (...) needs ORDER BY: records of several partitions have no order of their own, so which comes \
             first would depend on timing"
        )));
    }
    if params.filter.is_some() || params.null_treatment.is_some() || params.distinct || !params.args.is_empty() {
        return Err(SqlError::new(format!("{name}() takes no arguments, FILTER or DISTINCT")));
    }
    for field in input.schema().fields() {
        let sort = arrow::row::SortField::new(field.data_type().clone());
        if !arrow::row::RowConverter::supports_fields(&[sort]) {
            return Err(SqlError::new(format!(
                "column {} is {}, by which rows cannot be told apart: leave it out of the query that has {name}()",
                field.name(),
                field.data_type()
            )));
        }
    }
    Ok(())
}
