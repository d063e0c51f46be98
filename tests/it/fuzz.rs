//! Everything that reads what others wrote, on many inputs that are nearly right: the bodies of the fuzz targets (fuzz/), run
//! on a bounded number of inputs that are the same in each run. What they found once stands below as a test of its own.

#[path = "../../fuzz/src/lib.rs"]
#[allow(dead_code, unreachable_pub)]
mod bodies;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Makes inputs of seeds.
struct Mutator {
    state: u64,
    seeds: Vec<Vec<u8>>,
    words: &'static [&'static str],
}

impl Mutator {
    fn new(seed: u64, seeds: Vec<Vec<u8>>, words: &'static [&'static str]) -> Self {
        assert!(!seeds.is_empty());
        Self { state: seed, seeds, words }
    }

    /// The files of a folder of fuzz/seeds.
    fn of_files(seed: u64, folder: &str, words: &'static [&'static str]) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(folder);
        let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        Self::new(seed, files.iter().map(|file| std::fs::read(file).unwrap()).collect(), words)
    }

    fn below(&mut self, bound: usize) -> usize {
        // SplitMix64.
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % bound.max(1) as u64) as usize
    }

    /// A piece of an input, of limited length.
    fn piece(&mut self, bytes: &[u8], most: usize) -> std::ops::Range<usize> {
        let from = self.below(bytes.len());
        from..(from + self.below(most)).min(bytes.len())
    }

    fn next(&mut self) -> Vec<u8> {
        let chosen = self.below(self.seeds.len());
        let mut bytes = self.seeds[chosen].clone();
        // Most inputs are one step away from a seed, some many.
        let steps = [1, 1, 1, 2, 3, 6][self.below(6)];
        for _ in 0..steps {
            let at = self.below(bytes.len() + 1);
            match self.below(9) {
                0 => bytes.insert(at, self.below(256) as u8),
                1 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                2 if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
                3 => drop(bytes.drain(self.piece(&bytes.clone(), 40))),
                // The same again, so that things nest and repeat.
                4 => {
                    let piece = self.piece(&bytes.clone(), 30);
                    let again = bytes[piece].repeat(1 + self.below(20));
                    bytes.splice(at..at, again);
                }
                5 => {
                    let other = self.below(self.seeds.len());
                    let other = self.seeds[other].clone();
                    let piece = self.piece(&other, 200);
                    bytes.splice(at..at, other[piece].iter().copied());
                }
                6 => bytes.truncate(at),
                _ if !self.words.is_empty() => {
                    let word = self.words[self.below(self.words.len())];
                    let piece = self.piece(&bytes.clone(), 12);
                    bytes.splice(piece, word.bytes());
                }
                _ => bytes.rotate_left(at),
            }
        }
        bytes
    }

    /// Runs so many inputs, of which some must be right and most must not be; a panic shows the input.
    fn run(mut self, inputs: usize, body: fn(&[u8]) -> bool) {
        let mut taken = 0;
        for number in 0..inputs {
            let input = self.next();
            match catch_unwind(AssertUnwindSafe(|| body(&input))) {
                Ok(right) => taken += usize::from(right),
                Err(_) => panic!("input {number} makes it panic: {:?}\n{input:?}", String::from_utf8_lossy(&input)),
            }
        }
        println!("{taken} of {inputs} inputs are right");
        assert!(taken > inputs / 100 && taken < inputs * 3 / 4, "{taken} of {inputs} inputs are right");
    }
}

const JSON: [&str; 30] = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "\\",
    "null",
    "true",
    "false",
    "-",
    "1e400",
    "1e-400",
    "9223372036854775808",
    "-0.0",
    "0.1",
    "\\ud800",
    "\\udc00",
    "\\u0000",
    "\"n\":",
    "\"d\":",
    "\"l\":",
    "\"s\":",
    "\"v\":",
    "\u{feff}",
    "NaN",
    "[[",
    "{\"a\":",
    "1E5",
];

const SQL: [&str; 60] = [
    " SELECT ",
    " FROM ",
    " WHERE ",
    " GROUP BY ",
    " HAVING ",
    " INSERT INTO ",
    " AND ",
    " OR ",
    " NOT ",
    " NULL ",
    " IS ",
    " IN (",
    " LIKE ",
    " BETWEEN ",
    " CASE WHEN ",
    " END ",
    " CAST(",
    " AS ",
    " DISTINCT ",
    " FILTER (WHERE ",
    " OVER ()",
    " UNION ALL ",
    " JOIN ",
    " ON ",
    " ORDER BY ",
    " LIMIT ",
    " EXISTS (SELECT ",
    " INTERVAL '1 day' ",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ";",
    "*",
    "+",
    "-",
    "/",
    "%",
    "||",
    "'",
    "\"",
    "::",
    "$1",
    "@",
    "->",
    "=>",
    "_timestamp",
    "_headers",
    " count(*) ",
    " sum(v) ",
    " min(DISTINCT k) ",
    " ARRAY[1] ",
    " STRUCT<a INT> ",
    " unnest(",
    " VALUES (1) ",
    "0x7f",
    "1e309",
];

#[test]
fn no_value_makes_the_json_decoder_panic_and_what_it_takes_is_what_was_said() {
    Mutator::of_files(17, "json", &JSON).run(20_000, bodies::json);
}

#[test]
fn no_text_makes_the_planner_panic() {
    Mutator::of_files(19, "sql", &SQL).run(20_000, bodies::sql);
}

#[test]
fn no_bytes_make_the_segment_reader_panic() {
    Mutator::new(23, bodies::segments(), &[]).run(20_000, bodies::segment);
}

#[test]
fn the_seeds_are_right() {
    for file in ["aggregate", "rows", "functions"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fuzz/seeds/sql/{file}.sql"));
        let plan = strandline::sql::plan(&std::fs::read_to_string(path).unwrap());
        assert!(plan.is_ok(), "{file}: {}", plan.unwrap_err());
    }
}

/// Text that nests, in every way that there is, a thousand times and a hundred thousand times: it is planned or refused, and
/// neither the parser nor the planner comes to the end of the stack.
#[test]
fn deep_text_does_not_end_the_process() {
    let nested: [(&str, &str, &str, &str); 18] = [
        ("", "(", "1", ")"),
        ("", "1 + ", "1", ""),
        ("1 = 1", " AND v = 1", "", ""),
        ("v = 1", " OR v = 1", "", ""),
        ("", "NOT ", "true", ""),
        ("", "- ", "1", ""),
        ("", "abs(", "1", ")"),
        ("", "CASE WHEN true THEN ", "1", " END"),
        ("", "CAST(", "1", " AS BIGINT)"),
        ("1", "::BIGINT", "", ""),
        ("", "[", "1", "]"),
        ("l", "[1]", "", ""),
        ("k", " || k", "", ""),
        ("", "(SELECT ", "1", ")"),
        ("", "v IN (", "1", ")"),
        ("v", " IS NOT NULL", "", ""),
        ("", "{'a': ", "1", "}"),
        ("CAST(NULL AS ", "ARRAY<", "INT", ">"),
    ];
    for times in [1_000, 100_000] {
        for (before, open, inner, close) in nested {
            let text = format!("{before}{}{inner}{}", open.repeat(times), close.repeat(times));
            let end = if before.contains("CAST(") { ")" } else { "" };
            let source =
                "CREATE EXTERNAL TABLE o (k VARCHAR, v BIGINT, l BIGINT[]) STORED AS JSON LOCATION 'kafka://o'";
            let sink = "CREATE EXTERNAL TABLE r (x VARCHAR) STORED AS JSON LOCATION 'console://'";
            let statements = [
                format!("{source}; {sink}; INSERT INTO r SELECT {text}{end} FROM o"),
                format!("{source}; {sink}; INSERT INTO r SELECT k FROM o WHERE {text}{end}"),
                format!(
                    "{source} OPTIONS ('rule.a' '{}'); {sink}; INSERT INTO r SELECT k FROM o",
                    text.replace('\'', "''")
                ),
                format!("CREATE EXTERNAL TABLE o (k {text}{end}) STORED AS JSON LOCATION 'kafka://o'"),
            ];
            for statement in &statements {
                bodies::sql(statement.as_bytes());
            }
        }
        bodies::sql(format!("{} SELECT 1", "/*".repeat(times)).as_bytes());
        bodies::sql(format!("INSERT INTO r {} SELECT 1", "SELECT 1 UNION ALL ".repeat(times)).as_bytes());
        bodies::sql(format!("INSERT INTO r WITH {} SELECT 1", "a AS (SELECT 1), ".repeat(times)).as_bytes());
        bodies::sql(";".repeat(times).as_bytes());
        let statement = format!("SELECT k FROM {}o{}", "(SELECT k FROM ".repeat(times), ") AS a".repeat(times));
        bodies::sql(format!("INSERT INTO r {statement}").as_bytes());
    }
}
