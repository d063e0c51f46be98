//! What the process shows over HTTP: health, metrics, and the status page.
//!
//! It runs on a thread and a runtime of its own and reads only the board, so that no actor, however busy, makes it deaf,
//! and no reader, however slow, holds up an actor.

pub(crate) mod client;
mod connectors;
mod guard;
mod health;
mod history;
mod metrics;
mod planned;
mod routes;

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use strandline_actors::board::{ActorId, Board};
use strandline_actors::message::Target;
use strandline_actors::pause::{Scope, Wished};
use strandline_actors::run::Handle;
use tokio::sync::oneshot;

use crate::kafka::Reach;
use crate::settings::HttpSettings;
use crate::sinks::Written;
use crate::sql::RowCounters;
use crate::telemetry;

use guard::Guard;
pub(crate) use health::waiting_for;
use history::History;
pub use planned::Planned;

/// Why nothing can be shown.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The name in the address is not known.
    #[error("STRANDLINE_HTTP__LISTEN is `{listen}`, which is no address of this machine: {error}")]
    Address {
        /// What was given.
        listen: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// Another program listens there.
    #[error(
        "the address {listen} for the status page is in use by another program: set STRANDLINE_HTTP__LISTEN to a free one, \
         such as 127.0.0.1:{next}, or to off"
    )]
    InUse {
        /// What was given.
        listen: String,
        /// A port that may be free.
        next: u16,
    },
    /// The system does not allow it.
    #[error("the status page cannot be served at STRANDLINE_HTTP__LISTEN={listen}: {error}")]
    Listen {
        /// What was given.
        listen: String,
        /// What the system says.
        error: std::io::Error,
    },
}

/// What can be seen and asked of a running pipeline.
pub trait Running: Send + Sync {
    /// The board of its actors.
    fn board(&self) -> &Board;
    /// Makes an actor panic.
    fn crash(&self, target: Target);
    /// Starts a halted actor again; answers whether it was halted.
    fn resume(&self, id: ActorId) -> BoxFuture<'_, bool>;
    /// Reads something no more until it is told to go on.
    fn pause(&self, scope: Scope) -> BoxFuture<'_, Wished>;
    /// Reads what was paused again.
    fn go_on(&self, scope: Scope) -> BoxFuture<'_, Wished>;
}

impl Running for Handle {
    fn board(&self) -> &Board {
        Self::board(self)
    }

    fn crash(&self, target: Target) {
        Self::crash(self, target);
    }

    fn resume(&self, id: ActorId) -> BoxFuture<'_, bool> {
        Box::pin(Self::resume(self, id))
    }

    fn pause(&self, scope: Scope) -> BoxFuture<'_, Wished> {
        Box::pin(Self::pause(self, scope))
    }

    fn go_on(&self, scope: Scope) -> BoxFuture<'_, Wished> {
        Box::pin(Self::go_on(self, scope))
    }
}

/// A pipeline that has begun.
pub struct Begun {
    /// The pipeline itself.
    pub running: Box<dyn Running>,
    /// The number of its shards.
    pub shards: u32,
    /// How Kafka answers, for each source.
    pub sources: Box<dyn Fn() -> Vec<Reach> + Send + Sync>,
    /// The table that each INSERT writes, and what became of its rows.
    pub inserts: Vec<(String, Arc<RowCounters>)>,
    /// What its sinks have done so far, and how they take what they are sent, if that is known.
    pub sinks: Box<dyn Fn() -> Vec<Written> + Send + Sync>,
}

/// What a demo adds: its own part of the status, and the right to kill actors.
pub trait Demo: Send + Sync {
    /// Its part of the status.
    fn status(&self) -> serde_json::Value;
    /// Kills an actor, at somebody's wish.
    fn kill(&self, target: Target);
}

/// What is shown.
pub struct Shown {
    pipeline: String,
    stall: Duration,
    since: Instant,
    spans: telemetry::Counters,
    pushes: telemetry::Pushes,
    planned: Planned,
    history: History,
    begun: OnceLock<Begun>,
    demo: Option<Arc<dyn Demo>>,
}

impl Shown {
    /// A pipeline that has not begun yet. `stall` is how long it may stand still with work before it.
    pub fn new(pipeline: &str, stall: Duration, telemetry: &telemetry::Telemetry, planned: Planned) -> Self {
        let (pipeline, since) = (pipeline.into(), Instant::now());
        let (spans, pushes) = (telemetry.counters().clone(), telemetry.pushes().clone());
        let (history, begun) = Default::default();
        Self { pipeline, stall, since, spans, pushes, planned, history, begun, demo: None }
    }

    /// All metrics as they are now.
    pub fn measure(&self) -> Vec<telemetry::Family> {
        self.measured().families()
    }

    /// The same with a demo.
    pub fn with_demo(self, demo: Arc<dyn Demo>) -> Self {
        Self { demo: Some(demo), ..self }
    }

    /// Shows a pipeline from now on. Only the first counts.
    pub fn begin(&self, begun: Begun) {
        let _ = self.begun.set(begun);
    }
}

/// The server. It ends when it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    _end: oneshot::Sender<()>,
}

impl Server {
    /// Starts to serve where the settings say. `None`: it is `off`.
    pub fn start(settings: &HttpSettings, shown: Arc<Shown>) -> Result<Option<Self>, HttpError> {
        let listen = settings.listen.as_str();
        if listen == "off" {
            return Ok(None);
        }
        let failed = |error| HttpError::Listen { listen: listen.to_owned(), error };
        let listener = bind(listen)?;
        let address = listener.local_addr().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let guard = Guard::new(settings.token.clone(), address);
        if guard.shut() {
            tracing::info!(
                "nothing can be changed over http at {address}, which other machines can reach: STRANDLINE_HTTP__TOKEN is \
                 not set"
            );
        }
        let (end, ended) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let serve = move || {
            runtime.block_on(async move {
                let listener = match tokio::net::TcpListener::from_std(listener) {
                    Ok(listener) => listener,
                    Err(error) => return tracing::error!("the status page cannot be served: {error}"),
                };
                tokio::spawn(history::watch(Arc::clone(&shown)));
                let serving = axum::serve(listener, routes::router(shown, guard));
                tokio::select! {
                    result = async { serving.await } => {
                        if let Err(error) = result {
                            tracing::error!("the status page is no longer served: {error}");
                        }
                    }
                    _ = ended => {}
                }
            });
        };
        std::thread::Builder::new().name("http".into()).spawn(serve).map_err(failed)?;
        Ok(Some(Self { address, _end: end }))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn bind(listen: &str) -> Result<TcpListener, HttpError> {
    let unknown = |error| HttpError::Address { listen: listen.to_owned(), error };
    let addresses: Vec<SocketAddr> = listen.to_socket_addrs().map_err(unknown)?.collect();
    TcpListener::bind(addresses.as_slice()).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => HttpError::InUse {
            listen: listen.to_owned(),
            next: addresses.first().map_or(8081, |address| address.port().checked_add(1).unwrap_or(8081)),
        },
        std::io::ErrorKind::AddrNotAvailable => unknown(error),
        _ => HttpError::Listen { listen: listen.to_owned(), error },
    })
}

#[cfg(test)]
#[path = "http/tests.rs"]
mod tests;
