//! Reads the statements: which tables and views are declared, and what is to be inserted into what.
//!
//! Everything is parsed and planned by DataFusion; here it is only decided which statements make a pipeline and what the
//! locations and options of the tables mean.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::catalog::view::ViewTable;
use datafusion::common::{Constraint, TableReference};
use datafusion::datasource::empty::EmptyTable;
use datafusion::execution::context::SessionContext;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::{
    CreateExternalTable as PlannedTable, CreateView as PlannedView, DdlStatement, DmlStatement, LogicalPlan, WriteOp,
};
use datafusion::prelude::SessionConfig;
use datafusion::sql::parser::{CreateExternalTable, DFParserBuilder, Statement};
use datafusion::sql::sqlparser::ast::{
    ColumnOption, ColumnOptionDef, Insert, Query, Spanned, Statement as Ast, TableObject,
};
use futures::FutureExt;

use super::clock::is_clock;
use super::error::{Place, SqlError, Text};
use super::metadata::{Metadata, narrow_wildcards, plain_name};
use super::options::{self, KafkaOptions, SinkOptions, Told};
use super::refusals;
use super::windows;
use crate::catalog::{ConsoleFormat, SinkKind, SinkTable};

/// A declared `kafka://` table.
#[derive(Clone, Debug)]
pub(super) struct SourceTable {
    pub(super) name: String,
    pub(super) topic: String,
    /// The declared columns, without the metadata columns that follow them in a scan.
    pub(super) columns: SchemaRef,
    pub(super) options: KafkaOptions,
    pub(super) place: Option<Place>,
}

impl SourceTable {
    /// Whether its watermark is that of the clock, by which no row is late.
    pub(super) fn by_clock(&self) -> bool {
        self.options.watermark.as_ref().is_some_and(|watermark| is_clock(&watermark.column))
    }
}

/// One `INSERT INTO ... SELECT`.
#[derive(Clone, Debug)]
pub(super) struct InsertInto {
    pub(super) sink: String,
    /// The query, with its columns cast to those of the sink.
    pub(super) query: LogicalPlan,
    pub(super) place: Option<Place>,
}

/// All statements of a pipeline.
pub(super) struct Statements {
    pub(super) context: SessionContext,
    pub(super) sources: BTreeMap<String, SourceTable>,
    pub(super) sinks: BTreeMap<String, SinkTable>,
    /// What the table of each sink says of its query.
    pub(super) told: BTreeMap<String, Told>,
    pub(super) inserts: Vec<InsertInto>,
}

/// Reads all statements.
pub(super) fn read(sql: &str, text: &Text) -> Result<Statements, SqlError> {
    let statements = DFParserBuilder::new(sql).build().and_then(|mut parser| parser.parse_statements());
    let statements = statements.map_err(|error| text.advised(error.into()))?;
    let starts = text.statements();
    let mut reader = Reader {
        text,
        views: Vec::new(),
        read: Statements {
            context: context(),
            sources: BTreeMap::new(),
            sinks: BTreeMap::new(),
            told: BTreeMap::new(),
            inserts: Vec::new(),
        },
    };
    for (number, statement) in statements.into_iter().enumerate() {
        let place = starts.get(number).copied();
        reader.statement(statement, place).map_err(|error| error.or_at(place))?;
    }
    Ok(reader.read)
}

fn context() -> SessionContext {
    let context = SessionContext::new_with_config(config());
    windows::register(&context);
    context
}

fn config() -> SessionConfig {
    let mut config = SessionConfig::new().with_target_partitions(1);
    let parser = &mut config.options_mut().sql_parser;
    // VARCHAR is Utf8, the type in which values are decoded and rows are written.
    parser.map_string_types_to_utf8view = false;
    parser.collect_spans = true;
    // As in Spark and Flink: otherwise the last row by time would for ever be one without a time.
    parser.default_null_ordering = "nulls_min".to_owned();
    config
}

struct Reader<'a> {
    text: &'a Text,
    views: Vec<String>,
    read: Statements,
}

impl Reader<'_> {
    fn statement(&mut self, statement: Statement, place: Option<Place>) -> Result<(), SqlError> {
        match statement {
            Statement::CreateExternalTable(table) => self.table(table, place),
            Statement::Statement(statement) => match *statement {
                Ast::CreateView(mut view) => {
                    if view.materialized || view.temporary || view.or_alter || view.to.is_some() {
                        return Err(SqlError::at(
                            "only CREATE VIEW name AS SELECT ... is supported: a view is a name for a query",
                            place,
                        ));
                    }
                    self.prepare(&mut view.query, place)?;
                    self.view(Ast::CreateView(view), place)
                }
                Ast::Insert(insert) => self.insert(insert, place),
                Ast::Query(_) => {
                    Err(SqlError::at("this query's result goes nowhere: write INSERT INTO <table> SELECT ...", place))
                }
                other => Err(unsupported(&other.to_string(), place)),
            },
            other => Err(unsupported(&other.to_string(), place)),
        }
    }

    /// Refuses what a query must not contain, leaves the metadata columns out of its wildcards, and rewrites its windows.
    fn prepare(&self, query: &mut Query, place: Option<Place>) -> Result<(), SqlError> {
        let state = self.read.context.state();
        refusals::check(query, &state, self.text, place, &|name| self.taken(name))?;
        narrow_wildcards(query, &|name| self.read.sources.contains_key(name));
        windows::calls::rewrite(query, self.text, place)
    }

    fn taken(&self, name: &str) -> bool {
        self.read.sources.contains_key(name)
            || self.read.sinks.contains_key(name)
            || self.views.iter().any(|view| view == name)
    }

    fn free(&self, name: &str, place: Option<Place>) -> Result<(), SqlError> {
        match self.taken(name) {
            true => Err(SqlError::at(format!("there are two tables or views named {name}"), place)),
            false => Ok(()),
        }
    }

    fn table(&mut self, mut table: CreateExternalTable, place: Option<Place>) -> Result<(), SqlError> {
        let Some(name) = plain_name(&table.name) else {
            return Err(SqlError::at(format!("the table name {} must have one part", table.name), place));
        };
        self.free(&name, place)?;
        let extra = !table.table_partition_cols.is_empty() || !table.order_exprs.is_empty() || table.temporary;
        if extra || table.or_replace || table.if_not_exists {
            return Err(SqlError::at(
                format!(
                    "table {name}: only CREATE EXTERNAL TABLE name (columns) STORED AS ... LOCATION ... OPTIONS (...) is \
                     supported"
                ),
                place,
            ));
        }
        plain_columns(&name, &table, place)?;
        let shown = name.clone();
        let options = options::written(&shown, &std::mem::take(&mut table.options), self.text, place)?;
        let LogicalPlan::Ddl(DdlStatement::CreateExternalTable(planned)) =
            plan(&self.read.context.state(), Statement::CreateExternalTable(table))?
        else {
            return Err(SqlError::at(format!("table {name}: DataFusion made something else of it"), place));
        };
        if let Some(column) = planned.column_defaults.keys().next() {
            return Err(SqlError::at(format!("table {name}: DEFAULT of column {column} is not supported"), place));
        }
        if planned.constraints.iter().any(|constraint| matches!(constraint, Constraint::Unique(_))) {
            return Err(SqlError::at(
                format!("table {name}: UNIQUE is not supported: nothing would check it; a sink has a PRIMARY KEY"),
                place,
            ));
        }
        if planned.schema.fields().is_empty() {
            return Err(SqlError::at(format!("table {name} has no columns: declare them"), place));
        }
        match location(&name, &planned, place.and(self.location_place(&planned, place)))? {
            Location::Kafka(topic) => self.source(name, topic, &planned, options::kafka(options)?, place),
            Location::Cassandra { keyspace, table } => {
                let SinkOptions { create, null_key, told, .. } = options::cassandra(options)?;
                self.sink(name, SinkKind::Cassandra { keyspace, table, create, null_key }, told, &planned, place)
            }
            Location::Console => {
                let declared = if planned.file_type == "JSON" { ConsoleFormat::Json } else { ConsoleFormat::Table };
                let SinkOptions { console_format, told, .. } = options::console(options)?;
                let format = console_format.unwrap_or(declared);
                self.sink(name, SinkKind::Console { format }, told, &planned, place)
            }
            Location::Blackhole => {
                let told = options::blackhole(options)?.told;
                self.sink(name, SinkKind::Blackhole, told, &planned, place)
            }
        }
    }

    fn location_place(&self, table: &PlannedTable, place: Option<Place>) -> Option<Place> {
        self.text.string(table.locations.first()?, place)
    }

    fn source(
        &mut self,
        name: String,
        topic: String,
        table: &PlannedTable,
        options: KafkaOptions,
        place: Option<Place>,
    ) -> Result<(), SqlError> {
        let columns = Arc::clone(table.schema.inner());
        for metadata in Metadata::ALL {
            if columns.index_of(metadata.name()).is_ok() {
                return Err(SqlError::at(
                    format!(
                        "table {name}: {} is a metadata column, which every Kafka table has without declaring it",
                        metadata.name()
                    ),
                    place,
                ));
            }
        }
        if !primary_key(table).is_empty() {
            let message = format!("table {name}: a Kafka topic is a log of records and has no PRIMARY KEY");
            return Err(SqlError::at(message, place));
        }
        let fields = columns.fields().iter().cloned().chain(Metadata::ALL.into_iter().map(Metadata::field));
        let scanned = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        self.read.context.register_table(TableReference::bare(name.as_str()), Arc::new(EmptyTable::new(scanned)))?;
        self.read.sources.insert(name.clone(), SourceTable { name, topic, columns, options, place });
        Ok(())
    }

    fn sink(
        &mut self,
        name: String,
        kind: SinkKind,
        told: Told,
        table: &PlannedTable,
        place: Option<Place>,
    ) -> Result<(), SqlError> {
        let primary_key = primary_key(table);
        if matches!(kind, SinkKind::Cassandra { .. }) && primary_key.is_empty() {
            return Err(SqlError::at(
                format!(
                    "table {name} needs a PRIMARY KEY, which says what a row replaces: add PRIMARY KEY (...) after its \
                     columns (the first is Cassandra's partition key, the rest are clustering columns)"
                ),
                place,
            ));
        }
        let declared = table.schema.inner();
        for field in declared.fields() {
            if !field.is_nullable() && !primary_key.contains(field.name()) {
                let message = format!("table {name}: NOT NULL of column {} is not supported on a sink", field.name());
                return Err(SqlError::at(message, place));
            }
        }
        let fields = declared.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        self.read
            .context
            .register_table(TableReference::bare(name.as_str()), Arc::new(EmptyTable::new(Arc::clone(&schema))))?;
        self.read.told.insert(name.clone(), told);
        self.read.sinks.insert(name.clone(), SinkTable { name, kind, schema, primary_key });
        Ok(())
    }

    fn view(&mut self, statement: Ast, place: Option<Place>) -> Result<(), SqlError> {
        let planned = plan(&self.read.context.state(), Statement::Statement(Box::new(statement)));
        let planned = planned.map_err(|error| self.located(error, place))?;
        let LogicalPlan::Ddl(DdlStatement::CreateView(PlannedView { name, input, definition, .. })) = planned else {
            return Err(SqlError::at("this view is not supported", place));
        };
        let name = name.table().to_owned();
        self.free(&name, place)?;
        let view = ViewTable::new(input.as_ref().clone(), definition);
        self.read.context.register_table(TableReference::bare(name.as_str()), Arc::new(view))?;
        self.views.push(name);
        Ok(())
    }

    fn insert(&mut self, mut insert: Insert, place: Option<Place>) -> Result<(), SqlError> {
        let name = match &insert.table {
            TableObject::TableName(name) => plain_name(name),
            _ => None,
        };
        let Some(name) = name else {
            return Err(SqlError::at("INSERT INTO needs the plain name of a declared table", place));
        };
        let at = Place::of(insert.table.span()).or(place);
        if self.read.sources.contains_key(&name) {
            let message = format!(
                "{name} is a kafka:// table, which can only be read so far; declare a table with LOCATION \
                 'cassandra://...' or 'console://' to write to"
            );
            return Err(SqlError::at(message, at));
        }
        let Some(sink) = self.read.sinks.get(&name).cloned() else {
            return Err(SqlError::at(format!("there is no table {name} to insert into: declare it before"), at));
        };
        if insert.overwrite || insert.replace_into {
            return Err(SqlError::at("only INSERT INTO is supported: a sink's rows are replaced by their key", place));
        }
        let Some(query) = insert.source.as_mut() else {
            return Err(SqlError::at(format!("INSERT INTO {name} needs a SELECT"), place));
        };
        self.prepare(query, place)?;
        let query = query.clone();
        let listed = insert.columns.len();
        let state = self.read.context.state();
        let planned = plan(&state, Statement::Statement(Box::new(Ast::Insert(insert))));
        let planned = planned.map_err(|error| match error.message.starts_with("Column count doesn't match") {
            true => self.column_count(&state, &sink, *query, listed, place),
            false => self.located(error, place),
        })?;
        let LogicalPlan::Dml(DmlStatement { op: WriteOp::Insert(InsertOp::Append), input, .. }) = planned else {
            return Err(SqlError::at("only INSERT INTO ... SELECT is supported", place));
        };
        self.read.inserts.push(InsertInto { sink: name, query: input.as_ref().clone(), place });
        Ok(())
    }

    /// Says which columns the query has and which the table wants.
    fn column_count(
        &self,
        state: &SessionState,
        sink: &SinkTable,
        query: Query,
        listed: usize,
        place: Option<Place>,
    ) -> SqlError {
        let names = |fields: &arrow::datatypes::Fields| {
            fields.iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", ")
        };
        let selected = plan(state, Statement::Statement(Box::new(Ast::Query(Box::new(query)))));
        let found = match &selected {
            Ok(selected) => {
                let fields = selected.schema().fields();
                format!("the query selects {} columns ({})", fields.len(), names(fields))
            }
            Err(_) => "the query selects another number of columns".to_owned(),
        };
        let wanted = if listed > 0 { listed } else { sink.schema.fields().len() };
        let message = format!(
            "{found}, but {} {wanted} ({}): they are matched by position",
            if listed > 0 { format!("INSERT INTO {} lists", sink.name) } else { format!("table {} has", sink.name) },
            names(sink.schema.fields())
        );
        SqlError::at(message, place)
    }

    /// Gives an error of DataFusion that names something the place of that name.
    fn located(&self, error: SqlError, statement: Option<Place>) -> SqlError {
        let quoted = error.message.split(['\'', '"', '`']).nth(1).unwrap_or_default();
        let name = quoted.split('(').next().unwrap_or_default().rsplit('.').next().unwrap_or_default().to_owned();
        let message = match error.message.strip_prefix("table '") {
            Some(_) => format!("there is no table or view {name}: declare it before"),
            None => error.message,
        };
        let place = error.place.or_else(|| if name.is_empty() { None } else { self.text.word(&name, statement) });
        SqlError::at(message, place)
    }
}

fn unsupported(statement: &str, place: Option<Place>) -> SqlError {
    let short: String = statement.chars().take(40).collect();
    let dots = if short.len() < statement.len() { "..." } else { "" };
    SqlError::at(
        format!(
            "`{short}{dots}` is not supported: a pipeline is made of CREATE EXTERNAL TABLE, CREATE VIEW and INSERT INTO \
             ... SELECT"
        ),
        place,
    )
}

/// Refuses what DataFusion would pass over in the declaration of a column.
fn plain_columns(name: &str, table: &CreateExternalTable, place: Option<Place>) -> Result<(), SqlError> {
    for column in &table.columns {
        for ColumnOptionDef { option, .. } in &column.options {
            // The rest of the constraints is judged after planning.
            let known = matches!(
                option,
                ColumnOption::Null
                    | ColumnOption::NotNull
                    | ColumnOption::PrimaryKey(_)
                    | ColumnOption::Unique(_)
                    | ColumnOption::Default(_)
                    | ColumnOption::ForeignKey(_)
                    | ColumnOption::Check(_)
            );
            if !known {
                let message = format!("table {name}: `{option}` of column {} is not supported", column.name);
                return Err(SqlError::at(message, Place::of(column.name.span).or(place)));
            }
        }
    }
    Ok(())
}

/// Plans a statement. Looking up declared tables never waits, so this need not be asynchronous.
fn plan(state: &SessionState, statement: Statement) -> Result<LogicalPlan, SqlError> {
    match state.statement_to_plan(statement).now_or_never() {
        Some(plan) => Ok(plan?),
        None => Err(SqlError::new("the planner waited for something outside of the statements")),
    }
}

fn primary_key(table: &PlannedTable) -> Vec<String> {
    let columns = table.constraints.iter().find_map(|constraint| match constraint {
        Constraint::PrimaryKey(columns) => Some(columns),
        Constraint::Unique(_) => None,
    });
    columns.into_iter().flatten().map(|column| table.schema.field(*column).name().clone()).collect()
}

enum Location {
    Kafka(String),
    Cassandra { keyspace: String, table: String },
    Console,
    Blackhole,
}

fn location(name: &str, table: &PlannedTable, place: Option<Place>) -> Result<Location, SqlError> {
    let error = |message: String| SqlError::at(format!("table {name}: {message}"), place);
    let [written] = table.locations.as_slice() else {
        return Err(error("exactly one LOCATION is needed".into()));
    };
    let Some((scheme, rest)) = written.split_once("://") else {
        return Err(error(format!("LOCATION '{written}' names no connector; write e.g. 'kafka://<topic>'")));
    };
    let format = table.file_type.as_str();
    let expect = |wanted: &[&str], why: &str| match wanted.contains(&format) {
        true => Ok(()),
        false => {
            Err(error(format!("STORED AS {format} is not supported {why}; write STORED AS {}", wanted.join(" or "))))
        }
    };
    match scheme {
        "kafka" => {
            expect(&["JSON"], "for Kafka so far")?;
            let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
            if rest.is_empty() || rest.len() > 249 || !rest.chars().all(legal) || rest == "." || rest == ".." {
                return Err(error(format!("'{rest}' is not the name of a topic; write 'kafka://<topic>'")));
            }
            Ok(Location::Kafka(rest.to_owned()))
        }
        "cassandra" => {
            expect(&["CQL"], "for Cassandra")?;
            let legal = |part: &str| {
                !part.is_empty() && part.len() <= 48 && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            };
            match rest.split_once('/') {
                Some((keyspace, table)) if legal(keyspace) && legal(table) => {
                    Ok(Location::Cassandra { keyspace: keyspace.to_owned(), table: table.to_owned() })
                }
                _ => Err(error(format!("'{written}' is not of the form 'cassandra://<keyspace>/<table>'"))),
            }
        }
        "console" | "blackhole" if !rest.is_empty() => {
            Err(error(format!("'{written}' has something after '{scheme}://': there is nothing to name")))
        }
        "console" => {
            expect(&["TABLE", "JSON", "CONSOLE"], "for the console")?;
            Ok(Location::Console)
        }
        "blackhole" => Ok(Location::Blackhole),
        other => Err(error(format!(
            "there is no connector '{other}://'; known are kafka:// (to read), cassandra://, console:// and blackhole:// \
             (to write)"
        ))),
    }
}
