//! Text that nests: up to the bound it works everywhere, and beyond it is refused before anybody goes down into it.

use super::harness::{log, planned, refused, run_stage, total};

const SOURCE: &str = "CREATE EXTERNAL TABLE o (k VARCHAR, v BIGINT) STORED AS JSON LOCATION 'kafka://o'";
const SINK: &str = "CREATE EXTERNAL TABLE r (x VARCHAR) STORED AS JSON LOCATION 'console://'";

/// The deepest chains that are let through are planned, described and evaluated, on the stack of an actor's thread.
#[test]
fn the_deepest_text_that_is_let_through_is_evaluated() {
    for (first, more) in [("v", " + v"), ("k", " || k"), ("v = 1", " OR v = 1")] {
        let most = 380 / more.matches(['+', '|', 'O', '=']).count().min(2);
        let chain = format!("{first}{}", more.repeat(most));
        for sql in [
            format!("{SOURCE}; {SINK}; INSERT INTO r SELECT {chain} FROM o"),
            format!("{SOURCE}; {SINK}; INSERT INTO r SELECT k FROM o WHERE ({chain}) IS NOT NULL"),
            format!("{SOURCE} OPTIONS ('rule.a' '({chain}) IS NOT NULL'); {SINK}; INSERT INTO r SELECT k FROM o"),
            format!(
                "{SOURCE}; {}; INSERT INTO r SELECT k, max({chain}) FROM o GROUP BY k",
                SINK.replace("x VARCHAR", "x VARCHAR, y VARCHAR, PRIMARY KEY (x)")
            ),
        ] {
            let plan = planned(&sql);
            let evaluated = std::thread::Builder::new().stack_size(2 << 20).spawn(move || {
                let output = run_stage(&plan, &log(["{\"k\":\"a\",\"v\":1}", "{\"v\":2}"]), 2, 0, 2);
                drop(plan);
                total(&output).total()
            });
            assert_eq!(evaluated.unwrap().join().unwrap(), 2);
        }
    }
}

#[test]
fn text_beyond_the_bound_is_refused_with_its_place() {
    for text in
        ["v + ".repeat(1_000) + "v", "(".repeat(1_000) + "v" + &")".repeat(1_000), "NOT ".repeat(1_000) + "true"]
    {
        let message = refused(&format!("{SOURCE};\n{SINK};\nINSERT INTO r SELECT k, {text} FROM o"));
        assert!(message.starts_with("line 3, column ") && message.contains("deeper than 400 levels here"), "{message}");
        let message =
            refused(&format!("{SOURCE} OPTIONS ('rule.a' '{text} = 1'); {SINK}; INSERT INTO r SELECT k FROM o"));
        assert!(message.contains("rule 'a': the statement nests deeper than 400 levels"), "{message}");
    }
    // Commas do not end a chain of set operations, nor a type.
    refused(&format!("{SOURCE}; {SINK}; INSERT INTO r {} SELECT 1, 2", "SELECT 1, 2 UNION ALL ".repeat(2_000)));
    refused(&format!(
        "CREATE EXTERNAL TABLE o (k {}INT) STORED AS JSON LOCATION 'kafka://o'",
        "STRUCT<a INT, b ".repeat(2_000)
    ));
}

/// Breadth is no depth: many columns, many values and many branches are let through.
#[test]
fn breadth_is_let_through() {
    let columns: String = (0..1_500).map(|n| format!(", c{n} DECIMAL(12, 2) NOT NULL")).collect();
    let sums: Vec<String> = (0..1_500).map(|n| format!("c{n} * 2 + 1")).collect();
    let branches: String = (0..1_000).map(|n| format!("WHEN v = {n} THEN 'x{n}' ")).collect();
    let values: Vec<String> = (0..5_000).map(|n| n.to_string()).collect();
    let sql = format!(
        "CREATE EXTERNAL TABLE o (k VARCHAR, v BIGINT{columns}) STORED AS JSON LOCATION 'kafka://o'; {SINK};
         INSERT INTO r SELECT CASE {branches} ELSE concat({}) END FROM o WHERE v IN ({})",
        sums[..100].join(", "),
        values.join(", ")
    );
    planned(&sql);
}

/// Views that name a column of the one below twice double it each time.
#[test]
fn what_grows_by_views_is_refused_in_time() {
    for (body, part) in [("v + v", "more than 50000 parts"), ("v + 1", "")] {
        let mut sql = format!("{SOURCE}; CREATE VIEW w0 AS SELECT v FROM o;");
        for n in 1..60 {
            sql += &format!("CREATE VIEW w{n} AS SELECT {body} AS v FROM w{};", n - 1);
        }
        sql += &format!("{SINK}; INSERT INTO r SELECT v FROM w59");
        if part.is_empty() {
            planned(&sql);
        } else {
            let message = refused(&sql);
            assert!(message.contains(part), "{message}");
        }
    }
    let deep = format!("v{}", " + 1".repeat(100));
    let mut sql = format!("{SOURCE}; CREATE VIEW w0 AS SELECT v FROM o;");
    for n in 1..60 {
        sql += &format!("CREATE VIEW w{n} AS SELECT {deep} AS v FROM w{};", n - 1);
    }
    let message = refused(&format!("{sql}{SINK}; INSERT INTO r SELECT v FROM w59"));
    assert!(message.contains("deeper than 400 levels once the views"), "{message}");
    let many: String = (0..200).map(|n| format!("CREATE VIEW w{n} AS SELECT v FROM o;")).collect();
    let message = refused(&format!("{SOURCE}; {many} {SINK}; INSERT INTO r SELECT v FROM w0"));
    assert!(message.contains("more than 100 views"), "{message}");
}
