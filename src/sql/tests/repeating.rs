//! Which queries can be computed again from an earlier state, because every row that they wrote is written again.

use super::harness::planned;

fn reason(source: &str, sink: &str, select: &str) -> &'static str {
    let columns = match select.contains("window") {
        true => "start TIMESTAMP, n BIGINT, PRIMARY KEY (start)",
        false => "k VARCHAR, n BIGINT, PRIMARY KEY (k)",
    };
    let text = format!(
        "CREATE EXTERNAL TABLE orders (k VARCHAR, v BIGINT, ts TIMESTAMP) STORED AS JSON LOCATION 'kafka://orders' {source};
         CREATE EXTERNAL TABLE result ({columns}) STORED AS CQL
           LOCATION 'cassandra://shop/result' {sink};
         INSERT INTO result {select}"
    );
    planned(&text).query().unrepeatable().unwrap_or_default()
}

const TIMED: &str = "OPTIONS ('watermark.column' 'ts')";
const IDLE: &str = "OPTIONS ('watermark.column' 'ts', 'watermark.idle' '1 minute')";
const SILENT: &str = "OPTIONS ('watermark.column' 'ts', 'watermark.close.after' '1 minute')";
const CLOCK: &str = "OPTIONS ('watermark.column' '_processing_time')";
const APPEND: &str = "OPTIONS ('output.mode' 'append')";

#[test]
fn queries_that_do_not_give_the_same_rows_again_are_known() {
    let counts = "SELECT k, count(*) FROM orders GROUP BY k";
    let windows = "SELECT window.start, count(*) FROM orders GROUP BY window(ts, '1 minute')";
    let clock = windows.replace("ts", "_processing_time");
    for (source, sink, select, wanted) in [
        ("", "", counts, ""),
        (IDLE, "", counts, ""),
        (TIMED, "", windows, ""),
        (TIMED, APPEND, windows, ""),
        (TIMED, APPEND, &format!("{windows} HAVING count(*) > 1"), ""),
        ("", "", &format!("{counts} HAVING count(*) > 1"), "removes rows"),
        (
            TIMED,
            "",
            "SELECT k, v FROM orders QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY v) = 1",
            "removes rows",
        ),
        (IDLE, "", windows, "idleness or silence"),
        (IDLE, APPEND, windows, "idleness or silence"),
        (SILENT, APPEND, windows, "idleness or silence"),
        (IDLE, "OPTIONS ('state.ttl' '1 hour')", counts, "idleness or silence"),
        (CLOCK, "", &clock, "processing time"),
        (CLOCK, APPEND, &clock, "processing time"),
    ] {
        let found = reason(source, sink, select);
        assert_eq!(
            (found.contains(wanted), found.is_empty()),
            (true, wanted.is_empty()),
            "{source} {sink} {select}: {found}"
        );
    }
}
