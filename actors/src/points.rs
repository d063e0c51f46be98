//! The named points at which a test ends the process or an actor, to show that nothing is lost there.
//!
//! They exist only in test builds (the feature `points`, which the tests of the service switch on and `cargo build` does
//! not): otherwise reaching one compiles to nothing. `KILL_AT=<point>:<n>` in the environment of a test build makes the
//! process kill itself by SIGKILL when it comes to that point for the n-th time, and `PANIC_AT=<point>:<n>` makes the actor
//! panic that does.

/// A place in the life of a batch, a checkpoint or a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Records were fetched and nothing was done with them.
    Fetched,
    /// A shard has taken rows into its state.
    Aggregated,
    /// The segments of a checkpoint are written, the pointer is not moved.
    Segments,
    /// The move of a pointer is on its way to the store.
    PointerSent,
    /// The pointer of a checkpoint has moved, its output is not delivered.
    PointerApplied,
    /// The output of an epoch is about to be delivered.
    BeforeOutput,
    /// The output of an epoch is delivered.
    AfterOutput,
    /// A shard is claimed, its last output not delivered again.
    Claim,
    /// `kafka_offsets` is about to be written.
    BeforeOffsets,
    /// `kafka_offsets` is written.
    AfterOffsets,
    /// One of the segments that a checkpoint merges is read.
    Compaction,
    /// One of the segments of a claimed shard is read.
    Restore,
    /// A step of a rewind is done on one shard.
    Rewound,
    /// Dead letters are sent again and acknowledged, but not marked yet.
    Replayed,
    /// One of several sinks has its part of the output of an epoch.
    PartDelivered,
}

impl Point {
    /// Those of a running service.
    pub const ALL: [Self; 12] = [
        Self::Fetched,
        Self::Aggregated,
        Self::Segments,
        Self::PointerSent,
        Self::PointerApplied,
        Self::BeforeOutput,
        Self::AfterOutput,
        Self::Claim,
        Self::BeforeOffsets,
        Self::AfterOffsets,
        Self::Compaction,
        Self::Restore,
    ];

    /// Those of commands that change what is stored.
    pub const OF_COMMANDS: [Self; 2] = [Self::Rewound, Self::Replayed];

    /// Those of a service with several sinks.
    pub const OF_SEVERAL_SINKS: [Self; 1] = [Self::PartDelivered];

    /// Its name in `KILL_AT`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fetched => "fetched",
            Self::Aggregated => "aggregated",
            Self::Segments => "segments",
            Self::PointerSent => "pointer-sent",
            Self::PointerApplied => "pointer-applied",
            Self::BeforeOutput => "before-output",
            Self::AfterOutput => "after-output",
            Self::Claim => "claim",
            Self::BeforeOffsets => "before-offsets",
            Self::AfterOffsets => "after-offsets",
            Self::Compaction => "compaction",
            Self::Restore => "restore",
            Self::Rewound => "rewound",
            Self::Replayed => "replayed",
            Self::PartDelivered => "part-delivered",
        }
    }
}

#[cfg(not(feature = "points"))]
mod reached {
    use super::Point;

    /// Nothing happens here outside of tests.
    #[inline(always)]
    pub fn reach(_: Point) {}

    /// The request itself.
    #[inline(always)]
    pub(crate) fn sent<F: Future>(_: Point, request: F) -> F {
        request
    }
}

#[cfg(feature = "points")]
mod reached {
    use std::process::Command;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::Point;

    /// A point, and how often it has still to be reached.
    type Wanted = LazyLock<Option<(Point, AtomicU64)>>;

    static KILL_AT: Wanted = LazyLock::new(|| wanted("KILL_AT"));
    static PANIC_AT: Wanted = LazyLock::new(|| wanted("PANIC_AT"));

    fn wanted(variable: &str) -> Option<(Point, AtomicU64)> {
        let given = std::env::var(variable).ok()?;
        let parsed = given.split_once(':').and_then(|(name, count)| {
            let all = Point::ALL.into_iter().chain(Point::OF_COMMANDS).chain(Point::OF_SEVERAL_SINKS);
            let point = all.into_iter().find(|point| point.name() == name)?;
            Some((point, AtomicU64::new(count.parse().ok().filter(|count| *count > 0)?)))
        });
        Some(parsed.unwrap_or_else(|| panic!("{variable} is `{given}`, which is no <point>:<n>")))
    }

    /// The time that a request gets to leave the process before it dies.
    const ON_ITS_WAY: Duration = Duration::from_millis(20);

    fn is_due(at: &Wanted, point: Point) -> bool {
        at.as_ref().is_some_and(|(wanted, left)| *wanted == point && left.fetch_sub(1, Ordering::SeqCst) == 1)
    }

    fn is_the_end(point: Point) -> bool {
        is_due(&KILL_AT, point)
    }

    /// Ends the process, or the actor, if it was told to die here.
    pub fn reach(point: Point) {
        if is_the_end(point) {
            die(point);
        }
        assert!(!is_due(&PANIC_AT, point), "told to panic at the point {}", point.name());
    }

    fn die(point: Point) -> ! {
        eprintln!("killed at the point {}", point.name());
        let _ = Command::new("kill").args(["-KILL", &std::process::id().to_string()]).status();
        loop {
            std::thread::park();
        }
    }

    /// Reaches a point once a request is on its way and not answered.
    pub(crate) async fn sent<F: Future>(point: Point, request: F) -> F::Output {
        let mut request = std::pin::pin!(request);
        let mut first = true;
        std::future::poll_fn(|context| {
            let polled = request.as_mut().poll(context);
            if std::mem::take(&mut first) && polled.is_pending() && is_the_end(point) {
                // Another thread puts it on the wire.
                std::thread::sleep(ON_ITS_WAY);
                die(point);
            }
            polled
        })
        .await
    }
}

pub use reached::reach;
pub(crate) use reached::sent;
