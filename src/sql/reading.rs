//! What is read of a table, whatever is made of it: the columns that its queries and rules use, decoded once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::DFSchema;
use datafusion::common::tree_node::TreeNode;
use datafusion::error::DataFusionError;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{Expr, TableScan};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;

use super::branch::Branch;
use super::clock;
use super::decode::Decoding;
use super::error::{Place, SqlError, Text};
use super::keeping;
use super::metadata::Metadata;
use super::options::{BadRecords, MAX_AHEAD, NullValue, RuleText, WatermarkText};
use super::pipeline::{Pipeline, exact, nullable};
use super::shape::refuse_unstable;
use super::stage::{Origin, Rule, StagePlan};
use super::statements::SourceTable;
use super::windows::event_time::{EventTime, LateRows};
use crate::catalog::KafkaTopic;

/// One table that is read.
pub(super) struct Reading<'a> {
    pub(super) table: &'a SourceTable,
    /// All columns that a scan can have: the declared ones, then metadata.
    scanned: Schema,
    /// Which of them are read.
    used: Vec<usize>,
    /// Those columns.
    pub(super) input: Schema,
}

impl<'a> Reading<'a> {
    /// What these scans of a table need. `forgets` says that groups are forgotten by the time of its rows.
    pub(super) fn new(
        table: &'a SourceTable,
        scans: &[&TableScan],
        forgets: bool,
        state: &SessionState,
    ) -> Result<Self, SqlError> {
        let metadata = Metadata::ALL.into_iter().map(Metadata::field);
        let scanned = Schema::new(table.columns.fields().iter().cloned().chain(metadata).collect::<Vec<_>>());
        let mut reading = Self { table, scanned, used: Vec::new(), input: Schema::empty() };
        let mut used: BTreeSet<usize> = scans.iter().flat_map(|scan| reading.projection(scan)).collect();
        // What must not be NULL is looked at, whoever uses it.
        let required = table.columns.fields().iter().enumerate().filter(|(_, field)| !field.is_nullable());
        used.extend(required.map(|(column, _)| column));
        let index = |name: &str| reading.scanned.index_of(name).map_err(DataFusionError::from);
        if table.options.watermark.is_some() || forgets {
            used.insert(index(keeping::time_column(table))?);
        }
        let all = DFSchema::try_from(reading.scanned.clone())?;
        for rule in &table.options.rules {
            let expr = Text::new(&rule.condition)
                .check_depth()
                .and_then(|()| Ok(state.create_logical_expr(&rule.condition, &all)?));
            let expr = expr.map_err(|error| reading.rule_error(&rule.name, error, rule.place))?;
            for column in expr.column_refs() {
                used.insert(index(&column.name)?);
            }
        }
        reading.used = used.into_iter().collect();
        let fields = reading.used.iter().map(|column| reading.scanned.field(*column).clone());
        reading.input = Schema::new(fields.collect::<Vec<_>>());
        Ok(reading)
    }

    fn projection(&self, scan: &TableScan) -> Vec<usize> {
        match &scan.projection {
            Some(projection) => projection.clone(),
            None => (0..self.scanned.fields().len()).collect(),
        }
    }

    /// The step from what is read to what a scan has.
    pub(super) fn begin(&self, scan: &TableScan, pipeline: &mut Pipeline) {
        let projection = self.projection(scan);
        if self.used != projection {
            let columns = projection.iter().map(|column| {
                let place = self.used.iter().position(|used| used == column).unwrap_or_default();
                Arc::new(Column::new(self.scanned.field(*column).name(), place)) as Arc<dyn PhysicalExpr>
            });
            pipeline.project(columns.collect(), scan.projected_schema.as_arrow());
        }
    }

    fn rule_error(&self, name: &str, error: SqlError, place: Option<Place>) -> SqlError {
        SqlError::at(format!("table {}: rule '{name}': {}", self.table.name, error.message), place)
    }

    fn rules(&self, state: &SessionState) -> Result<Vec<Rule>, SqlError> {
        let (input, schema) = (&self.input, DFSchema::try_from(self.input.clone())?);
        let rule = |text: &RuleText| -> Result<Rule, SqlError> {
            let expr = state.create_logical_expr(&text.condition, &schema)?;
            refuse_unstable(&expr)?;
            if clock::looks(&expr) {
                return Err(SqlError::new(
                    "a rule cannot look at _processing_time: a record that is read again after a crash has another one; take \
                     _timestamp",
                ));
            }
            if expr.exists(|expr| Ok(matches!(expr, Expr::AggregateFunction(_))))? {
                return Err(SqlError::new("a rule looks at one record and cannot aggregate"));
            }
            let condition = exact(state.create_physical_expr(expr, &schema)?, input)?;
            match condition.data_type(input)? {
                DataType::Boolean => Ok(Rule { name: text.name.clone(), condition }),
                other => Err(SqlError::new(format!("`{}` is {other}, not a condition", text.condition))),
            }
        };
        let rules = self.table.options.rules.iter();
        rules.map(|text| rule(text).map_err(|error| self.rule_error(&text.name, error, text.place))).collect()
    }

    /// The event time of the table, if it has one. Where groups are forgotten, all tables of the pipeline have one.
    fn event_time(&self, forgets: bool) -> Result<Option<EventTime>, SqlError> {
        let Some(WatermarkText { column, delay, max_ahead, idle, close_after, .. }) = &self.table.options.watermark
        else {
            if !forgets {
                return Ok(None);
            }
            let column = self.input.index_of(keeping::time_column(self.table)).map_err(DataFusionError::from)?;
            return Ok(Some(EventTime {
                column,
                by_clock: false,
                delay: 0,
                max_ahead: MAX_AHEAD,
                ahead_rows: None,
                late_rows: LateRows::default(),
                idle: None,
                close_after: None,
            }));
        };
        let by_clock = clock::is_clock(column);
        let column = self.input.index_of(column).map_err(DataFusionError::from)?;
        let late_rows = self.table.options.late_rows;
        let duration = |nanos: i64| Duration::from_nanos(nanos.unsigned_abs());
        Ok(Some(EventTime {
            column,
            by_clock,
            delay: *delay,
            max_ahead: if by_clock { i64::MAX } else { *max_ahead },
            ahead_rows: self.table.options.ahead_rows,
            late_rows,
            idle: idle.map(duration),
            close_after: close_after.map(|(close, _)| duration(close)),
        }))
    }

    /// The stage of the table's partitions.
    pub(super) fn stage(
        &self,
        branches: Vec<Branch>,
        forgets: bool,
        state: &SessionState,
    ) -> Result<StagePlan, SqlError> {
        let mut decoded: Vec<Field> = Vec::new();
        let mut origins = Vec::new();
        for field in self.input.fields() {
            match Metadata::ALL.into_iter().find(|metadata| metadata.name() == field.name()) {
                Some(metadata) => origins.push(Origin::Metadata(metadata)),
                None => {
                    origins.push(Origin::Decoded(decoded.len()));
                    decoded.push(field.as_ref().clone());
                }
            }
        }
        Ok(StagePlan {
            decoding: Decoding::new(Arc::new(Schema::new(decoded)), self.table)?,
            columns: nullable(&self.input),
            origins,
            rules: self.rules(state)?,
            event_time: self.event_time(forgets)?,
            bad_records: self.table.options.bad_records,
            null_value: self.table.options.null_value,
            branches,
        })
    }

    /// The topic, as it is read.
    pub(super) fn topic(&self) -> KafkaTopic {
        let options = &self.table.options;
        let uses = |metadata: Metadata| self.input.index_of(metadata.name()).is_ok();
        let dead_letters = options.bad_records == BadRecords::DeadLetter
            || options.null_value == NullValue::DeadLetter
            || options.late_rows == LateRows::DeadLetter
            || options.ahead_rows == Some(BadRecords::DeadLetter);
        KafkaTopic {
            table: self.table.name.clone(),
            topic: self.table.topic.clone(),
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
