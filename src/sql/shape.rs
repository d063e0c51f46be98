//! What a query means, with all views, subqueries and aliases resolved: which rows it takes, how it groups them, what it
//! computes, and what it writes.
//!
//! The shape is read off the analysed plan, before any optimisation, so that it does not depend on how DataFusion
//! rewrites a query. The checks of the key, the description and the fingerprint are made from it.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, TableReference};
use datafusion::logical_expr::{
    Aggregate, Distinct, Expr, ExprSchemable, LogicalPlan, SortExpr, Union, Volatility, WriteOp,
};

use super::depth;
use super::error::SqlError;
use super::ranking::closed::{self, RankedGroups};
use super::ranking::{self, Ranked};
use super::second;
use super::windows::Window;

/// A query without its names.
#[derive(Clone, Debug, Default)]
pub(super) struct Shape {
    /// What is read: one table, or the parts of a UNION ALL.
    pub(super) arms: Vec<Arm>,
    /// The names of the columns of the union, if there is one.
    union: Vec<String>,
    /// What comes before it, if it aggregates the groups of windows that an earlier grouping has closed.
    pub(super) first: Option<Box<Shape>>,
    /// The conditions that rows must satisfy, over the columns of the table, or of the union.
    pub(super) filters: Vec<Expr>,
    /// How rows are grouped; `None`: not at all.
    pub(super) grouping: Option<Grouping>,
    /// How the groups of a window are ranked when it is closed.
    pub(super) ranked_groups: Option<RankedGroups>,
    /// The conditions that groups must satisfy, over [`group`] and [`aggregate`] columns.
    pub(super) having: Vec<Expr>,
    /// What is written into each column: over the table's columns, or over [`group`] and [`aggregate`] columns.
    pub(super) output: Vec<(String, Expr)>,
}

/// One part of a UNION ALL, or the only one.
#[derive(Clone, Debug)]
pub(super) struct Arm {
    /// The table that is read.
    pub(super) table: String,
    /// The conditions that its rows must satisfy before they are put together with others.
    pub(super) filters: Vec<Expr>,
    /// What each column of the union is, over the table's; `None`: there is no union, and the columns are the table's.
    pub(super) columns: Option<Vec<Expr>>,
}

impl Arm {
    /// Whether an expression of the query is this column of the arm's table, as it is.
    pub(super) fn is_column(&self, expr: &Expr, name: &str) -> bool {
        matches!(self.meant(expr), Some(Expr::Column(column)) if column.name == name)
    }

    /// What a column of the query is in the arm's table.
    pub(super) fn meant<'a>(&'a self, expr: &'a Expr) -> Option<&'a Expr> {
        match &self.columns {
            None => Some(expr),
            Some(columns) => numbered(expr, UNION).and_then(|number| columns.get(number)),
        }
    }

    /// The arm as a part of a larger union, of whose part these are the conditions and columns.
    fn within(self, filters: &[Expr], columns: &[Expr]) -> Result<Self, SqlError> {
        let own = self.columns.unwrap_or_default();
        let mut parts = 0;
        let mut meant = |expr: &Expr| -> Result<Expr, SqlError> {
            let replaced = expr.clone().transform_up(|expr| {
                let Some(meant) = numbered(&expr, UNION).and_then(|number| own.get(number)) else {
                    return Ok(Transformed::no(expr));
                };
                parts += depth::size(meant)?;
                depth::check_size(parts)?;
                Ok(Transformed::yes(meant.clone()))
            })?;
            depth::check_expr(&replaced.data)?;
            Ok(replaced.data)
        };
        let mut all = self.filters;
        for filter in filters {
            all.push(meant(filter)?);
        }
        let columns = columns.iter().map(meant).collect::<Result<_, SqlError>>()?;
        Ok(Self { table: self.table, filters: all, columns: Some(columns) })
    }
}

/// How rows are grouped, over the columns of the table or of the union.
#[derive(Clone, Debug)]
pub(super) struct Grouping {
    pub(super) groups: Vec<Expr>,
    pub(super) group_types: Vec<DataType>,
    pub(super) aggregates: Vec<Expr>,
    /// The group that is a window: its number, and the expression of its time.
    pub(super) window: Option<(usize, Window, Expr)>,
    /// If the first rows of each group are taken instead of aggregates.
    pub(super) ranking: Option<Ranked>,
    /// SELECT DISTINCT: a group is written once, when it comes.
    pub(super) distinct: bool,
}

const UNION: &str = "union";
const GROUP: &str = "group";
const AGGREGATE: &str = "aggregate";
const ROW: &str = "row";
const FIRST_GROUP: &str = "group before";
const FIRST_AGGREGATE: &str = "aggregate before";
const RANK: &str = "rank";

/// If an expression is one of the columns that stand for group expressions: which.
pub(super) fn group(expr: &Expr) -> Option<usize> {
    numbered(expr, GROUP)
}

/// If an expression is one of the columns that stand for aggregates: which.
pub(super) fn aggregate(expr: &Expr) -> Option<usize> {
    numbered(expr, AGGREGATE)
}

/// If an expression is one of the columns that stand for groups of the first of two groupings: which.
pub(super) fn first_group(expr: &Expr) -> Option<usize> {
    numbered(expr, FIRST_GROUP)
}

/// A column that stands for a group or an aggregate, as a second grouping sees it.
pub(super) fn as_of_first(expr: &Expr) -> Option<Expr> {
    let aggregated = || Some(stand_in(FIRST_AGGREGATE, aggregate(expr)?));
    group(expr).map(|number| stand_in(FIRST_GROUP, number)).or_else(aggregated)
}

/// If an expression is one of the columns that stand for those of ranked rows: which.
pub(super) fn row(expr: &Expr) -> Option<usize> {
    numbered(expr, ROW)
}

/// Whether an expression is the column that stands for the rank of a row.
pub(super) fn is_rank(expr: &Expr) -> bool {
    numbered(expr, RANK).is_some()
}

fn numbered(expr: &Expr, kind: &str) -> Option<usize> {
    match expr {
        Expr::Column(Column { relation: Some(relation), name, .. }) if relation.schema() == Some(kind) => {
            name.parse().ok()
        }
        _ => None,
    }
}

fn stand_in(kind: &str, number: usize) -> Expr {
    Expr::Column(Column::new(Some(TableReference::partial(kind, "")), number.to_string()))
}

impl Shape {
    /// Reads the shape off an analysed plan; refuses every plan that is not one table, or several that are put together,
    /// filtered and projected, at most once aggregated, filtered and projected again.
    pub(super) fn of(plan: &LogicalPlan) -> Result<Self, SqlError> {
        let mut shape = Self::default();
        let output = shape.resolve(plan)?;
        let names = plan.schema().fields().iter().map(|field| field.name().clone());
        shape.output = names.zip(output).collect();
        Ok(shape)
    }

    /// The expressions that a node's columns stand for.
    fn resolve(&mut self, plan: &LogicalPlan) -> Result<Vec<Expr>, SqlError> {
        match plan {
            LogicalPlan::TableScan(scan) => {
                let table = scan.table_name.table().to_owned();
                self.arms = vec![Arm { table, filters: Vec::new(), columns: None }];
                let fields = scan.projected_schema.fields().iter();
                Ok(fields.map(|field| Expr::Column(Column::from_name(field.name()))).collect())
            }
            LogicalPlan::SubqueryAlias(alias) => self.resolve(&alias.input),
            LogicalPlan::Projection(projection) => {
                let below = self.resolve(&projection.input)?;
                let inlined = projection.expr.iter().map(|expr| inline(expr, &projection.input, &below));
                inlined.map(|expr| self.regroup(expr?)).collect()
            }
            LogicalPlan::Filter(filter) => {
                let below = self.resolve(&filter.input)?;
                let condition = self.regroup(inline(&filter.predicate, &filter.input, &below)?)?;
                let conditions = datafusion::logical_expr::utils::split_conjunction_owned(condition);
                match self.grouping {
                    None => self.filters.extend(conditions),
                    Some(_) => self.having.extend(conditions),
                }
                Ok(below)
            }
            LogicalPlan::Aggregate(aggregate) => self.aggregate(aggregate),
            LogicalPlan::Distinct(Distinct::All(input)) => self.distinct(input),
            LogicalPlan::Window(window) => self.ranking(window),
            LogicalPlan::Union(union) => self.union(union),
            other => Err(SqlError::new(format!(
                "{} is not supported yet: a query reads tables one by one, filters, groups at most once and filters again",
                node(other)
            ))),
        }
    }

    /// The parts of a union, each of one table. Its columns have the names of the first part's.
    fn union(&mut self, union: &Union) -> Result<Vec<Expr>, SqlError> {
        for input in &union.inputs {
            let mut part = Self::default();
            let columns = part.resolve(input)?;
            if part.grouping.is_some() {
                return Err(SqlError::new(
                    "UNION ALL of results that are grouped is not supported: put the rows together first, and group them \
                     around it, as in SELECT k, count(*) FROM (SELECT k FROM a UNION ALL SELECT k FROM b) GROUP BY k; or \
                     write each result into a table of its own, by an INSERT INTO for each",
                ));
            }
            for arm in part.arms {
                self.arms.push(arm.within(&part.filters, &columns)?);
            }
        }
        self.union = union.schema.fields().iter().map(|field| field.name().clone()).collect();
        Ok((0..self.union.len()).map(|number| stand_in(UNION, number)).collect())
    }

    /// The same shape with numbers in place of the names that the columns of a union were given.
    pub(super) fn unnamed(&self) -> Self {
        let union = (1..=self.union.len()).map(|number| format!("#{number}")).collect();
        let first = self.first.as_ref().map(|first| Box::new(first.unnamed()));
        Self { union, first, ..self.clone() }
    }

    fn aggregate(&mut self, aggregate: &Aggregate) -> Result<Vec<Expr>, SqlError> {
        let mut below = self.resolve(&aggregate.input)?;
        if self.grouping.is_some() {
            let names = aggregate.input.schema().fields().iter().map(|field| field.name().clone());
            below = second::nest(self, names.collect(), below)?;
        }
        let inlined = |exprs: &[Expr]| -> Result<Vec<Expr>, SqlError> {
            exprs.iter().map(|expr| inline(expr, &aggregate.input, &below)).collect()
        };
        let groups = inlined(&aggregate.group_expr)?;
        let aggregates = inlined(&aggregate.aggr_expr)?;
        let fields = aggregate.schema.fields().iter();
        let group_types: Vec<_> = fields.take(groups.len()).map(|field| field.data_type().clone()).collect();
        let columns = (0..groups.len())
            .map(|number| stand_in(GROUP, number))
            .chain((0..aggregates.len()).map(|number| stand_in(AGGREGATE, number)))
            .collect();
        let window = match &self.first {
            Some(first) => second::window(first, &groups, &group_types)?,
            None => window(&groups, &group_types, &aggregates)?,
        };
        let (ranking, distinct) = (None, false);
        self.grouping = Some(Grouping { groups, group_types, aggregates, window, ranking, distinct });
        Ok(columns)
    }

    /// SELECT DISTINCT groups by all of its columns.
    fn distinct(&mut self, input: &LogicalPlan) -> Result<Vec<Expr>, SqlError> {
        let groups = self.resolve(input)?;
        if self.grouping.is_some() {
            return Err(SqlError::new(
                "SELECT DISTINCT over GROUP BY or ROW_NUMBER() is not supported: their rows keep changing, so one that was \
                 written would have to be taken back",
            ));
        }
        let group_types: Vec<_> = input.schema().fields().iter().map(|field| field.data_type().clone()).collect();
        let columns = (0..groups.len()).map(|number| stand_in(GROUP, number)).collect();
        let (aggregates, window, ranking) = (Vec::new(), None, None);
        self.grouping = Some(Grouping { groups, group_types, aggregates, window, ranking, distinct: true });
        Ok(columns)
    }

    /// ROW_NUMBER() and its kin group by PARTITION BY, and keep rows of each group.
    fn ranking(&mut self, node: &datafusion::logical_expr::Window) -> Result<Vec<Expr>, SqlError> {
        let below = self.resolve(&node.input)?;
        let (call, numbering) = ranking::call(node)?;
        if self.grouping.as_ref().is_some_and(|grouping| grouping.ranking.is_some()) {
            return Err(SqlError::new(ranking::SEVERAL));
        }
        if self.ranked_groups.is_some() {
            return Err(SqlError::new(ranking::SEVERAL));
        }
        if self.grouping.is_some() {
            return self.ranked_groups(node, below);
        }
        ranking::check(call, numbering, &node.input)?;
        let groups: Vec<_> =
            call.params.partition_by.iter().map(|expr| inline(expr, &node.input, &below)).collect::<Result<_, _>>()?;
        let types = call.params.partition_by.iter().map(|expr| expr.get_type(node.input.schema()));
        let group_types = types.collect::<Result<Vec<_>, _>>()?;
        let order = call.params.order_by.iter().map(|sort| {
            let mut sort = sort.clone();
            sort.expr = inline(&sort.expr, &node.input, &below)?;
            Ok(sort)
        });
        let order = order.collect::<Result<Vec<SortExpr>, SqlError>>()?;
        let mut columns: Vec<_> = below
            .iter()
            .enumerate()
            .map(|(number, column)| match groups.iter().position(|group| group == column) {
                Some(group) => stand_in(GROUP, group),
                None => stand_in(ROW, number),
            })
            .collect();
        let mut computed = Vec::new();
        for (number, expr) in call.params.partition_by.iter().enumerate() {
            if !matches!(expr, Expr::Column(_)) {
                computed.push((number, inline(expr, &node.input, &columns)?));
            }
        }
        columns.push(stand_in(RANK, 0));
        let window = window(&groups, &group_types, &[])?;
        if let Some(sort) = order.iter().find(|sort| Window::called_within(&sort.expr)) {
            return Err(SqlError::new(format!(
                "ORDER BY {} inside OVER is not supported: a window is of the group that PARTITION BY makes, so all of its rows \
                 have the same",
                sort.expr
            )));
        }
        let names = node.input.schema().columns();
        let ranking = Some(Ranked { numbering, order, rows: below, names, computed });
        let (aggregates, distinct) = (Vec::new(), false);
        self.grouping = Some(Grouping { groups, group_types, aggregates, window, ranking, distinct });
        Ok(columns)
    }

    /// The groups of closed windows may be ranked against each other.
    fn ranked_groups(
        &mut self,
        node: &datafusion::logical_expr::Window,
        mut below: Vec<Expr>,
    ) -> Result<Vec<Expr>, SqlError> {
        let (call, numbering) = ranking::call(node)?;
        ranking::check(call, numbering, &node.input)?;
        let inlined = |expr: &Expr| inline(expr, &node.input, &below);
        let partition = call.params.partition_by.iter().map(inlined).collect::<Result<_, _>>()?;
        let order = call.params.order_by.iter().map(|sort| {
            let mut sort = sort.clone();
            sort.expr = inlined(&sort.expr)?;
            Ok(sort)
        });
        let order = order.collect::<Result<_, SqlError>>()?;
        let before = self.having.len();
        self.ranked_groups = Some(RankedGroups { numbering, before, partition, order });
        below.push(stand_in(RANK, 0));
        Ok(below)
    }

    /// Puts the group in the place of what is computed as it is from the columns of ranked rows.
    fn regroup(&self, expr: Expr) -> Result<Expr, SqlError> {
        let Some(Grouping { ranking: Some(Ranked { computed, .. }), .. }) = &self.grouping else { return Ok(expr) };
        let regrouped = expr.transform_down(|expr| match computed.iter().find(|(_, group)| *group == expr) {
            Some((number, _)) => Ok(Transformed::new(stand_in(GROUP, *number), true, TreeNodeRecursion::Jump)),
            None => Ok(Transformed::no(expr)),
        })?;
        Ok(regrouped.data)
    }

    /// A group in words.
    pub(super) fn display_group(&self, number: usize) -> String {
        self.display(&stand_in(GROUP, number))
    }

    /// An expression in words: with what the columns stand for in their place.
    pub(super) fn display(&self, expr: &Expr) -> String {
        let named = expr.clone().transform_up(|expr| {
            let Some(grouping) = &self.grouping else { return Ok(Transformed::no(expr)) };
            if let Some(first) = &self.first
                && let Some(shown) = numbered(&expr, FIRST_GROUP)
                    .map(|number| first.display(&stand_in(GROUP, number)))
                    .or_else(|| Some(first.display(&stand_in(AGGREGATE, numbered(&expr, FIRST_AGGREGATE)?))))
            {
                return Ok(Transformed::yes(Expr::Column(Column::from_name(shown))));
            }
            let window = grouping.window.as_ref();
            let name = window.map_or("window", |(_, window, _)| window.name());
            if let Some((bound, of)) = Window::bound_of(&expr)
                && matches!(of, Expr::Column(column) if column.name == format!("{name}.start") || column.name == name)
            {
                return Ok(Transformed::yes(Expr::Column(Column::from_name(format!("{name}.{bound}")))));
            }
            let meant = match (group(&expr), aggregate(&expr)) {
                (Some(number), _) if window.is_some_and(|window| window.0 == number) && self.calls_window(number) => {
                    let session = window.is_some_and(|(_, window, _)| window.is_session());
                    let name = if session { name.to_owned() } else { format!("{name}.start") };
                    return Ok(Transformed::yes(Expr::Column(Column::from_name(name))));
                }
                (Some(number), _) => grouping.groups.get(number),
                (_, Some(number)) => grouping.aggregates.get(number),
                _ => grouping.ranking.as_ref().and_then(|ranked| ranked.rows.get(row(&expr)?)),
            };
            let ranking = grouping.ranking.as_ref().map(|ranked| ranked.numbering);
            let numbering = ranking.or_else(|| Some(self.ranked_groups.as_ref()?.numbering));
            if let Some(numbering) = numbering.filter(|_| is_rank(&expr)) {
                return Ok(Transformed::yes(closed::shown(numbering)));
            }
            Ok(match meant {
                Some(meant) if self.first.is_some() => {
                    Transformed::yes(Expr::Column(Column::from_name(self.display(meant))))
                }
                Some(meant) => Transformed::yes(meant.clone()),
                None => Transformed::no(expr),
            })
        });
        let named = named.and_then(|named| {
            named.data.transform_up(|expr| match numbered(&expr, UNION).and_then(|number| self.union.get(number)) {
                Some(name) => Ok(Transformed::yes(Expr::Column(Column::from_name(name)))),
                None => Ok(Transformed::no(expr)),
            })
        });
        match named {
            Ok(named) => named.data.to_string(),
            Err(_) => expr.to_string(),
        }
    }
}

/// The window among the groups, if there is one.
fn window(groups: &[Expr], types: &[DataType], aggregates: &[Expr]) -> Result<Option<(usize, Window, Expr)>, SqlError> {
    let mut found = None;
    for (number, (group, data_type)) in groups.iter().zip(types).enumerate() {
        match Window::of(group, data_type)? {
            Some((window, time)) => found = Some((number, window, time.clone())),
            None if Window::within(group) => {
                return Err(SqlError::new("a window in GROUP BY stands alone: nothing can be computed from it there"));
            }
            None => {}
        }
    }
    if aggregates.iter().any(Window::within) {
        return Err(SqlError::new(
            "window.start and window.end inside an aggregate are not supported: they are of the group, not of a row",
        ));
    }
    Ok(found)
}

/// The field of a struct that is made in the same expression.
fn field_of_struct(expr: Expr) -> Transformed<Expr> {
    let field = match &expr {
        Expr::ScalarFunction(get) if get.func.name() == "get_field" => match get.args.as_slice() {
            [Expr::ScalarFunction(made), Expr::Literal(name, _)] if made.func.name() == "named_struct" => {
                let wanted = name.try_as_str().flatten();
                made.args.chunks(2).find_map(|pair| match pair {
                    [Expr::Literal(name, _), value] if wanted.is_some() && name.try_as_str().flatten() == wanted => {
                        Some(value.clone())
                    }
                    _ => None,
                })
            }
            _ => None,
        },
        _ => None,
    };
    match field {
        Some(field) => Transformed::yes(field),
        None => Transformed::no(expr),
    }
}

/// Puts what the input's columns stand for into an expression, and leaves its aliases out.
fn inline(expr: &Expr, input: &LogicalPlan, below: &[Expr]) -> Result<Expr, SqlError> {
    let schema = input.schema();
    let mut parts = 0;
    let inlined = expr.clone().transform_up(|expr| match expr {
        Expr::Column(column) => {
            let index = schema.index_of_column(&column)?;
            // Each view may name a column of the one below twice: what is put together can grow without bound.
            parts += depth::size(&below[index])?;
            depth::check_size(parts)?;
            Ok(Transformed::yes(below[index].clone()))
        }
        Expr::Alias(alias) => Ok(Transformed::yes(*alias.expr)),
        other => Ok(field_of_struct(other)),
    })?;
    depth::check_expr(&inlined.data)?;
    refuse_unstable(&inlined.data)?;
    Ok(inlined.data)
}

/// Refuses what would give another result when it is computed again, and what no step of a pipeline can evaluate. The
/// text was searched before; this holds whatever a function was called there.
pub(super) fn refuse_unstable(expr: &Expr) -> Result<(), SqlError> {
    let mut refused = None;
    expr.apply(|expr| {
        let volatility = match expr {
            Expr::ScalarFunction(call) => Some((call.func.name().to_owned(), call.func.signature().volatility)),
            Expr::HigherOrderFunction(call) => Some((call.func.name().to_owned(), call.func.signature().volatility)),
            _ => None,
        };
        refused = match (expr, volatility) {
            (_, Some((name, volatility))) if volatility != Volatility::Immutable => Some(format!(
                "{name}() changes from run to run, so a record that is processed again after a crash would give another \
                 result; the record's own time is in the column _timestamp"
            )),
            (Expr::WindowFunction(_), _) => Some(
                "window functions are not supported here: ROW_NUMBER(), RANK() and DENSE_RANK() are as columns of a query \
                 that is bounded from outside"
                    .into(),
            ),
            (Expr::Unnest(_), _) => {
                Some("unnest(...) is not supported yet: one record makes at most one row so far".into())
            }
            (Expr::Exists(_) | Expr::InSubquery(_) | Expr::ScalarSubquery(_) | Expr::SetComparison(_), _) => {
                Some("a subquery inside an expression is not supported yet: it would be a join".into())
            }
            (Expr::GroupingSet(_), _) => {
                Some("GROUPING SETS are not supported yet: write one query per grouping".into())
            }
            (Expr::Placeholder(_) | Expr::ScalarVariable(..) | Expr::OuterReferenceColumn(..), _) => {
                Some(format!("{expr} has no value here"))
            }
            _ => None,
        };
        Ok(if refused.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    match refused {
        Some(message) => Err(SqlError::new(message)),
        None => Ok(()),
    }
}

fn node(plan: &LogicalPlan) -> &'static str {
    match plan {
        LogicalPlan::Window(_) => "a window function",
        LogicalPlan::Sort(_) => "ORDER BY",
        LogicalPlan::Join(_) => "JOIN",
        LogicalPlan::Subquery(_) => "a subquery inside an expression",
        LogicalPlan::EmptyRelation(_) | LogicalPlan::Values(_) => "a query without a kafka:// table",
        LogicalPlan::Limit(_) => "LIMIT",
        LogicalPlan::Distinct(_) => "DISTINCT",
        LogicalPlan::Unnest(_) => "unnest",
        LogicalPlan::RecursiveQuery(_) => "WITH RECURSIVE",
        LogicalPlan::Dml(dml) if !matches!(dml.op, WriteOp::Insert(_)) => "changing rows",
        _ => "this part of the query",
    }
}
