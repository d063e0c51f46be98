//! From one checked INSERT to its halves: what is done with the rows of each table on the way to the shuffle, and the
//! operator behind it.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::row::{RowConverter, SortField};
use datafusion::common::DFSchema;
use datafusion::error::DataFusionError;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{Aggregate, Expr, ExprSchemable, LogicalPlan, lit};

use super::aggregation::{Aggregation, Preparation};
use super::branch::{Branch, Route, Windowed};
use super::checked::Checked;
use super::error::SqlError;
use super::expiry::{self, Expiry, LIFE};
use super::fitting;
use super::flat::{Flat, FlatArm, GroupNode};
use super::operator::nested::NestedPlan;
use super::operator::{AggregatePlan, ClosingWindows, Shown};
use super::options::OutputMode;
use super::passthrough::SinkKey;
use super::pipeline::{Pipeline, nullable, physical};
use super::plan::Second;
use super::pushing::in_turn;
use super::ranking::{self, closed::Ranks};
use super::reading::Reading;
use super::second;
use super::shape::Grouping;
use super::tally::RowCounters;
use super::windows::sliding::Sliding;
use super::windows::{self, Window as TimeWindow};
use crate::catalog::SinkKind;

/// The prepared column of the time of a row that is in several windows.
pub(super) const TIME: &str = "time";

/// The halves of one INSERT.
pub(super) struct Halves {
    pub(super) second: Second,
    /// Key columns and state columns, if it keeps state.
    pub(super) state: Option<SchemaRef>,
    /// For each arm the number of its table, and the way from there.
    pub(super) branches: Vec<(usize, Branch)>,
    pub(super) counters: Arc<RowCounters>,
    /// The columns of the rows that a ranking keeps.
    pub(super) kept: Vec<Option<usize>>,
    /// Those of a second aggregation.
    pub(super) then_state: Option<SchemaRef>,
    /// What becomes of all groups of a window, if they are on one shard.
    pub(super) all_in_one: Option<&'static str>,
    /// The groups by whose hash rows find their shard.
    pub(super) routed_by: Vec<String>,
}

/// Builds the halves of an INSERT.
pub(super) struct Builder<'a> {
    pub(super) state: &'a SessionState,
    pub(super) insert: &'a Checked<'a>,
    /// All tables of the pipeline.
    pub(super) readings: &'a [Reading<'a>],
}

impl Builder<'_> {
    pub(super) fn build(&self, flat: &Flat<'_>) -> Result<Halves, SqlError> {
        let mut state = None;
        let mut then_state = None;
        let mut window = None;
        let first = self.insert.shape.source();
        // What goes into a second aggregation is what append mode writes.
        let mode = if flat.second.is_some() { OutputMode::Append } else { self.insert.mode };
        let mut preparation = None;
        let mut checks = Vec::new();
        let (route, second) = match flat.groups {
            Some(node) => {
                let (aggregation, mut prepared, shown) = self.grouped(node)?;
                window = self.window(first.grouping.as_ref(), node, &aggregation, &mut prepared)?;
                checks = fitting::checks(&self.insert.shape, node, &prepared.schema, self.state)?;
                preparation = Some(prepared);
                let mut after = Pipeline::default();
                self.steps(&flat.after, &mut after)?;
                let second = match &flat.second {
                    Some((node, steps)) => Some(self.second(node, steps, &mut after)?),
                    None => None,
                };
                let (aggregation, closing) = self.closing(aggregation, &mut window, mode);
                state = Some(Arc::clone(&aggregation.partial));
                window.iter_mut().for_each(|windowed| windowed.closes = closing.is_some());
                let distinct = self.insert.shape.grouping.as_ref().is_some_and(|grouping| grouping.distinct);
                // A row of SELECT DISTINCT is final when it comes.
                let mode = if distinct { OutputMode::Update } else { mode };
                let key = self.key_columns();
                let plan =
                    AggregatePlan { aggregation: aggregation.clone(), pipeline: after, mode, closing, shown, key };
                let first = Arc::new(plan);
                let planned = match second {
                    Some((second, sliding)) => {
                        then_state = Some(Arc::clone(&second.aggregation.partial));
                        Second::Nested(Arc::new(NestedPlan { first, second: Arc::new(second), sliding }))
                    }
                    None => Second::Aggregate(first),
                };
                (Route::Group(aggregation), planned)
            }
            None => match self.sink_key()? {
                Some(key) => {
                    (Route::Key(key.columns.clone(), Arc::clone(&key.schema)), Second::PassThrough(Some(Arc::new(key))))
                }
                None if matches!(self.insert.sink.kind, SinkKind::Blackhole) => (Route::Offset, Second::Discard),
                None => (Route::Offset, Second::PassThrough(None)),
            },
        };
        let counters = Arc::<RowCounters>::default();
        let mut branches = Vec::new();
        for arm in &flat.arms {
            let (source, reading) = self.reading(arm)?;
            let mut pipeline = Pipeline::default();
            reading.begin(arm.scan, &mut pipeline);
            self.steps(&arm.steps, &mut pipeline)?;
            self.steps(&flat.before, &mut pipeline)?;
            if let Some(Preparation { columns, schema }) = &preparation {
                pipeline.project(columns.clone(), schema);
                pipeline.check(checks.clone());
            }
            let branch = Branch {
                insert: None,
                table: self.insert.sink.name.as_str().into(),
                pipeline,
                route: route.clone(),
                window: window.clone(),
                expiry: self.insert.expiry,
                routed: self.insert.shape.routed(),
                then: self.then(),
                timed: reading.table.options.watermark.is_some() || self.insert.expiry != Expiry::Never,
                counters: Arc::clone(&counters),
            };
            branches.push((source, branch));
        }
        let routed = match (&route, branches.first()) {
            (Route::Group(aggregation), Some((_, branch))) => branch.routed(aggregation),
            _ => Vec::new(),
        };
        let groups = first.grouping.iter().flat_map(|grouping| &grouping.groups).enumerate();
        let routed_by = groups.filter(|(number, _)| routed.contains(number)).map(|(_, group)| first.display(group));
        let (all_in_one, routed_by) = (self.all_in_one(), routed_by.collect());
        let ranked = first.grouping.as_ref().and_then(|grouping| grouping.ranking.as_ref());
        let kept = ranked.zip(flat.groups).map_or_else(Vec::new, |(ranked, node)| ranked.kept(node.input()));
        Ok(Halves { second, state, kept, then_state, branches, counters, all_in_one, routed_by })
    }

    /// The table that an arm scans.
    fn reading(&self, arm: &FlatArm<'_>) -> Result<(usize, &Reading<'_>), SqlError> {
        let name = arm.scan.table_name.table();
        let found = self.readings.iter().enumerate().find(|(_, reading)| reading.table.name == name);
        found.ok_or_else(|| SqlError::new(format!("the optimised query scans {name}, which the written one does not")))
    }

    fn steps(&self, nodes: &[&LogicalPlan], pipeline: &mut Pipeline) -> Result<(), SqlError> {
        for node in nodes {
            match node {
                LogicalPlan::Filter(filter) => {
                    let input = filter.input.schema();
                    for condition in in_turn(&filter.predicate, input) {
                        pipeline.filter(physical(&condition, input, self.state)?);
                    }
                }
                // What the parts of a union have in common from here on.
                LogicalPlan::Union(union) => pipeline.rename(union.schema.as_arrow()),
                LogicalPlan::Window(node) => pipeline.rank(Arc::new(Ranks::new(node, self.state)?)),
                LogicalPlan::Projection(projection) => {
                    let input = projection.input.schema();
                    let columns = projection.expr.iter().map(|expr| physical(expr, input, self.state));
                    pipeline.project(columns.collect::<Result<_, _>>()?, projection.schema.as_arrow());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The columns of the primary key, or all of a sink that has none.
    fn key_columns(&self) -> Vec<usize> {
        let (key, fields) = (&self.insert.sink.primary_key, self.insert.sink.schema.fields().iter().enumerate());
        fields.filter(|(_, field)| key.is_empty() || key.contains(field.name())).map(|(number, _)| number).collect()
    }

    fn sink_key(&self) -> Result<Option<SinkKey>, SqlError> {
        let key = &self.insert.sink.primary_key;
        if key.is_empty() {
            return Ok(None);
        }
        let columns = key
            .iter()
            .map(|name| self.insert.sink.schema.index_of(name))
            .collect::<Result<Vec<_>, _>>()
            .map_err(DataFusionError::from)?;
        let schema = self.insert.sink.schema.project(&columns).map_err(DataFusionError::from)?;
        for field in schema.fields() {
            if !RowConverter::supports_fields(&[SortField::new(field.data_type().clone())]) {
                return Err(SqlError::new(format!(
                    "column {} of the primary key of {} is {}, which cannot be a key",
                    field.name(),
                    self.insert.sink.name,
                    field.data_type()
                )));
            }
        }
        Ok(Some(SinkKey { columns, schema: nullable(&schema) }))
    }

    /// What is computed of groups, and what is shown of them.
    fn grouped(&self, node: GroupNode<'_>) -> Result<(Aggregation, Preparation, Shown), SqlError> {
        match (node, &self.insert.shape.source().grouping) {
            (GroupNode::Ranking(node), Some(Grouping { ranking: Some(ranked), .. })) => {
                let limit = ranking::limit(&self.insert.shape, ranked.numbering)?;
                let (aggregation, preparation, top) = Aggregation::ranked(node, limit, self.state)?;
                Ok((aggregation, preparation, Shown::Rows(top, self.sink_key()?)))
            }
            (GroupNode::Aggregate(node), Some(Grouping { ranking: None, distinct, .. })) => {
                let (aggregation, preparation) = Aggregation::new(node, self.state)?;
                let shown = Shown::Groups { schema: Arc::clone(&aggregation.result), once: *distinct };
                Ok((aggregation, preparation, shown))
            }
            _ => Err(SqlError::new("the optimised query groups otherwise than the one that was written")),
        }
    }

    /// When groups leave the state: with their windows, or with their lives, which become a key column.
    fn closing(
        &self,
        aggregation: Aggregation,
        windowed: &mut Option<Windowed>,
        mode: OutputMode,
    ) -> (Aggregation, Option<ClosingWindows>) {
        match (self.insert.expiry, &windowed) {
            (Expiry::AfterLastRow { ttl, .. }, _) => {
                let column = aggregation.key_columns();
                let window = TimeWindow::life(ttl);
                *windowed = Some(Windowed { window: window.clone(), column, sliding: None, closes: false });
                (aggregation.with_key(LIFE, expiry::life_type()), Some(ClosingWindows { window, column }))
            }
            (Expiry::AtItsTime { group }, _) => {
                let window = TimeWindow::instant(aggregation.keys.field(group).data_type());
                (aggregation, Some(ClosingWindows { window, column: group }))
            }
            (Expiry::Never, Some(Windowed { window, column, .. })) => {
                // Without a watermark no window ever closes, and complete mode needs all of them.
                let watermarks = self.insert.sources.iter().all(|source| source.options.watermark.is_some());
                let closes = watermarks && !matches!(mode, OutputMode::Complete { .. });
                let closing = closes.then(|| ClosingWindows { window: window.clone(), column: *column });
                (aggregation, closing)
            }
            (Expiry::Never, None) => (aggregation, None),
        }
    }

    /// The window of the groups, if there is one. Where a row can be in several, its time is prepared too.
    fn window(
        &self,
        grouping: Option<&Grouping>,
        node: GroupNode<'_>,
        aggregation: &Aggregation,
        preparation: &mut Preparation,
    ) -> Result<Option<Windowed>, SqlError> {
        let Some(Grouping { window: Some((column, window, _)), .. }) = grouping else { return Ok(None) };
        let input = node.input().schema();
        let sliding = match (window.slides(), node.group(*column)) {
            (None, _) => None,
            (Some(_), Some(Expr::ScalarFunction(call))) if !call.args.is_empty() => {
                let time = physical(&time_of(call, input)?, input, self.state)?;
                let mut fields = preparation.schema.fields().to_vec();
                let data_type = time.data_type(input.as_arrow())?;
                fields.push(Arc::new(Field::new(TIME, data_type, true)));
                preparation.columns.push(time);
                preparation.schema = Arc::new(Schema::new(fields));
                let shared = aggregation.with_key("first", DataType::Int64);
                let time = preparation.columns.len() - 1;
                Some(Sliding { window: window.clone(), column: *column, time, shared })
            }
            (Some(_), _) => {
                return Err(SqlError::new(
                    "a window that slides is not the group that was written: its time must be a column",
                ));
            }
        };
        Ok(Some(Windowed { window: window.clone(), column: *column, sliding, closes: false }))
    }

    /// A second aggregation: the steps before it get its preparation. Also how a row is in several of its windows.
    fn second(
        &self,
        node: &Aggregate,
        steps: &[&LogicalPlan],
        before: &mut Pipeline,
    ) -> Result<(AggregatePlan, Option<Sliding>), SqlError> {
        let (aggregation, mut preparation) = Aggregation::new(node, self.state)?;
        let grouping = self.insert.shape.grouping.as_ref();
        let mut windowed = self.window(grouping, GroupNode::Aggregate(node), &aggregation, &mut preparation)?;
        before.project(preparation.columns, &preparation.schema);
        let mut pipeline = Pipeline::default();
        self.steps(steps, &mut pipeline)?;
        let shown = Shown::Groups { schema: Arc::clone(&aggregation.result), once: false };
        let mode = self.insert.mode;
        let (aggregation, closing) = self.closing(aggregation, &mut windowed, mode);
        let sliding = windowed.and_then(|windowed| windowed.sliding);
        let key = self.key_columns();
        Ok((AggregatePlan { aggregation, pipeline, mode, closing, shown, key }, sliding))
    }

    /// What becomes of all groups of a window, if they are on one shard.
    fn all_in_one(&self) -> Option<&'static str> {
        let shape = &self.insert.shape;
        shape.routed().filter(Vec::is_empty)?;
        Some(match (&shape.first, &shape.ranked_groups) {
            (_, Some(_)) => {
                "are ranked against each other, since PARTITION BY has none of the groups beside the window"
            }
            (_, None) => "go into the outer GROUP BY together, since it has none of the inner groups beside the window",
        })
    }

    /// How far silence closes the windows of a second aggregation, beyond those of the first.
    fn then(&self) -> Option<(TimeWindow, i64)> {
        let shape = &self.insert.shape;
        let first = shape.first.as_deref()?;
        let (number, window, time) = shape.grouping.as_ref()?.window.as_ref()?;
        let reach = shape.calls_window(*number).then(|| second::reach(first, window, time))??;
        Some((window.clone(), reach.before_end))
    }
}

/// The time of a window that slides. Both bounds of an earlier window stand for its last tick, which is what a window of
/// one tick starts with.
pub(super) fn time_of(call: &ScalarFunction, input: &DFSchema) -> Result<Expr, DataFusionError> {
    let time = &call.args[0];
    let data_type = time.get_type(input)?;
    if !matches!(data_type, DataType::Struct(_)) {
        return Ok(time.clone());
    }
    let tick = windows::tick(windows::bound_type(&data_type));
    let args = vec![time.clone(), lit(tick), lit(tick), lit(0_i64)];
    Ok(Expr::ScalarFunction(ScalarFunction::new_udf(Arc::clone(&call.func), args)))
}
