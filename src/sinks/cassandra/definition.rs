//! The CQL that makes the table which a statement declares: it is run for `'sink.create' 'true'`, and shown otherwise.

use arrow::datatypes::{DataType, Field};
use scylla::frame::response::result::{ColumnType, NativeType};

use super::conversion::{Conversion, entry, item, plain};
use crate::cassandra::quote;

/// The words that CQL does not take as names unless they are quoted.
const RESERVED: [&str; 62] = [
    "add",
    "allow",
    "alter",
    "and",
    "apply",
    "asc",
    "authorize",
    "batch",
    "begin",
    "by",
    "columnfamily",
    "create",
    "default",
    "delete",
    "desc",
    "describe",
    "drop",
    "entries",
    "execute",
    "from",
    "full",
    "grant",
    "if",
    "in",
    "index",
    "infinity",
    "insert",
    "into",
    "is",
    "keyspace",
    "limit",
    "materialized",
    "mbean",
    "mbeans",
    "modify",
    "nan",
    "norecursive",
    "not",
    "null",
    "of",
    "on",
    "or",
    "order",
    "primary",
    "rename",
    "replace",
    "revoke",
    "schema",
    "select",
    "set",
    "table",
    "to",
    "token",
    "truncate",
    "unlogged",
    "unset",
    "update",
    "use",
    "using",
    "view",
    "where",
    "with",
];

/// A name as a person would write it in CQL: quoted only where it has to be.
pub(crate) fn name(name: &str) -> String {
    let mut letters = name.bytes();
    let plain = letters.next().is_some_and(|first| first.is_ascii_lowercase())
        && letters.all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'_');
    if plain && RESERVED.binary_search(&name).is_err() { name.to_owned() } else { quote(name) }
}

/// The table's name with its keyspace.
pub(crate) fn qualified(keyspace: &str, table: &str) -> String {
    format!("{}.{}", name(keyspace), name(table))
}

/// Statements as a person runs them.
pub(crate) fn statements(list: &[String]) -> String {
    list.iter().map(|statement| format!("{statement};")).collect::<Vec<_>>().join("\n")
}

/// The columns of a table and the types that they need.
#[derive(Debug)]
pub(crate) struct Definition {
    keyspace: String,
    table: String,
    columns: Vec<Column>,
    primary_key: Vec<String>,
}

#[derive(Debug)]
struct Column {
    name: String,
    cql: String,
    /// The statements that make the types which the column needs, in the order in which they build on each other.
    types: Vec<String>,
}

impl Definition {
    /// Defines the table for these columns. Fails with the first column whose type CQL does not have.
    pub(crate) fn new<'a>(
        keyspace: &str,
        table: &str,
        fields: impl IntoIterator<Item = &'a Field>,
        primary_key: &[String],
    ) -> Result<Self, &'a Field> {
        let mut columns = Vec::new();
        let mut taken = Vec::new();
        for field in fields {
            let mut types = Types { keyspace, statements: Vec::new(), taken: &mut taken };
            let key = primary_key.contains(field.name());
            let path = format!("{table}_{}", field.name());
            let cql = types.cql(field.data_type(), key, key, &path).ok_or(field)?;
            columns.push(Column { name: field.name().clone(), cql, types: types.statements });
        }
        Ok(Self { keyspace: keyspace.to_owned(), table: table.to_owned(), columns, primary_key: primary_key.to_vec() })
    }

    /// The statements that make the table, in order.
    pub(crate) fn create(&self) -> Vec<String> {
        let mut statements: Vec<String> = self.columns.iter().flat_map(|column| column.types.clone()).collect();
        let mut table = format!("CREATE TABLE IF NOT EXISTS {} (\n", qualified(&self.keyspace, &self.table));
        for column in &self.columns {
            table.push_str(&format!("    {} {},\n", name(&column.name), column.cql));
        }
        let key: Vec<String> = self.primary_key.iter().map(|column| name(column)).collect();
        let (partition, clustering) = key.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
        table.push_str(&format!("    PRIMARY KEY (({partition})"));
        for column in clustering {
            table.push_str(&format!(", {column}"));
        }
        table.push_str(")\n)");
        statements.push(table);
        statements
    }

    /// The statements that add columns to a table which is there, in order.
    pub(crate) fn add(&self, missing: &[&str]) -> Vec<String> {
        let missing: Vec<&Column> =
            self.columns.iter().filter(|column| missing.contains(&column.name.as_str())).collect();
        let columns: Vec<String> =
            missing.iter().map(|column| format!("{} {}", name(&column.name), column.cql)).collect();
        let alter = format!("ALTER TABLE {} ADD ({})", qualified(&self.keyspace, &self.table), columns.join(", "));
        missing.iter().flat_map(|column| column.types.clone()).chain([alter]).collect()
    }

    /// The CQL type of a column.
    pub(crate) fn cql(&self, column: &str) -> Option<&str> {
        self.columns.iter().find(|known| known.name == column).map(|column| column.cql.as_str())
    }
}

struct Types<'a> {
    keyspace: &'a str,
    statements: Vec<String>,
    /// The names that are given to types, in all columns.
    taken: &'a mut Vec<String>,
}

/// A name for a new type that needs no quotes: some drivers cannot connect to a cluster that has a type with other names.
fn type_name(path: &str, taken: &[String]) -> String {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '_' };
    let mut made: String = path.chars().map(plain).collect();
    if !made.starts_with(|first: char| first.is_ascii_lowercase()) {
        made.insert_str(0, "t_");
    }
    while taken.contains(&made) || RESERVED.binary_search(&made.as_str()).is_ok() {
        made.push('_');
    }
    made
}

impl Types<'_> {
    /// The CQL type with the same values as an Arrow type. `path` names the types that have to be made for it.
    fn cql(&mut self, from: &DataType, key: bool, frozen: bool, path: &str) -> Option<String> {
        let from = plain(from);
        if let Some(item) = item(from) {
            // A list that is not frozen cannot be written twice without doubling its elements.
            let item = self.cql(item, key, true, &format!("{path}_item"))?;
            return Some(format!("frozen<list<{item}>>"));
        }
        let collection = if let Some((from_key, from_value)) = entry(from) {
            // Maps are left out of keys, since the same one can be written in several orders.
            if key {
                return None;
            }
            let key = self.cql(from_key, true, true, &format!("{path}_key"))?;
            let value = self.cql(from_value, false, true, &format!("{path}_value"))?;
            format!("map<{key}, {value}>")
        } else if let DataType::Struct(fields) = from {
            if fields.is_empty() {
                return None;
            }
            let mut parts = Vec::with_capacity(fields.len());
            for field in fields {
                let cql = self.cql(field.data_type(), key, true, &format!("{path}_{}", field.name()))?;
                parts.push(format!("    {} {cql}", name(field.name())));
            }
            let made = type_name(path, self.taken);
            self.statements.push(format!(
                "CREATE TYPE IF NOT EXISTS {} (\n{}\n)",
                qualified(self.keyspace, &made),
                parts.join(",\n")
            ));
            let cql = format!("frozen<{made}>");
            self.taken.push(made);
            return Some(cql);
        } else {
            return simple_type(from).map(str::to_owned);
        };
        Some(if frozen { format!("frozen<{collection}>") } else { collection })
    }
}

fn simple_type(from: &DataType) -> Option<&'static str> {
    Some(match from {
        DataType::Boolean => "boolean",
        DataType::Int8 => "tinyint",
        DataType::Int16 | DataType::UInt8 => "smallint",
        DataType::Int32 | DataType::UInt16 => "int",
        DataType::Int64 | DataType::UInt32 => "bigint",
        DataType::UInt64 => "varint",
        DataType::Float16 | DataType::Float32 => "float",
        DataType::Float64 => "double",
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) | DataType::Decimal256(..) => {
            "decimal"
        }
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "text",
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => "blob",
        DataType::Date32 | DataType::Date64 => "date",
        DataType::Time32(_) | DataType::Time64(_) => "time",
        DataType::Timestamp(..) => "timestamp",
        _ => return None,
    })
}

/// The simple CQL types that take a column of this type, in words.
pub(crate) fn simple_types_for(from: &DataType, key: bool) -> Vec<&'static str> {
    [
        (NativeType::Boolean, "boolean"),
        (NativeType::TinyInt, "tinyint"),
        (NativeType::SmallInt, "smallint"),
        (NativeType::Int, "int"),
        (NativeType::BigInt, "bigint"),
        (NativeType::Varint, "varint"),
        (NativeType::Decimal, "decimal"),
        (NativeType::Float, "float"),
        (NativeType::Double, "double"),
        (NativeType::Text, "text"),
        (NativeType::Ascii, "ascii"),
        (NativeType::Blob, "blob"),
        (NativeType::Uuid, "uuid"),
        (NativeType::Timeuuid, "timeuuid"),
        (NativeType::Inet, "inet"),
        (NativeType::Date, "date"),
        (NativeType::Time, "time"),
        (NativeType::Timestamp, "timestamp"),
    ]
    .into_iter()
    .filter(|(to, _)| Conversion::choose(from, &ColumnType::Native(to.clone()), key).is_some())
    .map(|(_, name)| name)
    .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::str::FromStr;

    use super::*;

    #[test]
    fn reserved_words_are_sorted_so_that_they_are_found() {
        assert!(RESERVED.is_sorted());
        assert_eq!(name("select"), "\"select\"");
        assert_eq!(name("selected_1"), "selected_1");
        assert_eq!(name("Item"), "\"Item\"");
        assert_eq!(name("a\"b"), "\"a\"\"b\"");
        assert_eq!(name("1st"), "\"1st\"");
        assert_eq!(name(""), "\"\"");
    }

    #[test]
    fn the_documented_types_are_those_that_fit() {
        let document = include_str!("../../../docs/sinks.md");
        let (_, table) = document.split_once("| SQL | Arrow | created as | also fits |").unwrap();
        let mut checked = 0;
        for line in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let (arrow, created, others) = (cells[2].trim_matches('`'), cells[3], cells[4]);
            if matches!(arrow, "List" | "Map" | "Struct") {
                continue;
            }
            let from = DataType::from_str(arrow).unwrap();
            assert_eq!(simple_type(&from), Some(created), "{line}");
            // Words in brackets, and after the last name, are explanations.
            let mut documented = vec![created];
            documented.extend(others.split(',').filter_map(|other| other.split_whitespace().next()));
            documented.retain(|word| *word != "each");
            documented.sort_unstable();
            let mut fitting = simple_types_for(&from, false);
            fitting.sort_unstable();
            assert_eq!(fitting, documented, "{line}");
            checked += 1;
        }
        assert_eq!(checked, 19);
    }

    #[test]
    fn types_that_a_table_needs_come_before_it() {
        let point = || DataType::Struct(vec![Field::new("x", DataType::Int32, true)].into());
        let line = DataType::Struct(vec![Field::new("From", point(), true), Field::new("to", point(), true)].into());
        let fields = [
            Field::new("k", DataType::Utf8, false),
            Field::new("order", DataType::new_list(DataType::new_list(DataType::Date32, true), true), true),
            Field::new("line", line, true),
        ];
        let definition = Definition::new("shop", "T 1", &fields, &["k".into(), "order".into()]).unwrap();
        let expected = [
            "CREATE TYPE IF NOT EXISTS shop.t_1_line_from (\n    x int\n)",
            "CREATE TYPE IF NOT EXISTS shop.t_1_line_to (\n    x int\n)",
            "CREATE TYPE IF NOT EXISTS shop.t_1_line (\n    \"From\" frozen<t_1_line_from>,\n    \"to\" frozen<t_1_line_to>\n)",
            "CREATE TABLE IF NOT EXISTS shop.\"T 1\" (\n    k text,\n    \"order\" frozen<list<frozen<list<date>>>>,\n    \
             line frozen<t_1_line>,\n    PRIMARY KEY ((k), \"order\")\n)",
        ];
        assert_eq!(definition.create(), expected);
    }
}
