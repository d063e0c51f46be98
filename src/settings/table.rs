//! The settings as a table for people, and as a file to start from.

use std::fmt::Write as _;

use super::list::{SETTINGS, STANDARD_VARIABLES};
use super::value::Kind;

const HEAD: &str = "\
# Settings

<!-- Written by `strandline settings`; a test holds it against the code. -->

Layers, each over the one before:

1. the defaults below;
2. TOML files: those named by `--config` (a file or a folder, repeatable), or else all `*.toml` of `/etc/strandline` and
   then of `config` in the working directory, in order of their names;
3. environment variables `STRANDLINE_SECTION__NAME`.

An empty variable counts as not given. A variable that begins with `STRANDLINE_`, or a name in a file, that is not listed
here is an error which names the nearest; only the variables that Kubernetes makes for a Service of that name are passed
over. Times have a unit (`500ms`, `1s`, `5m`), bytes may have one (`512KiB`, `64MiB`). Passwords are never shown.
";

const TAIL: &str = "
## Variables of OpenTelemetry

| variable | meaning |
| --- | --- |
";

/// `docs/settings.md`.
pub fn markdown() -> String {
    let mut text = String::from(HEAD);
    let mut section = "";
    for setting in SETTINGS {
        let (of, name) = setting.name.split_once('.').unwrap_or(("", setting.name));
        if of != section {
            section = of;
            // Writing to a text cannot fail.
            let _ = writeln!(text, "\n## {section}\n\n| variable | in a file | takes | default | meaning |");
            let _ = writeln!(text, "| --- | --- | --- | --- | --- |");
        }
        let default = if setting.default.is_empty() { String::new() } else { format!("`{}`", setting.default) };
        let _ = writeln!(
            text,
            "| `{}` | `{name}` | {} | {default} | {} |",
            setting.variable(),
            setting.kind.unit(),
            setting.meaning
        );
    }
    text.push_str(TAIL);
    for (variable, meaning) in STANDARD_VARIABLES {
        let _ = writeln!(text, "| `{variable}` | {meaning} |");
    }
    text
}

/// `config/default.toml`: every setting with its default, as a file to start from.
pub fn toml() -> String {
    let mut text = String::from(
        "# Every setting with its default. Written by `strandline settings --toml`; a test holds it against the code.\n\
         # Copy what you change into a file of your own: later files win, in order of their names, and the environment\n\
         # wins over all files.\n",
    );
    let mut section = "";
    for setting in SETTINGS {
        let (of, name) = setting.name.split_once('.').unwrap_or(("", setting.name));
        if of != section {
            section = of;
            let _ = writeln!(text, "\n[{section}]");
        }
        for line in wrapped(setting.meaning, 118) {
            let _ = writeln!(text, "# {line}");
        }
        let bare = matches!(setting.kind, Kind::Count(..) | Kind::Flag);
        let _ = match (setting.default, setting.kind) {
            ("", Kind::Properties) => writeln!(text, "# {name} = {{ \"security.protocol\" = \"SASL_SSL\" }}"),
            ("", _) if bare => writeln!(text, "# {name} ="),
            ("", _) => writeln!(text, "# {name} = \"\""),
            (default, _) if bare => writeln!(text, "{name} = {default}"),
            (default, _) => writeln!(text, "{name} = \"{default}\""),
        };
    }
    text
}

fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + word.len() < width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use super::*;
    use crate::settings::{Settings, load};

    fn in_repository(path: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
    }

    #[test]
    fn the_documentation_is_that_of_the_code() {
        for (path, expected, command) in [
            ("docs/settings.md", markdown(), "strandline settings"),
            ("config/default.toml", toml(), "strandline settings --toml"),
        ] {
            let found = std::fs::read_to_string(in_repository(path)).unwrap_or_default();
            assert!(found == expected, "{path} is not what the code says; run: {command} > {path}");
        }
    }

    #[test]
    fn the_sample_file_holds_the_defaults() {
        let loaded = load(&[in_repository("config/default.toml")], []).unwrap();
        assert_eq!(format!("{:?}", loaded.settings), format!("{:?}", Settings::default()));
    }
}
