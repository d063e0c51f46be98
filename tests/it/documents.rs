//! What the documents say of tests is true: those that are named exist, and those that stand for a case are named.

use std::path::Path;

/// All Rust sources of the repository.
fn sources(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            sources(&entry, text);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            *text += &std::fs::read_to_string(entry).unwrap();
        }
    }
}

/// The names of tests in a text: in backquotes, and long enough to be nothing else.
fn named(text: &str) -> impl Iterator<Item = &str> {
    let name = |word: &&str| {
        word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_') && word.matches('_').count() > 1
    };
    text.split('`').skip(1).step_by(2).filter(name)
}

/// Whoever is woken by an alert finds it in the document.
#[test]
fn every_alert_is_explained() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let rules = std::fs::read_to_string(root.join("deploy/prometheus/strandline.rules.yml")).unwrap();
    let document = std::fs::read_to_string(root.join("docs/operations.md")).unwrap();
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    for alert in &alerts {
        assert!(document.contains(&format!("`{alert}`")), "docs/operations.md does not explain {alert}");
    }
    for line in document.lines().filter(|line| line.starts_with("| `Strandline")) {
        let named = line.split('`').skip(1).step_by(2).filter(|name| name.starts_with("Strandline"));
        named.for_each(|name| assert!(alerts.contains(&name), "there is no alert {name}"));
    }
}

#[test]
fn every_case_has_its_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut code = String::new();
    ["src", "tests", "actors"].iter().for_each(|folder| sources(&root.join(folder), &mut code));
    let document = std::fs::read_to_string(root.join("docs/correctness.md")).unwrap();
    let beside_spark = std::fs::read_to_string(root.join("docs/windows-and-spark.md")).unwrap();
    for test in named(&document).chain(named(&beside_spark)) {
        // A line of a macro can be a test too.
        let exists = code.contains(&format!("fn {test}(")) || code.contains(&format!("\n    {test}: \""));
        assert!(exists, "docs/ name {test}, which does not exist");
    }
    let lines = beside_spark.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| what |"));
    for line in lines.filter(|line| !line.starts_with("| example |")) {
        let last = line.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        assert!(named(last).next().is_some(), "no test for {line}");
    }
    let rows: Vec<Vec<&str>> = document
        .lines()
        .skip_while(|line| !line.starts_with("| kind | reference |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    assert!(rows.len() >= 19 && rows.iter().all(|row| row.len() == 4), "{rows:?}");
    for row in &rows {
        assert!(named(row[3]).next().is_some(), "{} has no test", row[0]);
    }
    // Whatever a test stands for has a row, with the same reference, that names the test.
    let mut cases = 0;
    for (at, _) in code.match_indices("/// Case: ").filter(|(at, _)| code[..*at].ends_with(['\n', ' '])) {
        let rest = &code[at..];
        let comment = rest.split("fn ").next().unwrap().replace("///", " ");
        let comment = comment.split_whitespace().collect::<Vec<_>>().join(" ");
        let test = rest.split("fn ").nth(1).unwrap().split('(').next().unwrap();
        let fits = |row: &Vec<&str>| comment.contains(&format!("{} ({})", row[0], row[1])) && row[3].contains(test);
        assert!(rows.iter().any(fits), "no row for {test}: {comment}");
        cases += 1;
    }
    assert!(cases > 25, "{cases} tests name a case");
}
