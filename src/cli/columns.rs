//! Lines in columns, for people.

use std::fmt::Write as _;

/// Aligns cells: a column whose head begins with `>` to the right.
pub(super) fn columns<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let names = head.map(|name| name.trim_start_matches('>').to_owned());
    let widths: [usize; N] = std::array::from_fn(|n| {
        std::iter::once(&names).chain(rows).map(|row| row[n].chars().count()).max().unwrap_or(0)
    });
    let mut text = String::new();
    for row in std::iter::once(&names).chain(rows) {
        let mut line = String::new();
        for (n, cell) in row.iter().enumerate() {
            let width = widths[n];
            // Writing to a text cannot fail.
            let _ = if head[n].starts_with('>') {
                write!(line, "{cell:>width$}  ")
            } else {
                write!(line, "{cell:width$}  ")
            };
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// A number that may not be known.
pub(super) fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}

/// A number of things, with their name in the singular or the plural.
pub(super) fn count(number: usize, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stand_below_each_other() {
        let rows = [["orders".to_owned(), "7".to_owned()], ["o".to_owned(), "123456".to_owned()]];
        let text = columns(["TOPIC", ">OFFSET"], &rows);
        assert_eq!(text, "TOPIC   OFFSET\norders       7\no       123456\n");
        assert_eq!((count(1, "shard"), count(2, "shard")), ("1 shard".into(), "2 shards".into()));
    }
}
