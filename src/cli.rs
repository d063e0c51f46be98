//! The command line: reads it, does what it says, and tells the outcome by the exit code and, if something went wrong, by
//! a sentence on standard error.

mod check;
mod checkpoints;
mod columns;
mod confirm;
mod explain;
mod letters;
mod offsets;
mod pause;
mod replay;
mod rewind;
mod run;
mod status;
mod stored;

use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use strandline_actors::ports::StoreError;

use crate::cassandra::CassandraError;
use crate::demo::{self, DemoArguments};
use crate::http::HttpError;
use crate::kafka::KafkaError;
use crate::nexmark::{self, NexmarkArguments};
use crate::service::ServiceError;
use crate::settings::{self, Loaded, SettingsError, files, load};
use crate::sinks::SinkOpenError;
use crate::stores::OpenError;
use crate::stores::existing::ExistingError;
use crate::telemetry::TelemetryError;

pub(crate) use run::Signals;

/// Reads Kafka, runs a SQL pipeline, and keeps offsets and state in Cassandra, so that nothing is lost or counted twice.
#[derive(Debug, Parser)]
#[command(
    name = "strandline",
    version,
    after_help = "Settings are environment variables STRANDLINE_SECTION__NAME; `strandline settings` lists them all.\n\n\
                  Exit codes: 0 all went well; 1 it could not go on, starting again may help; 2 what was given is wrong, \
                  starting again changes nothing; 75 another process took the pipeline over."
)]
struct CommandLine {
    /// A TOML file with settings, or a folder of them; may be repeated. Without it, /etc/strandline/*.toml and
    /// config/*.toml are read. The environment wins over all files.
    #[arg(long, global = true, value_name = "PATH")]
    config: Vec<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Checks the settings and the statements, and shows what would be read, computed, written and kept.
    Check {
        /// Also checks that Kafka, the store and the tables that are written answer. Changes nothing there.
        #[arg(long)]
        connect: bool,
    },
    /// Runs the pipeline until SIGTERM or SIGINT.
    Run,
    /// Shows how the pipeline is: asks the running service, or else reads the store. Changes nothing.
    Status {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Shows what the statements become, part by part, without connecting to anything.
    Explain {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Shows where the pipeline stands in each partition, or moves it back.
    Offsets {
        #[command(subcommand)]
        ask: offsets::Ask,
    },
    /// Shows the states that are stored, and whether they can be read. Changes nothing.
    Checkpoints {
        #[command(subcommand)]
        ask: checkpoints::Ask,
    },
    /// Tells the running service to read the pipeline or a partition no more, until it is resumed, across restarts.
    Pause {
        #[command(flatten)]
        scope: pause::Scope,
    },
    /// Tells the running service to go on with what is paused or halted.
    Resume {
        #[command(flatten)]
        resumed: pause::Resumed,
    },
    /// Shows the records of the pipeline that could not be processed, or sends them again.
    DeadLetters {
        #[command(subcommand)]
        ask: letters::Ask,
    },
    /// Shows it all in one process, with an embedded Kafka and an embedded store, while its actors are killed.
    Demo(DemoArguments),
    /// Fills the topics of the Nexmark benchmark, over which the queries in config/nexmark run.
    Nexmark(NexmarkArguments),
    /// Lists all settings.
    Settings {
        /// As a TOML file with the defaults.
        #[arg(long)]
        toml: bool,
    },
}

/// What the process says to whoever started it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All went well.
    Done,
    /// It could not go on; starting again may help.
    Failed,
    /// What was given is wrong; starting again changes nothing.
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

    fn of(may_pass: bool, message: impl ToString) -> Self {
        if may_pass { Self::failed(message) } else { Self::usage(message) }
    }
}

impl From<SettingsError> for Failure {
    fn from(error: SettingsError) -> Self {
        Self::usage(error)
    }
}

impl From<TelemetryError> for Failure {
    fn from(error: TelemetryError) -> Self {
        Self::usage(error)
    }
}

impl From<HttpError> for Failure {
    fn from(error: HttpError) -> Self {
        Self::failed(error)
    }
}

impl From<KafkaError> for Failure {
    fn from(error: KafkaError) -> Self {
        Self::of(matches!(error, KafkaError::Thread(_)), error)
    }
}

impl From<CassandraError> for Failure {
    fn from(error: CassandraError) -> Self {
        Self::of(error.may_pass(), error)
    }
}

impl From<SinkOpenError> for Failure {
    fn from(error: SinkOpenError) -> Self {
        Self::of(error.may_pass(), error)
    }
}

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Self {
        match error {
            ServiceError::Kafka(error) => error.into(),
            ServiceError::Sink(error) => error.into(),
            ServiceError::Store(OpenError::Connection(error)) => error.into(),
            ServiceError::Store(error) => Self::failed(error),
            ServiceError::Refused(StoreError::Newer(_)) => Self::usage(error),
            ServiceError::Refused(_) | ServiceError::Rewinding { .. } => Self::failed(error),
            error => Self::usage(error),
        }
    }
}

impl From<ExistingError> for Failure {
    fn from(error: ExistingError) -> Self {
        match error {
            ExistingError::Store(OpenError::Connection(error)) => error.into(),
            ExistingError::Store(error) => Self::failed(error),
            ExistingError::NoPipeline { .. } => Self::usage(error),
        }
    }
}

/// Does what the command line says.
pub fn main() -> ExitCode {
    let command_line = match CommandLine::try_parse() {
        Ok(command_line) => command_line,
        // Also how --help and --version end.
        Err(error) => {
            let exit = if error.use_stderr() { Exit::Usage } else { Exit::Done };
            let _ = error.print();
            return exit.into();
        }
    };
    let CommandLine { config, command } = command_line;
    let given = || -> Result<Loaded, Failure> { Ok(load(&files(&config)?, std::env::vars_os())?) };
    let done = match command {
        Command::Check { connect } => given().and_then(|given| check::check(&given, connect)),
        Command::Run => given().and_then(|given| run::run(&given)),
        Command::Status { json } => given().and_then(|given| status::status(&given, json)),
        Command::Explain { json } => given().and_then(|given| explain::explain(&given, json)),
        Command::Offsets { ask } => given().and_then(|given| offsets::offsets(&given, &ask)),
        Command::Checkpoints { ask } => given().and_then(|given| checkpoints::checkpoints(&given, &ask)),
        Command::Pause { scope } => given().and_then(|given| pause::pause(&given, &scope)),
        Command::Resume { resumed } => given().and_then(|given| pause::resume(&given, &resumed)),
        Command::DeadLetters { ask } => given().and_then(|given| letters::dead_letters(&given, &ask)),
        Command::Nexmark(arguments) => given().and_then(|given| nexmark::nexmark(&given, &arguments)),
        Command::Demo(arguments) => given().and_then(|given| demo::demo(&given, &arguments)),
        Command::Settings { toml } => {
            print(&if toml { settings::toml() } else { settings::markdown() });
            Ok(())
        }
    };
    match done {
        Ok(()) => Exit::Done.into(),
        Err(Failure { exit, message }) => {
            let mut lines = message.lines();
            let mut stderr = std::io::stderr().lock();
            // Nobody may be reading; the exit code tells it too.
            let _ = writeln!(stderr, "strandline: {}", lines.next().unwrap_or_default());
            for line in lines {
                let _ = writeln!(stderr, "{line}");
            }
            exit.into()
        }
    }
}

/// Prints to standard output. That nobody reads it any more, as after `| head`, is no fault.
pub(crate) fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    if let Err(error) = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())
        && error.kind() != ErrorKind::BrokenPipe
    {
        tracing::warn!("standard output cannot be written: {error}");
    }
}

/// The runtime on which connections live. It outlives whatever is connected.
pub(crate) fn connections() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("connections")
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("the system gives no threads for connections: {error}")))
}
