//! Reads the layers and says what is wrong with them: all of it at once, each with the place where it was given.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use config::{Config, ConfigError, FileFormat, Format, Map, Source, Value, ValueKind};
use strsim::damerau_levenshtein;

use super::list::{SETTINGS, Setting};
use super::value::{self, Kind};
use super::{Settings, secret};

/// What every variable of ours begins with.
const PREFIX: &str = "STRANDLINE_";
/// The folders whose TOML files are read unless files are named, the later over the earlier.
const FOLDERS: [&str; 2] = ["/etc/strandline", "config"];
/// librdkafka properties whose names hold underscores.
const UNDERSCORED: [&str; 1] = ["log_level"];

/// Settings that were read.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The settings.
    pub settings: Settings,
    /// Which settings were given, and where.
    pub given: BTreeMap<String, String>,
}

/// What is wrong with the settings, a sentence each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .problems.join("\n"))]
pub struct SettingsError {
    /// The problems.
    pub problems: Vec<String>,
}

impl From<String> for SettingsError {
    fn from(problem: String) -> Self {
        Self { problems: vec![problem] }
    }
}

/// The TOML files to read: the named ones (of a folder, all `*.toml` in order of their names), or else those in
/// `/etc/strandline` and `config`.
pub fn files(named: &[PathBuf]) -> Result<Vec<PathBuf>, SettingsError> {
    let mut files = Vec::new();
    if named.is_empty() {
        for folder in FOLDERS.map(Path::new) {
            if folder.is_dir() {
                files.extend(files_of(folder)?);
            }
        }
        return Ok(files);
    }
    for path in named {
        if path.is_dir() {
            files.extend(files_of(path)?);
        } else if path.is_file() {
            files.push(path.clone());
        } else {
            return Err(format!("--config {}: there is no such file or folder", path.display()).into());
        }
    }
    Ok(files)
}

fn files_of(folder: &Path) -> Result<Vec<PathBuf>, SettingsError> {
    let failed = |error| SettingsError::from(format!("the folder {} cannot be read: {error}", folder.display()));
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "toml") && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Reads the files, each over the one before, and the environment over them.
pub fn load(
    files: &[PathBuf],
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Loaded, SettingsError> {
    let (environment, mut problems) = Layer::of_environment(environment);
    let mut layers = Config::builder();
    for file in files {
        match Layer::read(file) {
            Ok(layer) => layers = layers.add_source(layer),
            Err(problem) => problems.push(problem),
        }
    }
    let layers = match layers.add_source(environment).build() {
        Ok(layers) => layers,
        Err(error) => {
            problems.push(format!("the settings cannot be read: {error}"));
            return Err(SettingsError { problems });
        }
    };
    let mut reading = Reading { problems, tree: serde_json::Map::new(), given: BTreeMap::new() };
    if let ValueKind::Table(sections) = &layers.cache.kind {
        reading.table("", sections);
    }
    let Reading { mut problems, tree, given } = reading;
    match serde_json::from_value::<Settings>(tree.into()) {
        Ok(settings) => {
            contradictions(&settings, &mut problems);
            if problems.is_empty() {
                return Ok(Loaded { settings, given });
            }
        }
        // Every value was checked before, so this names something that the checks do not know.
        Err(error) if problems.is_empty() => problems.push(format!("the settings do not fit together: {error}")),
        Err(_) => {}
    }
    Err(SettingsError { problems })
}

/// What one file or the environment says, each value with the place where it was given.
#[derive(Clone, Debug)]
struct Layer(Map<String, Value>);

impl Source for Layer {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, ConfigError> {
        Ok(self.0.clone())
    }
}

impl Layer {
    fn read(file: &Path) -> Result<Self, String> {
        let place = file.display().to_string();
        let text = std::fs::read_to_string(file).map_err(|error| format!("{place} cannot be read: {error}"))?;
        match FileFormat::Toml.parse(Some(&place), &text) {
            Ok(sections) => Ok(Self(sections)),
            Err(error) => Err(format!("{place} is no TOML: {}", error.to_string().trim_end())),
        }
    }

    fn of_environment(variables: impl IntoIterator<Item = (OsString, OsString)>) -> (Self, Vec<String>) {
        let mut problems = Vec::new();
        let mut sections: Map<String, Value> = Map::new();
        // Sorted, so that a single property comes after, and wins over, the variable with all of them.
        let sorted: BTreeMap<OsString, OsString> = variables.into_iter().collect();
        for (name, text) in sorted {
            let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
            // Compose files and manifests cannot leave a variable out, only empty.
            if text.is_empty() {
                continue;
            }
            let Some((setting, property)) = find(name) else {
                if !of_kubernetes(name) {
                    problems.push(format!(
                        "{name} is no setting; the nearest is {}",
                        nearest(name, SETTINGS.iter().map(Setting::variable))
                    ));
                }
                continue;
            };
            let Some(text) = text.to_str() else {
                problems.push(format!("{name} is no UTF-8 text"));
                continue;
            };
            let origin = name.to_owned();
            let Some((section, key)) = setting.name.split_once('.') else { continue };
            let section =
                sections.entry(section.into()).or_insert_with(|| Value::new(None, ValueKind::Table(Map::new())));
            let ValueKind::Table(section) = &mut section.kind else { continue };
            if setting.kind != Kind::Properties {
                section.insert(key.into(), Value::new(Some(&origin), text));
                continue;
            }
            let given = match property {
                Some(property) => Some([(property, text.to_owned())].into()),
                None => value::properties(text),
            };
            let Some(given) = given else {
                // What was given may hold passwords.
                problems.push(format!("{name} cannot be read: allowed is {}", setting.kind.allowed()));
                continue;
            };
            let table = section.entry(key.into()).or_insert_with(|| Value::new(None, ValueKind::Table(Map::new())));
            if let ValueKind::Table(table) = &mut table.kind {
                table.extend(given.into_iter().map(|(name, text)| (name, Value::new(Some(&origin), text))));
            }
        }
        (Self(sections), problems)
    }
}

/// The setting of a variable, and for a variable of one property the property's name.
fn find(variable: &str) -> Option<(&'static Setting, Option<String>)> {
    SETTINGS.iter().find_map(|setting| {
        let rest = variable.strip_prefix(&setting.variable())?;
        if rest.is_empty() {
            return Some((setting, None));
        }
        let property = rest.strip_prefix("__").filter(|rest| setting.kind == Kind::Properties && !rest.is_empty())?;
        let property = property.to_ascii_lowercase();
        let dotted = if UNDERSCORED.contains(&property.as_str()) { property } else { property.replace('_', ".") };
        Some((setting, Some(dotted)))
    })
}

/// Whether Kubernetes made this variable, as it does in every pod for a Service whose name begins with `strandline`.
fn of_kubernetes(variable: &str) -> bool {
    let rest = variable.trim_start_matches(PREFIX);
    let port = |text: &str| {
        let mut parts = text.split('_');
        parts.next().is_some_and(|port| port.parse::<u16>().is_ok())
            && parts.next().is_some_and(|protocol| matches!(protocol, "TCP" | "UDP" | "SCTP"))
            && matches!(parts.next(), None | Some("PROTO" | "PORT" | "ADDR"))
            && parts.next().is_none()
    };
    !rest.contains("__")
        && (rest == "SERVICE_HOST"
            || rest == "PORT"
            || rest.ends_with("_SERVICE_HOST")
            || rest.ends_with("_PORT")
            || rest.starts_with("SERVICE_PORT")
            || rest.contains("_SERVICE_PORT")
            || rest.strip_prefix("PORT_").is_some_and(port)
            || rest.rsplit_once("_PORT_").is_some_and(|(_, text)| port(text)))
}

/// The name that looks most like the given one, separators aside.
fn nearest(name: &str, candidates: impl Iterator<Item = String>) -> String {
    let plain = |text: &str| text.replace(['_', '.', '-'], "").to_ascii_lowercase();
    let wanted = plain(name);
    candidates.min_by_key(|candidate| damerau_levenshtein(&wanted, &plain(candidate))).unwrap_or_default()
}

/// Walks over what was given and keeps what is right.
struct Reading {
    problems: Vec<String>,
    tree: serde_json::Map<String, serde_json::Value>,
    given: BTreeMap<String, String>,
}

impl Reading {
    fn table(&mut self, prefix: &str, table: &Map<String, Value>) {
        // The order of a hash map would make the order of the problems random.
        let sorted: BTreeMap<&String, &Value> = table.iter().collect();
        for (key, value) in sorted {
            let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
            let known = SETTINGS.iter().find(|setting| setting.name == name);
            let is_section = SETTINGS.iter().any(|setting| setting.name.starts_with(&format!("{name}.")));
            match (&value.kind, known) {
                (_, Some(setting)) => self.setting(setting, value),
                (ValueKind::Table(inner), None) if is_section => self.table(&name, inner),
                _ if is_section => {
                    let place = origin(value);
                    self.problems
                        .push(format!("`{name}` in {place} is a section: write [{name}] and settings below it"));
                }
                (ValueKind::Table(_), None) => {
                    let sections =
                        SETTINGS.iter().filter_map(|setting| Some(setting.name.split_once('.')?.0.to_owned()));
                    let (place, nearest) = (origin(value), nearest(&name, sections));
                    self.problems.push(format!("[{name}] in {place} is no section; the nearest is [{nearest}]"));
                }
                _ => {
                    let (place, names) = (origin(value), SETTINGS.iter().map(|setting| setting.name.to_owned()));
                    let nearest = nearest(&name, names);
                    self.problems.push(format!("`{name}` in {place} is no setting; the nearest is `{nearest}`"));
                }
            }
        }
    }

    fn setting(&mut self, setting: &Setting, value: &Value) {
        if value.kind == ValueKind::Table(Map::new()) {
            return;
        }
        let place = origin(value);
        let Some(read) = setting.kind.read(value) else {
            let what = if place == setting.variable() { place } else { format!("`{}` in {place}", setting.name) };
            let given = match value::text_of(&value.kind) {
                Some(text) if !matches!(setting.kind, Kind::Secret | Kind::Properties) => format!("is `{text}`"),
                _ => "cannot be read".into(),
            };
            self.problems.push(format!("{what} {given}: allowed is {}", setting.kind.allowed()));
            return;
        };
        self.given.insert(setting.name.into(), place);
        if let Some((section, key)) = setting.name.split_once('.') {
            let section = self.tree.entry(section).or_insert_with(|| serde_json::Map::new().into());
            if let serde_json::Value::Object(section) = section {
                section.insert(key.into(), read);
            }
        }
    }
}

/// Where a value was given; of a table, where its parts were.
fn origin(value: &Value) -> String {
    match (&value.kind, value.origin()) {
        (_, Some(origin)) => origin.to_owned(),
        (ValueKind::Table(table), None) => {
            let places: std::collections::BTreeSet<String> = table.values().map(origin).collect();
            places.into_iter().collect::<Vec<_>>().join(", ")
        }
        _ => "the settings".into(),
    }
}

/// What is right by itself but not together.
fn contradictions(settings: &Settings, problems: &mut Vec<String>) {
    let pipeline = &settings.pipeline;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if pipeline.name.len() > 100 || !pipeline.name.chars().all(plain) || pipeline.name.starts_with('.') {
        problems.push(format!(
            "STRANDLINE_PIPELINE__NAME is `{}`: allowed are up to 100 letters, digits, dashes, underscores and dots, with no \
             dot at the beginning",
            pipeline.name
        ));
    }
    if pipeline.sql.is_some() && pipeline.sql_file.is_some() {
        problems
            .push("STRANDLINE_PIPELINE__SQL and STRANDLINE_PIPELINE__SQL_FILE are both given: leave one out".into());
    }
    let supervision = &settings.supervision;
    if supervision.initial_pause > supervision.max_pause {
        problems.push(format!(
            "STRANDLINE_SUPERVISION__INITIAL_PAUSE ({:?}) is longer than STRANDLINE_SUPERVISION__MAX_PAUSE ({:?})",
            supervision.initial_pause, supervision.max_pause
        ));
    }
    let listen = &settings.http.listen;
    let port = listen.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
    if listen != "off" && !matches!(port, Some(Ok(_))) {
        problems.push(format!(
            "STRANDLINE_HTTP__LISTEN is `{listen}`: allowed is an address with a port, such as 127.0.0.1:8080 or \
             0.0.0.0:8080, or off"
        ));
    }
    if let Some(token) = &settings.http.token
        && (token.expose().len() < 16 || !token.expose().bytes().all(|byte| byte.is_ascii_graphic()))
    {
        problems.push(
            "STRANDLINE_HTTP__TOKEN cannot be used: allowed are at least 16 letters, digits and signs without spaces"
                .into(),
        );
    }
    for name in settings.kafka.properties.keys() {
        if name == "bootstrap.servers" || name == "metadata.broker.list" {
            problems.push(format!("`{name}` is given as a Kafka property: use STRANDLINE_KAFKA__BOOTSTRAP_SERVERS"));
        }
        if name.to_ascii_lowercase() != *name {
            let value = if secret::is_secret(&name.to_ascii_lowercase()) { secret::HIDDEN } else { "..." };
            problems
                .push(format!("the Kafka property `{name}`={value} has capital letters: librdkafka's names have none"));
        }
    }
    let replication = settings.cassandra.replication.trim();
    if !(replication.starts_with('{') && replication.ends_with('}') && replication.contains("'class'")) {
        problems.push(format!(
            "STRANDLINE_CASSANDRA__REPLICATION is `{replication}`: allowed is a map as CQL writes it, such as {{'class': \
             'NetworkTopologyStrategy', 'dc1': 3}}"
        ));
    }
    let level = &settings.log.level;
    // A word that is no level would be taken for a module, and silence all others.
    let mut words = level.split(',').map(str::trim).filter(|part| !part.contains('='));
    let unknown = words.find(|word| word.parse::<tracing::level_filters::LevelFilter>().is_err());
    let wrong = match (unknown, tracing_subscriber::EnvFilter::try_new(level)) {
        (Some(word), _) => Some(format!("`{word}` is no level")),
        (None, Err(error)) => Some(error.to_string()),
        (None, Ok(_)) => None,
    };
    if let Some(wrong) = wrong {
        problems.push(format!(
            "STRANDLINE_LOG__LEVEL is `{level}`: allowed is off, error, warn, info, debug or trace, also by module, such as \
             info,strandline::kafka=debug ({wrong})"
        ));
    }
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
