//! The metadata columns of a Kafka table: every table has them, but `*` does not stand for them.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields, TimeUnit};
use datafusion::sql::sqlparser::ast::{
    ExcludeSelectItem, Ident, ObjectName, Query, Select, SelectItem, SelectItemQualifiedWildcardKind, TableFactor,
    TableWithJoins, VisitMut, VisitorMut, WildcardAdditionalOptions,
};
use strandline_actors::ports::raw;

/// What is known of a record besides its decoded value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Metadata {
    Topic,
    Partition,
    Offset,
    Timestamp,
    Key,
    Value,
    Headers,
    /// When it was read.
    ProcessingTime,
}

impl Metadata {
    /// All of them, in the order in which they follow the declared columns.
    pub(super) const ALL: [Self; 8] = [
        Self::Topic,
        Self::Partition,
        Self::Offset,
        Self::Timestamp,
        Self::Key,
        Self::Value,
        Self::Headers,
        Self::ProcessingTime,
    ];

    /// The column's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Topic => "_topic",
            Self::Partition => "_partition",
            Self::Offset => raw::OFFSET,
            Self::Timestamp => raw::TIMESTAMP,
            Self::Key => raw::KEY,
            Self::Value => raw::VALUE,
            Self::Headers => raw::HEADERS,
            Self::ProcessingTime => "_processing_time",
        }
    }

    /// The column as a query sees it.
    pub(super) fn field(self) -> FieldRef {
        let (data_type, nullable) = match self {
            Self::Topic => (DataType::Utf8, false),
            Self::Partition => (DataType::Int32, false),
            Self::Offset => (DataType::Int64, false),
            Self::Timestamp => (DataType::Timestamp(TimeUnit::Millisecond, None), true),
            Self::Key | Self::Value => (DataType::Binary, true),
            Self::Headers => (headers(), true),
            Self::ProcessingTime => (DataType::Timestamp(TimeUnit::Millisecond, None), false),
        };
        Arc::new(Field::new(self.name(), data_type, nullable))
    }
}

fn headers() -> DataType {
    let header =
        Fields::from(vec![Field::new("key", DataType::Utf8, true), Field::new("value", DataType::Binary, true)]);
    DataType::List(Arc::new(Field::new_list_field(DataType::Struct(header), true)))
}

/// Leaves the metadata columns out of `*` wherever it stands for the columns of a Kafka table.
///
/// Views and subqueries need nothing: they have exactly the columns that they select. (WITH cannot give a table's name
/// to something else: that is refused before.)
pub(super) fn narrow_wildcards(query: &mut Query, is_kafka_table: &dyn Fn(&str) -> bool) {
    let mut narrow = Narrow { is_kafka_table };
    let _ = VisitMut::visit(query, &mut narrow);
}

struct Narrow<'a> {
    is_kafka_table: &'a dyn Fn(&str) -> bool,
}

impl VisitorMut for Narrow<'_> {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        let reads_kafka = match select.from.as_slice() {
            [TableWithJoins { relation: TableFactor::Table { name, .. }, .. }] => {
                plain_name(name).is_some_and(|name| (self.is_kafka_table)(&name))
            }
            _ => false,
        };
        if reads_kafka {
            for item in &mut select.projection {
                if let SelectItem::Wildcard(options)
                | SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(_), options) = item
                {
                    exclude_metadata(options);
                }
            }
        }
        ControlFlow::Continue(())
    }
}

fn exclude_metadata(options: &mut WildcardAdditionalOptions) {
    let mut names: Vec<ObjectName> = match options.opt_exclude.take() {
        None => Vec::new(),
        Some(ExcludeSelectItem::Single(name)) => vec![name],
        Some(ExcludeSelectItem::Multiple(names)) => names,
    };
    if let Some(except) = options.opt_except.take() {
        names.push(except.first_element.into());
        names.extend(except.additional_elements.into_iter().map(ObjectName::from));
    }
    for metadata in Metadata::ALL {
        let name = ObjectName::from(Ident::new(metadata.name()));
        if !names.iter().any(|known| plain_name(known).as_deref() == Some(metadata.name())) {
            names.push(name);
        }
    }
    options.opt_exclude = Some(ExcludeSelectItem::Multiple(names));
}

/// A name of one part, as DataFusion normalises it.
pub(super) fn plain_name(name: &ObjectName) -> Option<String> {
    match name.0.as_slice() {
        [part] => part.as_ident().map(normal),
        _ => None,
    }
}

/// An identifier as DataFusion normalises it: lower case unless it is quoted.
pub(super) fn normal(ident: &Ident) -> String {
    match ident.quote_style {
        Some(_) => ident.value.clone(),
        None => ident.value.to_ascii_lowercase(),
    }
}
