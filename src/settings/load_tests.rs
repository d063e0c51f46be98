//! The layers, and every kind of mistake in them.
#![allow(clippy::unwrap_used)]

use super::*;

fn env(variables: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
}

fn from_env(variables: &[(&str, &str)]) -> Result<Loaded, SettingsError> {
    load(&[], env(variables))
}

fn problems(variables: &[(&str, &str)]) -> Vec<String> {
    from_env(variables).unwrap_err().problems
}

/// Files in a folder of their own, which is deleted at the end.
struct Files(PathBuf);

impl Files {
    fn new(contents: &[(&str, &str)]) -> Self {
        let folder = std::env::temp_dir().join(format!("strandline-settings-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&folder).unwrap();
        for (name, content) in contents {
            std::fs::write(folder.join(name), content).unwrap();
        }
        Self(folder)
    }

    fn load(&self, variables: &[(&str, &str)]) -> Result<Loaded, SettingsError> {
        load(&files(std::slice::from_ref(&self.0)).unwrap(), env(variables))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn nothing_given_means_the_defaults() {
    let loaded = from_env(&[("PATH", "/bin"), ("STRANDLINER", "x")]).unwrap();
    assert_eq!(format!("{:?}", loaded.settings), format!("{:?}", Settings::default()));
    assert!(loaded.given.is_empty());
}

#[test]
fn the_environment_wins_over_files_and_later_files_over_earlier_ones() {
    let files = Files::new(&[
        (
            "10.toml",
            "[http]\nlisten = \"127.0.0.1:1\"\n[checkpoint]\ninterval = \"7s\"\n[batch]\nrows = 5\nbytes = 77\n",
        ),
        ("20.toml", "[http]\nlisten = \"127.0.0.1:2\"\n[batch]\nrows = 6\n[cassandra]\ntls = true\n"),
        ("notes.txt", "not TOML"),
    ]);
    let loaded = files.load(&[("STRANDLINE_BATCH__ROWS", "9"), ("STRANDLINE_CHECKPOINT__INTERVAL", "")]).unwrap();
    assert_eq!(loaded.settings.http.listen, "127.0.0.1:2");
    assert_eq!(loaded.settings.checkpoint.interval.as_secs(), 7);
    assert_eq!((loaded.settings.batch.rows, loaded.settings.batch.bytes), (9, 77));
    assert!(loaded.settings.cassandra.tls);
    assert_eq!(loaded.given["batch.rows"], "STRANDLINE_BATCH__ROWS");
    assert!(loaded.given["http.listen"].ends_with("20.toml"), "{:?}", loaded.given);
}

#[test]
fn kafka_properties_come_whole_one_by_one_and_from_files() {
    let files = Files::new(&[(
        "a.toml",
        "[kafka.properties]\n\"security.protocol\" = \"PLAINTEXT\"\n\"check.crcs\" = false\n\"sasl.username\" = \"file\"\n",
    )]);
    let loaded = files
        .load(&[
            ("STRANDLINE_KAFKA__PROPERTIES", r#"{"security.protocol": "SASL_SSL", "sasl.password": "a"}"#),
            ("STRANDLINE_KAFKA__PROPERTIES__SASL_PASSWORD", "b=c"),
            ("STRANDLINE_KAFKA__PROPERTIES__LOG_LEVEL", "7"),
        ])
        .unwrap();
    let expected: BTreeMap<String, String> = [
        ("security.protocol", "SASL_SSL"),
        ("check.crcs", "false"),
        ("sasl.username", "file"),
        ("sasl.password", "b=c"),
        ("log_level", "7"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    assert_eq!(loaded.settings.kafka.properties, expected);
}

#[test]
fn unknown_variables_suggest_the_nearest() {
    for (given, nearest) in [
        ("STRANDLINE_KAFKA__BOOTSTRAP_SERVER", "STRANDLINE_KAFKA__BOOTSTRAP_SERVERS"),
        ("STRANDLINE_KAFKA_BOOTSTRAP_SERVERS", "STRANDLINE_KAFKA__BOOTSTRAP_SERVERS"),
        ("STRANDLINE_PIPELINE__SQLFILE", "STRANDLINE_PIPELINE__SQL_FILE"),
        ("STRANDLINE_CHECKPOINT__INTERVALL", "STRANDLINE_CHECKPOINT__INTERVAL"),
        ("STRANDLINE_HTTP_LISTEN", "STRANDLINE_HTTP__LISTEN"),
        ("STRANDLINE_http__listen", "STRANDLINE_HTTP__LISTEN"),
        ("STRANDLINE_CASANDRA__NODES", "STRANDLINE_CASSANDRA__NODES"),
        ("STRANDLINE_KAFKA__PROPERTIES__", "STRANDLINE_KAFKA__PROPERTIES"),
    ] {
        assert_eq!(problems(&[(given, "x")]), [format!("{given} is no setting; the nearest is {nearest}")]);
    }
}

#[test]
fn variables_that_kubernetes_makes_are_passed_over() {
    // As a Service of the name `strandline` or `strandline-status` puts them into every pod of the namespace.
    let loaded = from_env(&[
        ("STRANDLINE_SERVICE_HOST", "10.0.0.1"),
        ("STRANDLINE_SERVICE_PORT", "8080"),
        ("STRANDLINE_SERVICE_PORT_HTTP", "8080"),
        ("STRANDLINE_PORT", "tcp://10.0.0.1:8080"),
        ("STRANDLINE_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
        ("STRANDLINE_PORT_8080_TCP_PROTO", "tcp"),
        ("STRANDLINE_PORT_8080_TCP_PORT", "8080"),
        ("STRANDLINE_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ("STRANDLINE_STATUS_SERVICE_HOST", "10.0.0.1"),
        ("STRANDLINE_STATUS_SERVICE_PORT_HTTP", "8080"),
        ("STRANDLINE_STATUS_PORT", "tcp://10.0.0.1:8080"),
        ("STRANDLINE_STATUS_PORT_8080_TCP_ADDR", "10.0.0.1"),
    ]);
    assert!(loaded.is_ok(), "{loaded:?}");
    assert_eq!(problems(&[("STRANDLINE_PORT_NUMBER", "1")]).len(), 1);
    assert_eq!(problems(&[("STRANDLINE_HTTP__PORT", "1")]).len(), 1);
}

#[test]
fn wrong_values_say_what_is_allowed() {
    for (variable, given, allowed) in [
        ("STRANDLINE_CHECKPOINT__INTERVAL", "5", "a time with its unit, such as 500ms, 1s or 5m, not below 1ms"),
        ("STRANDLINE_BATCH__ROWS", "0", "a whole number from 1 to 4294967295"),
        ("STRANDLINE_STORE__KIND", "redis", "local or cassandra"),
        ("STRANDLINE_CASSANDRA__TLS", "yes", "true or false"),
        ("STRANDLINE_KAFKA__FETCH_MEMORY", "1KiB", "a number of bytes, such as 65536, 512KiB or 64MiB, not below 1MiB"),
    ] {
        assert_eq!(problems(&[(variable, given)]), [format!("{variable} is `{given}`: allowed is {allowed}")]);
    }
}

#[test]
fn all_problems_are_told_at_once() {
    let found = problems(&[
        ("STRANDLINE_BATCH__ROWS", "many"),
        ("STRANDLINE_LOG__FORMAT", "xml"),
        ("STRANDLINE_HTTP__LISTEN", "8080"),
        ("STRANDLINE_NONSENSE", "1"),
        ("STRANDLINE_PIPELINE__NAME", "a b"),
        ("STRANDLINE_LOG__LEVEL", "strandline=loud"),
        ("STRANDLINE_SUPERVISION__INITIAL_PAUSE", "2m"),
    ]);
    for expected in [
        "STRANDLINE_NONSENSE is no setting",
        "STRANDLINE_BATCH__ROWS is `many`",
        "STRANDLINE_LOG__FORMAT is `xml`: allowed is text or json",
        "STRANDLINE_HTTP__LISTEN is `8080`",
        "STRANDLINE_PIPELINE__NAME is `a b`",
        "STRANDLINE_LOG__LEVEL is `strandline=loud`",
        "STRANDLINE_SUPERVISION__INITIAL_PAUSE (120s) is longer than STRANDLINE_SUPERVISION__MAX_PAUSE (60s)",
    ] {
        assert!(found.iter().any(|problem| problem.starts_with(expected)), "{expected} in {found:#?}");
    }
    assert_eq!(found.len(), 7, "{found:#?}");
}

#[test]
fn problems_in_files_name_the_file() {
    let files = Files::new(&[("a.toml", "[kafka]\nbootstrap = \"x\"\nclients = 0\n[chekpoint]\ninterval = \"1s\"\n")]);
    let found = files.load(&[]).unwrap_err().problems;
    let file = files.0.join("a.toml").display().to_string();
    assert_eq!(
        found,
        [
            format!("[chekpoint] in {file} is no section; the nearest is [checkpoint]"),
            format!("`kafka.bootstrap` in {file} is no setting; the nearest is `kafka.bootstrap_servers`"),
            format!("`kafka.clients` in {file} is `0`: allowed is a whole number from 1 to 64"),
        ]
    );

    let files = Files::new(&[("a.toml", "kafka = 5\n")]);
    let found = files.load(&[]).unwrap_err().problems;
    assert!(found[0].ends_with("a.toml is a section: write [kafka] and settings below it"), "{found:?}");

    let files = Files::new(&[("a.toml", "[kafka\n")]);
    let found = files.load(&[]).unwrap_err().problems;
    assert!(found[0].contains("a.toml is no TOML: "), "{found:?}");
}

#[test]
fn a_named_file_has_to_exist() {
    let error = files(&["/nowhere/at/all.toml".into()]).unwrap_err();
    assert_eq!(error.to_string(), "--config /nowhere/at/all.toml: there is no such file or folder");
}

#[test]
fn passwords_are_in_no_message() {
    let files = Files::new(&[("a.toml", "[cassandra]\npassword = [\"geheim\"]\n[kafka]\nproperties = \"geheim\"\n")]);
    let mut messages = files.load(&[]).unwrap_err().problems;
    messages.extend(problems(&[("STRANDLINE_KAFKA__PROPERTIES", "{\"sasl.password\": \"geheim\"")]));
    messages.extend(problems(&[("STRANDLINE_KAFKA__PROPERTIES", "{\"Sasl.Password\": \"geheim\"}")]));
    assert_eq!(messages.len(), 4, "{messages:#?}");
    for message in &messages {
        assert!(!message.contains("geheim"), "{message}");
    }
}

#[test]
fn statements_come_from_one_place() {
    let found = problems(&[("STRANDLINE_PIPELINE__SQL", "SELECT 1"), ("STRANDLINE_PIPELINE__SQL_FILE", "a.sql")]);
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("both given"), "{found:?}");
}

/// Every name of the list is a field of the settings and the other way round, and the listed defaults are those of the
/// code.
#[test]
fn the_list_is_the_settings() {
    let defaults = serde_json::to_value(Settings::default()).unwrap();
    let mut fields = BTreeMap::new();
    for (section, settings) in defaults.as_object().unwrap() {
        for (name, value) in settings.as_object().unwrap() {
            fields.insert(format!("{section}.{name}"), value.clone());
        }
    }
    let listed: BTreeMap<String, &Setting> = SETTINGS.iter().map(|setting| (setting.name.into(), setting)).collect();
    assert_eq!(listed.len(), SETTINGS.len(), "a name is listed twice");
    assert_eq!(fields.keys().collect::<Vec<_>>(), listed.keys().collect::<Vec<_>>());
    for (name, setting) in listed {
        let expected = match (setting.kind, setting.default) {
            (Kind::Properties, "") => serde_json::json!({}),
            (_, "") if fields[&name].is_null() => serde_json::Value::Null,
            (kind, default) => kind.read(&Value::new(None, default)).unwrap(),
        };
        assert_eq!(fields[&name], expected, "the default of {name}");
    }
}
