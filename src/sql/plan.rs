//! From the statements to the two halves of the query.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::{DataType, Field, Schema};
use arrow::row::{RowConverter, SortField};
use datafusion::common::DFSchema;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::DataFusionError;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, TableScan, Window};
use datafusion::optimizer::common_subexpr_eliminate::CommonSubexprEliminate;
use datafusion::optimizer::optimize_projections::OptimizeProjections;
use datafusion::optimizer::push_down_filter::PushDownFilter;
use datafusion::optimizer::replace_distinct_aggregate::ReplaceDistinctWithAggregate;
use datafusion::optimizer::simplify_expressions::SimplifyExpressions;
use datafusion::optimizer::{Optimizer, OptimizerContext, OptimizerRule};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use strandline_actors::child::panic_text;
use strandline_actors::pointer::ShardId;
use strandline_actors::ports::{KeyedOperator, Query, SourceStage};
use strandline_actors::position::SourcePartition;

use super::aggregation::{Aggregation, Preparation, check_keys};
use super::decode::Decoding;
use super::error::{SqlError, Text};
use super::expiry::{self, Expiry, LIFE};
use super::fingerprint::{Described, fingerprint};
use super::keeping;
use super::key;
use super::metadata::Metadata;
use super::modes;
use super::operator::{AggregateOperator, AggregatePlan, ClosingWindows, Shown};
use super::options::{BadRecords, NullValue, OutputMode, Told, WatermarkText};
use super::passthrough::{PassThrough, SinkKey};
use super::pipeline::{Pipeline, nullable, physical};
use super::ranking::{self, closed::Ranks};
use super::shape::{Grouping, Shape, refuse_unstable};
use super::stage::{BatchStage, Origin, Route, Rule, StagePlan, Windowed};
use super::statements::{self, InsertInto, SourceTable, Statements};
use super::windows::Window as TimeWindow;
use super::windows::event_time::{EventTime, LateRows};
use super::windows::sliding::Sliding;
use crate::catalog::{KafkaTopic, SinkTable};

/// The stack on which statements are planned.
const STACK: usize = 128 << 20;

/// A checked pipeline.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The topics that are read; a source's number is its place here.
    pub sources: Vec<KafkaTopic>,
    /// The table that is written.
    pub sink: SinkTable,
    /// Tells plans apart whose stored states do not fit each other.
    pub fingerprint: String,
    /// The plan in words, a line for each part: what is read, filtered, grouped, kept and written. Plans with different
    /// fingerprints have different descriptions.
    pub description: String,
    /// What whoever runs it should know of it.
    pub notices: Vec<String>,
    /// Why one shard must do all the work, if it must.
    pub one_shard: Option<&'static str>,
    stage: Arc<StagePlan>,
    second: Second,
}

/// The second half of a query.
#[derive(Clone, Debug)]
enum Second {
    Aggregate(Arc<AggregatePlan>),
    PassThrough(Option<Arc<SinkKey>>),
}

/// Checks the statements and makes a plan of them. Whatever the text is, it ends with a plan or an error.
pub fn plan(sql: &str) -> Result<Plan, SqlError> {
    let text = Text::new(sql);
    text.check_depth()?;
    // On a stack that is large enough for the deepest text that is let through, in every build.
    let planner = std::thread::Builder::new().name("planner".into()).stack_size(STACK);
    std::thread::scope(|scope| {
        let planning = planner.spawn_scoped(scope, || plan_text(sql, &text));
        let planning =
            planning.map_err(|error| SqlError::new(format!("the system gives no thread to plan on: {error}")))?;
        planning.join().unwrap_or_else(|panic| {
            Err(SqlError::new(format!(
                "the planner failed, which is its fault and not that of the statements: {}. Write them otherwise, and \
                 report them",
                panic_text(panic.as_ref())
            )))
        })
    })
}

fn plan_text(sql: &str, text: &Text) -> Result<Plan, SqlError> {
    let statements = statements::read(sql, text)?;
    let insert = match statements.inserts.as_slice() {
        [insert] => insert,
        [] => {
            return Err(SqlError::new(
                "the statements insert into nothing: add INSERT INTO <table> SELECT ... FROM <table>",
            ));
        }
        [_, second, ..] => {
            return Err(SqlError::at(
                "several INSERT INTO are not supported yet: all would have to move together; run one pipeline for each",
                second.place,
            ));
        }
    };
    planned(&statements, insert).map_err(|error| error.or_at(insert.place))
}

fn planned(statements: &Statements, insert: &InsertInto) -> Result<Plan, SqlError> {
    let state = statements.context.state();
    let analysed = state.analyzer().execute_and_check(insert.query.clone(), state.config_options(), |_, _| {})?;
    let shape = Shape::of(&analysed)?;
    let Some(sink) = statements.sinks.get(&insert.sink) else {
        return Err(SqlError::new(format!("there is no table {} to insert into", insert.sink)));
    };
    let Some(source) = statements.sources.get(&shape.table) else {
        return Err(SqlError::new(format!("{} is a table to write to; only kafka:// tables can be read", shape.table)));
    };
    key::check(&shape, sink)?;
    let Told { mode: written, ttl } = statements.told.get(&insert.sink).copied().unwrap_or_default();
    let mode = written.map_or(OutputMode::default(), |(mode, _)| mode);
    modes::check(&shape, source, mode).map_err(|error| error.or_at(written.and_then(|(_, place)| place)))?;
    let expiry = keeping::expiry(&shape, source, sink, mode, ttl)?;
    if let Some(grouping) = &shape.grouping {
        check_keys(&grouping.groups, &grouping.group_types).map_err(SqlError::new)?;
    }
    let windowed = shape.grouping.as_ref().is_some_and(|grouping| grouping.window.is_some());
    let optimised = optimise(analysed, windowed)?;
    Builder { state: &state, source, sink, shape: &shape, mode, expiry }.build(&optimised)
}

/// The rewrites that are worth it and keep the shape. DataFusion's others are for joins, subqueries and sorting; one of
/// them would nest aggregates. Conditions on windows stay where they are: below the aggregation a row is not yet in one
/// window.
fn optimise(plan: LogicalPlan, windowed: bool) -> Result<LogicalPlan, DataFusionError> {
    let mut rules: Vec<Arc<dyn OptimizerRule + Send + Sync>> =
        vec![Arc::new(ReplaceDistinctWithAggregate::new()), Arc::new(SimplifyExpressions::new())];
    if !windowed {
        rules.push(Arc::new(PushDownFilter::new()));
    }
    rules.push(Arc::new(CommonSubexprEliminate::new()));
    rules.push(Arc::new(OptimizeProjections::new()));
    let context = OptimizerContext::new().without_query_execution_start_time().with_skip_failing_rules(false);
    let plan = match windowed {
        true => {
            plan.transform_down(|node| match node {
                LogicalPlan::Aggregate(mut aggregate) => {
                    aggregate.input = Arc::new(optimise(Arc::unwrap_or_clone(aggregate.input), false)?);
                    Ok(Transformed::new(LogicalPlan::Aggregate(aggregate), true, TreeNodeRecursion::Stop))
                }
                LogicalPlan::Window(mut ranking) if !aggregates(&ranking.input) => {
                    ranking.input = Arc::new(optimise(Arc::unwrap_or_clone(ranking.input), false)?);
                    Ok(Transformed::new(LogicalPlan::Window(ranking), true, TreeNodeRecursion::Stop))
                }
                other => Ok(Transformed::no(other)),
            })?
            .data
        }
        false => plan,
    };
    Optimizer::with_rules(rules).optimize(plan, &context, |_, _| {})
}

/// Whether something below aggregates.
fn aggregates(plan: &LogicalPlan) -> bool {
    plan.exists(|node| Ok(matches!(node, LogicalPlan::Aggregate(_)))).unwrap_or(false)
}

/// An optimised plan as a list: the scan, the steps, and where the aggregation is among them.
struct Flat<'a> {
    scan: &'a TableScan,
    before: Vec<&'a LogicalPlan>,
    groups: Option<GroupNode<'a>>,
    after: Vec<&'a LogicalPlan>,
}

/// The step that makes groups of rows.
#[derive(Clone, Copy)]
enum GroupNode<'a> {
    Aggregate(&'a Aggregate),
    Ranking(&'a Window),
}

impl<'a> GroupNode<'a> {
    fn input(self) -> &'a LogicalPlan {
        match self {
            Self::Aggregate(node) => &node.input,
            Self::Ranking(node) => &node.input,
        }
    }

    /// The expression of a group.
    fn group(self, number: usize) -> Option<&'a Expr> {
        match self {
            Self::Aggregate(node) => node.group_expr.get(number),
            Self::Ranking(node) => ranking::call(node).ok()?.0.params.partition_by.get(number),
        }
    }
}

fn flatten(plan: &LogicalPlan) -> Result<Flat<'_>, SqlError> {
    let mut steps = Vec::new();
    let mut after = Vec::new();
    let mut groups = None;
    let mut node = plan;
    loop {
        node = match node {
            LogicalPlan::TableScan(scan) if scan.filters.is_empty() && scan.fetch.is_none() => {
                steps.reverse();
                return Ok(Flat { scan, before: steps, groups, after });
            }
            LogicalPlan::SubqueryAlias(alias) => alias.input.as_ref(),
            LogicalPlan::Projection(projection) => {
                steps.push(node);
                projection.input.as_ref()
            }
            LogicalPlan::Filter(filter) => {
                steps.push(node);
                filter.input.as_ref()
            }
            LogicalPlan::Window(window) if aggregates(&window.input) => {
                steps.push(node);
                window.input.as_ref()
            }
            LogicalPlan::Aggregate(_) | LogicalPlan::Window(_) if groups.is_none() => {
                let found = match node {
                    LogicalPlan::Window(found) => GroupNode::Ranking(found),
                    LogicalPlan::Aggregate(found) => GroupNode::Aggregate(found),
                    other => return Err(SqlError::new(format!("{} makes no groups", other.display()))),
                };
                groups = Some(found);
                after = std::mem::take(&mut steps);
                after.reverse();
                found.input()
            }
            other => {
                return Err(SqlError::new(format!(
                    "the optimised query has a step that is not supported: {}",
                    other.display()
                )));
            }
        };
    }
}

struct Builder<'a> {
    state: &'a SessionState,
    source: &'a SourceTable,
    sink: &'a SinkTable,
    shape: &'a Shape,
    mode: OutputMode,
    expiry: Expiry,
}

impl Builder<'_> {
    fn build(&self, optimised: &LogicalPlan) -> Result<Plan, SqlError> {
        let flat = flatten(optimised)?;
        let scanned = self.scanned();
        let projection: Vec<usize> = match &flat.scan.projection {
            Some(projection) => projection.clone(),
            None => (0..scanned.fields().len()).collect(),
        };
        let used = self.used(&scanned, &projection)?;
        let input = Schema::new(used.iter().map(|column| scanned.field(*column).clone()).collect::<Vec<_>>());
        let rules = self.rules(&input)?;

        let mut pipeline = Pipeline::default();
        if used != projection {
            let columns = projection.iter().map(|column| {
                let place = used.iter().position(|used| used == column).unwrap_or_default();
                Arc::new(Column::new(scanned.field(*column).name(), place)) as Arc<dyn PhysicalExpr>
            });
            pipeline.project(columns.collect(), flat.scan.projected_schema.as_arrow());
        }
        self.steps(&flat.before, &mut pipeline)?;

        let mut state_schema = None;
        let mut windowed = None;
        let (route, second) = match flat.groups {
            Some(node) => {
                let (aggregation, mut preparation, shown) = self.grouped(node)?;
                windowed = self.window(node, &aggregation, &mut preparation)?;
                pipeline.project(preparation.columns, &preparation.schema);
                let mut after = Pipeline::default();
                self.steps(&flat.after, &mut after)?;
                let (aggregation, closing) = self.closing(aggregation, &mut windowed);
                state_schema = Some(Arc::clone(&aggregation.partial));
                let distinct = self.shape.grouping.as_ref().is_some_and(|grouping| grouping.distinct);
                // A row of SELECT DISTINCT is final when it comes.
                let mode = if distinct { OutputMode::Update } else { self.mode };
                let plan = AggregatePlan { aggregation: aggregation.clone(), pipeline: after, mode, closing, shown };
                (Route::Group(aggregation), Second::Aggregate(Arc::new(plan)))
            }
            None => match self.sink_key()? {
                Some(key) => {
                    (Route::Key(key.columns.clone(), Arc::clone(&key.schema)), Second::PassThrough(Some(Arc::new(key))))
                }
                None => (Route::Offset, Second::PassThrough(None)),
            },
        };

        let fields: Vec<_> = input.fields().iter().map(|field| field.as_ref().clone()).collect();
        let described = Described {
            shape: self.shape,
            source: self.source,
            sink: self.sink,
            mode: self.mode,
            expiry: self.expiry,
            used: &fields,
            state: state_schema.as_deref(),
        };
        let description = described.text();
        let stage = self.stage(&input, rules, pipeline, route, windowed)?;
        Ok(Plan {
            one_shard: self.source.options.watermark.as_ref().and_then(|watermark| watermark.close_after).map(|_| {
                "'watermark.close.after' raises a partition's watermark where it stands, and only one shard keeps that \
                 and the rows together"
            }),
            notices: self.notices(),
            sources: vec![self.topic(&input)],
            sink: self.sink.clone(),
            fingerprint: fingerprint(&description),
            description,
            stage: Arc::new(stage),
            second,
        })
    }

    /// All columns that a scan can have: the declared ones, then metadata.
    fn scanned(&self) -> Schema {
        let metadata = Metadata::ALL.into_iter().map(Metadata::field);
        Schema::new(self.source.columns.fields().iter().cloned().chain(metadata).collect::<Vec<_>>())
    }

    /// The columns that are read: what the query and the rules use, and what must not be NULL.
    fn used(&self, scanned: &Schema, projection: &[usize]) -> Result<Vec<usize>, SqlError> {
        let mut used: BTreeSet<usize> = projection.iter().copied().collect();
        let required = self.source.columns.fields().iter().enumerate().filter(|(_, field)| !field.is_nullable());
        used.extend(required.map(|(column, _)| column));
        if self.source.options.watermark.is_some() || self.expiry != Expiry::Never {
            used.insert(scanned.index_of(keeping::time_column(self.source)).map_err(DataFusionError::from)?);
        }
        let all = DFSchema::try_from(scanned.clone())?;
        for rule in &self.source.options.rules {
            let expr = Text::new(&rule.condition)
                .check_depth()
                .and_then(|()| Ok(self.state.create_logical_expr(&rule.condition, &all)?));
            let expr = expr.map_err(|error| self.rule_error(&rule.name, error, rule.place))?;
            for column in expr.column_refs() {
                used.insert(scanned.index_of(&column.name).map_err(DataFusionError::from)?);
            }
        }
        Ok(used.into_iter().collect())
    }

    fn rule_error(&self, name: &str, error: SqlError, place: Option<super::error::Place>) -> SqlError {
        SqlError::at(format!("table {}: rule '{name}': {}", self.source.name, error.message), place)
    }

    fn rules(&self, input: &Schema) -> Result<Vec<Rule>, SqlError> {
        let schema = DFSchema::try_from(input.clone())?;
        let rule = |text: &super::options::RuleText| -> Result<Rule, SqlError> {
            let expr = self.state.create_logical_expr(&text.condition, &schema)?;
            refuse_unstable(&expr)?;
            if expr.exists(|expr| Ok(matches!(expr, Expr::AggregateFunction(_))))? {
                return Err(SqlError::new("a rule looks at one record and cannot aggregate"));
            }
            let condition = self.state.create_physical_expr(expr, &schema)?;
            match condition.data_type(input)? {
                DataType::Boolean => Ok(Rule { name: text.name.clone(), condition }),
                other => Err(SqlError::new(format!("`{}` is {other}, not a condition", text.condition))),
            }
        };
        let rules = self.source.options.rules.iter();
        rules.map(|text| rule(text).map_err(|error| self.rule_error(&text.name, error, text.place))).collect()
    }

    fn steps(&self, nodes: &[&LogicalPlan], pipeline: &mut Pipeline) -> Result<(), SqlError> {
        for node in nodes {
            match node {
                LogicalPlan::Filter(filter) => {
                    pipeline.filter(physical(&filter.predicate, filter.input.schema(), self.state)?);
                }
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

    fn sink_key(&self) -> Result<Option<SinkKey>, SqlError> {
        let key = &self.sink.primary_key;
        if key.is_empty() {
            return Ok(None);
        }
        let columns = key
            .iter()
            .map(|name| self.sink.schema.index_of(name))
            .collect::<Result<Vec<_>, _>>()
            .map_err(DataFusionError::from)?;
        let schema = self.sink.schema.project(&columns).map_err(DataFusionError::from)?;
        for field in schema.fields() {
            if !RowConverter::supports_fields(&[SortField::new(field.data_type().clone())]) {
                return Err(SqlError::new(format!(
                    "column {} of the primary key of {} is {}, which cannot be a key",
                    field.name(),
                    self.sink.name,
                    field.data_type()
                )));
            }
        }
        Ok(Some(SinkKey { columns, schema: nullable(&schema) }))
    }

    /// What is computed of groups, and what is shown of them.
    fn grouped(&self, node: GroupNode<'_>) -> Result<(Aggregation, Preparation, Shown), SqlError> {
        match (node, &self.shape.grouping) {
            (GroupNode::Ranking(node), Some(Grouping { ranking: Some(ranked), .. })) => {
                let limit = ranking::limit(self.shape, ranked.numbering)?;
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
    ) -> (Aggregation, Option<ClosingWindows>) {
        match (self.expiry, &windowed) {
            (Expiry::AfterLastRow { ttl, .. }, _) => {
                let column = aggregation.key_columns();
                let window = TimeWindow::life(ttl);
                *windowed = Some(Windowed { window: window.clone(), column, sliding: None });
                (aggregation.with_key(LIFE, expiry::life_type()), Some(ClosingWindows { window, column }))
            }
            (Expiry::AtItsTime { group }, _) => {
                let window = TimeWindow::instant(aggregation.keys.field(group).data_type());
                (aggregation, Some(ClosingWindows { window, column: group }))
            }
            (Expiry::Never, Some(Windowed { window, column, .. })) => {
                // Without a watermark no window ever closes, and complete mode needs all of them.
                let closes =
                    self.source.options.watermark.is_some() && !matches!(self.mode, OutputMode::Complete { .. });
                let closing = closes.then(|| ClosingWindows { window: window.clone(), column: *column });
                (aggregation, closing)
            }
            (Expiry::Never, None) => (aggregation, None),
        }
    }

    /// The window of the groups, if there is one. Where a row can be in several, its time is prepared too.
    fn window(
        &self,
        node: GroupNode<'_>,
        aggregation: &Aggregation,
        preparation: &mut Preparation,
    ) -> Result<Option<Windowed>, SqlError> {
        let Some(Grouping { window: Some((column, window, _)), .. }) = &self.shape.grouping else { return Ok(None) };
        let input = node.input().schema();
        let sliding = match (window.slides(), node.group(*column)) {
            (None, _) => None,
            (Some(_), Some(Expr::ScalarFunction(call))) if !call.args.is_empty() => {
                let time = physical(&call.args[0], input, self.state)?;
                let mut fields = preparation.schema.fields().to_vec();
                let data_type = time.data_type(input.as_arrow())?;
                fields.push(Arc::new(Field::new("time", data_type, true)));
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
        Ok(Some(Windowed { window: window.clone(), column: *column, sliding }))
    }

    /// The groups by which rows find their shard, if not all of them.
    fn routed(&self) -> Option<Vec<usize>> {
        self.shape
            .ranked_groups
            .as_ref()
            .zip(self.shape.grouping.as_ref())
            .map(|(ranked, groups)| ranked.shared(groups))
    }

    /// What whoever runs the pipeline should know of it.
    fn notices(&self) -> Vec<String> {
        let all_in_one = self.routed().is_some_and(|groups| groups.is_empty());
        let notice = "all groups of a window are ranked against each other, since PARTITION BY has none of the groups beside \
            the window: one shard does all the work, and the others have nothing to do";
        all_in_one.then(|| notice.to_owned()).into_iter().collect()
    }

    /// The event time of the source, if it has one.
    fn event_time(&self, input: &Schema) -> Result<Option<EventTime>, SqlError> {
        let Some(WatermarkText { column, delay, max_ahead, idle, close_after, .. }) = &self.source.options.watermark
        else {
            if self.expiry == Expiry::Never {
                return Ok(None);
            }
            let column = input.index_of(keeping::time_column(self.source)).map_err(DataFusionError::from)?;
            return Ok(Some(EventTime {
                column,
                delay: 0,
                max_ahead: i64::MAX,
                late_rows: LateRows::default(),
                idle: None,
                close_after: None,
            }));
        };
        let column = input.index_of(column).map_err(DataFusionError::from)?;
        let late_rows = self.source.options.late_rows;
        let duration = |nanos: i64| Duration::from_nanos(nanos.unsigned_abs());
        Ok(Some(EventTime {
            column,
            delay: *delay,
            max_ahead: *max_ahead,
            late_rows,
            idle: idle.map(duration),
            close_after: close_after.map(|(close, _)| duration(close)),
        }))
    }

    fn stage(
        &self,
        input: &Schema,
        rules: Vec<Rule>,
        pipeline: Pipeline,
        route: Route,
        window: Option<Windowed>,
    ) -> Result<StagePlan, SqlError> {
        let mut decoded: Vec<Field> = Vec::new();
        let mut origins = Vec::new();
        for field in input.fields() {
            match Metadata::ALL.into_iter().find(|metadata| metadata.name() == field.name()) {
                Some(metadata) => origins.push(Origin::Metadata(metadata)),
                None => {
                    origins.push(Origin::Decoded(decoded.len()));
                    decoded.push(field.as_ref().clone());
                }
            }
        }
        let decoding = Decoding::new(Arc::new(Schema::new(decoded)), self.source)?;
        Ok(StagePlan {
            decoding,
            columns: nullable(input),
            origins,
            rules,
            pipeline,
            route,
            event_time: self.event_time(input)?,
            window,
            expiry: self.expiry,
            routed: self.routed(),
            bad_records: self.source.options.bad_records,
            null_value: self.source.options.null_value,
        })
    }

    fn topic(&self, input: &Schema) -> KafkaTopic {
        let options = &self.source.options;
        let uses = |metadata: Metadata| input.index_of(metadata.name()).is_ok();
        let dead_letters = options.bad_records == BadRecords::DeadLetter
            || options.null_value == NullValue::DeadLetter
            || options.late_rows == LateRows::DeadLetter;
        KafkaTopic {
            table: self.source.name.clone(),
            topic: self.source.topic.clone(),
            starting_offsets: options.starting_offsets.clone(),
            max_offsets_per_batch: options.max_offsets_per_batch,
            on_data_loss: options.on_data_loss,
            properties: options.properties.clone(),
            // A dead letter keeps the key, so that the record can be repeated.
            keys: uses(Metadata::Key) || dead_letters,
            headers: uses(Metadata::Headers),
        }
    }
}

impl Plan {
    /// The two halves of the query, for so many shards.
    pub fn query(&self) -> Arc<dyn Query> {
        Arc::new(Halves { stage: Arc::clone(&self.stage), second: self.second.clone() })
    }
}

struct Halves {
    stage: Arc<StagePlan>,
    second: Second,
}

impl Query for Halves {
    fn source_stage(&self, partition: &SourcePartition) -> Box<dyn SourceStage> {
        Box::new(BatchStage::new(Arc::clone(&self.stage), partition))
    }

    fn operator(&self, _shard: ShardId) -> Box<dyn KeyedOperator> {
        match &self.second {
            Second::Aggregate(plan) => Box::new(AggregateOperator::new(Arc::clone(plan))),
            Second::PassThrough(key) => Box::new(PassThrough::new(key.clone())),
        }
    }

    fn retracts(&self) -> bool {
        match &self.second {
            Second::Aggregate(plan) => plan.retracts(),
            Second::PassThrough(_) => false,
        }
    }
}
