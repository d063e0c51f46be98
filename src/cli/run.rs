//! `strandline run`: opens the pipeline, runs it until a signal or its own end, and ends within the deadline.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use strandline_actors::run::{Handle, Outcome};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Exit, Failure, connections};
use crate::http::{Begun, Planned, Server, Shown};
use crate::service::{self, Opened};
use crate::settings::{Loaded, Settings};
use crate::sql::Plan;
use crate::stores::existing;
use crate::telemetry::{Collector, Receiver, Telemetry};

/// Of the deadline, what is kept for the traces and the rest when the last checkpoint takes long.
const KEPT: u32 = 8;
/// Signals within this time are one.
const SAME_SIGNAL: Duration = Duration::from_secs(1);
/// What the last traces may take when there is more time than that.
const FOR_TRACES: Duration = Duration::from_secs(3);

pub(super) fn run(given: &Loaded) -> Result<(), Failure> {
    let settings = &given.settings;
    // What is wrong with the statements is told before anything is started.
    let plan = service::planned(settings)?;
    let receiver = Receiver::of_environment(|name| std::env::var_os(name))?;
    let telemetry = Telemetry::start(&settings.log, Collector::of_environment(|name| std::env::var_os(name))?)?;
    let ending = Ending::default();
    let mut places: Vec<&str> = given.given.values().map(String::as_str).collect();
    places.sort_unstable();
    places.dedup();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "settings are given by {}", places.join(", "));
    let done = run_with(settings, &plan, &telemetry, receiver, &ending);
    telemetry.finish(ending.left().map_or(FOR_TRACES, |left| left.min(FOR_TRACES)));
    done
}

fn run_with(
    settings: &Settings,
    plan: &Plan,
    telemetry: &Telemetry,
    receiver: Option<Receiver>,
    ending: &Ending,
) -> Result<(), Failure> {
    let name = &settings.pipeline.name;
    let planned = Planned::new(&service::statements(settings)?, plan, existing::place(settings));
    let shown = Arc::new(Shown::new(name, settings.supervision.stall, telemetry, planned));
    if let Some(receiver) = receiver {
        let measured = Arc::clone(&shown);
        telemetry.push(receiver, name, Arc::new(move || measured.measure()))?;
    }
    let server = Server::start(&settings.http, Arc::clone(&shown))?;
    if let Some(server) = &server {
        tracing::info!("status page at http://{}", server.address());
    }
    let io = connections()?;
    let guard = io.enter();
    let mut signals = Signals::listen()?;
    drop(guard);
    let opened = io.block_on(async {
        tokio::select! {
            opened = service::open(settings) => opened.map(Some).map_err(Failure::from),
            _ = signals.next() => Ok(None),
        }
    })?;
    let Some(Opened { plan, pipeline, sinks, source }) = opened else {
        tracing::info!("told to stop before the pipeline began");
        return Ok(());
    };
    let shards = pipeline.shards;
    let outcome = service::run_to_end(pipeline, settings.threads(), |handle| {
        shown.begin(Begun {
            running: Box::new(handle.clone()),
            shards,
            sources: Box::new(move || source.reach()),
            inserts: plan.counters(),
            sinks: Box::new(move || sinks.written()),
        });
        io.spawn(stop_on_signal(handle, signals, ending.clone(), settings.shutdown.deadline));
    });
    drop(server);
    // Clients that still wait for a server must not hold up the end.
    io.shutdown_background();
    match (outcome, ending.cut_short()) {
        (Outcome::Failed(_), Some(why)) => Err(Failure::failed(format!(
            "{why}; nothing is lost: the next start goes on from the last checkpoint that was committed"
        ))),
        (Outcome::Stopped, _) => Ok(()),
        (Outcome::SteppedDown(why), _) => {
            let message = format!(
                "stepped down: {why}; another process took the pipeline over and goes on from the last checkpoint that was \
                 committed"
            );
            Err(Failure { exit: Exit::SteppedDown, message })
        }
        (Outcome::Failed(why), None) => Err(Failure::failed(why)),
    }
}

/// How the end goes, once it was asked for.
#[derive(Clone, Debug, Default)]
struct Ending(Arc<Mutex<(Option<Instant>, Option<String>)>>);

impl Ending {
    fn by(&self, deadline: Instant) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0 = Some(deadline);
    }

    fn cut(&self, why: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1 = Some(why);
    }

    /// The time that is left, if the end was asked for.
    fn left(&self) -> Option<Duration> {
        let deadline = self.0.lock().unwrap_or_else(PoisonError::into_inner).0?;
        Some(deadline.saturating_duration_since(Instant::now()))
    }

    /// Why there was no last checkpoint.
    fn cut_short(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }
}

/// The signals that ask for an end.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Listens from now on. Needs a runtime.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::failed(format!("signals cannot be heard: {error}")));
        // A file that would outgrow the user's limit is a fault of the disk like others, which is waited for; unheard, this
        // signal would end the process.
        drop(listen(SignalKind::from_raw(libc::SIGXFSZ))?);
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    /// Waits for the next, and names it.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Asks for the last checkpoint at the first signal, and ends without it at the deadline or at a second one that is meant
/// as such: service managers may signal a whole group, and so one process twice.
async fn stop_on_signal(handle: Handle, mut signals: Signals, ending: Ending, deadline: Duration) {
    let name = signals.next().await;
    tracing::info!("{name}: taking a last checkpoint, for {deadline:?} at most");
    ending.by(Instant::now() + deadline);
    handle.stop();
    let why = tokio::select! {
        () = tokio::time::sleep(deadline - deadline / KEPT) => format!(
            "the last checkpoint was not committed in time (STRANDLINE_SHUTDOWN__DEADLINE is {deadline:?})"
        ),
        name = async {
            tokio::time::timeout(SAME_SIGNAL, async { loop { signals.next().await; } }).await.ok();
            signals.next().await
        } => format!("ended without a last checkpoint by a second signal, {name}"),
    };
    ending.cut(why);
    handle.kill();
}
