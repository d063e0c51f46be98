//! Whoever is about to change something is asked first.

use std::io::{BufRead, IsTerminal, Write};

use super::Failure;

/// Goes on if the change was agreed to by `--yes` or is now. `what` says what would happen, as a sentence without its end.
pub(super) fn confirm(yes: bool, what: &str) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(Failure::usage(format!("{what}: nothing was changed, since nobody agreed; --yes does")));
    }
    let mut stderr = std::io::stderr();
    // Whoever cannot read the question does not agree.
    let _ = write!(stderr, "{what}. Go on? [y/N] ");
    let _ = stderr.flush();
    let mut answer = String::new();
    let read = stdin.lock().read_line(&mut answer);
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" if read.is_ok() => Ok(()),
        _ => Err(Failure::usage("nothing was changed")),
    }
}
