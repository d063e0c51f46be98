//! The command line.

use std::process::ExitCode;


use crate::settings::SettingsError;

/// What the process says to whoever started it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All went well.
    Done,
    /// It could not go on.
    Failed,
    /// The settings, the statements or the command line are wrong.
    Usage,
    /// Another process took the pipeline over.
    SteppedDown,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::SteppedDown => 75,
        })
    }
}

/// Why a command ended without having done what it is for.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What the process says of it.
    pub exit: Exit,
    /// What went wrong and what to do.
    pub message: String,
}

impl Failure {
    /// Something that is wrong with what was given.
    pub fn usage(message: impl ToString) -> Self {
        Self { exit: Exit::Usage, message: message.to_string() }
    }

    /// Something that went wrong on the way.
    pub fn failed(message: impl ToString) -> Self {
        Self { exit: Exit::Failed, message: message.to_string() }
    }
}

impl From<SettingsError> for Failure {
    fn from(error: SettingsError) -> Self {
        Self::usage(error)
    }
}
