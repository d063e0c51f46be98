//! Whether the pipeline gets on, and whether it has begun to: decisions about a picture of the board, without any I/O.
//!
//! Healthy means progress, not mere life: a process that answers but whose positions stand still is not healthy. Brokers
//! that are away are no fault of the pipeline as long as nothing is known to wait there.

use std::time::Duration;

use strandline_actors::board::{Activity, ActorStatus, Life, PartitionStatus, Snapshot};

/// What keeps the pipeline from being healthy, a sentence each. `since` is how long the process has been running.
pub(super) fn problems(board: &Snapshot, stall: Duration, since: Duration) -> Vec<String> {
    let mut problems = Vec::new();
    if board.owner.is_some() {
        // A standby does what it is there for.
        return problems;
    }
    // The time as a standby does not count.
    let owned = |time: Duration| board.standby_until.map_or(time, |since| since.elapsed().min(time));
    let since = owned(since);
    for status in board.partitions.values() {
        let name = name(status);
        if status.actor.life == Life::Halted && status.actor.refused {
            problems.push(format!("{name} is not read{}", because(&status.actor)));
            continue;
        }
        if status.actor.life == Life::Halted {
            problems.push(format!(
                "{name} is halted{}; mend the cause, then resume it by POST /api/resume/partition/{}/{} or restart the \
                 process, before Kafka deletes what it has not read",
                because(&status.actor),
                status.topic,
                status.partition
            ));
            problems.extend(expiring(status));
            continue;
        }
        problems.extend(expiring(status));
        // Whoever paused it wants it to stand.
        if status.actor.life == Life::Paused {
            continue;
        }
        let lag = status.lag().unwrap_or_default();
        let standing = owned(status.progress.elapsed());
        if lag > 0 && standing > stall {
            problems.push(format!(
                "{name} has stood at {} for {} with {lag} records before it: {}{}",
                status.position,
                seconds(standing),
                doing(status),
                because(&status.actor)
            ));
        }
    }
    for (shard, status) in &board.shards {
        if status.actor.life == Life::Halted {
            problems.push(format!(
                "aggregation {shard} is halted{}; mend the cause, then resume it by POST /api/resume/shard/{shard} or \
                 restart the process, before Kafka deletes what it has not read",
                because(&status.actor)
            ));
            continue;
        }
        let fault = board.committer.last_fault.as_ref().map(|fault| format!(": {fault}")).unwrap_or_default();
        match status.committed {
            Some(at) if owned(at.elapsed()) > stall => {
                problems.push(format!("aggregation {shard} has committed nothing for {}{fault}", seconds(at.elapsed())))
            }
            None if since > stall => {
                problems.push(format!("aggregation {shard} has committed nothing since the start{fault}"));
            }
            _ => {}
        }
    }
    if board.supervisor.life == Life::Stopped {
        problems.push("the pipeline has ended".into());
    }
    problems
}

/// What is still to come until everything is loaded and started.
pub(crate) fn waiting_for(board: &Snapshot, shards: u32) -> Vec<String> {
    let mut waiting = Vec::new();
    if let Some(owner) = &board.owner {
        let what =
            board.committer.last_fault.as_ref().map(|fault| format!(" (last fault: {fault})")).unwrap_or_default();
        return vec![format!(
            "this process is a standby: instance {} owns the pipeline (generation {}), and its heartbeat has not stood still \
             for long enough{what}",
            owner.instance, owner.generation
        )];
    }
    if board.supervisor.life != Life::Running {
        let what = board.committer.last_fault.as_ref().map(|fault| format!(": {fault}")).unwrap_or_default();
        waiting.push(format!("the supervisor is {}{what}", life(board.supervisor.life)));
    }
    for shard in 0..shards {
        let found = board.shards.get(&shard).map_or(Life::Starting, |status| status.actor.life);
        if found != Life::Running {
            waiting.push(format!("aggregation {shard} is {}", life(found)));
        }
    }
    if board.partitions.is_empty() {
        waiting.push("no partitions are known yet".into());
    }
    for status in board.partitions.values() {
        if status.actor.life == Life::Paused {
            continue;
        } else if status.actor.life != Life::Running {
            waiting.push(format!("{} is {}", name(status), life(status.actor.life)));
        } else if status.activity == Activity::Registering {
            waiting.push(format!("{} waits for the shards", name(status)));
        }
    }
    waiting
}

fn name(status: &PartitionStatus) -> String {
    format!("partition {}-{}", status.topic, status.partition)
}

/// What Kafka is about to delete, while something that needs it is halted.
fn expiring(status: &PartitionStatus) -> Option<String> {
    let name = name(status);
    match status.expires? {
        0 => Some(format!("Kafka has deleted records of {name} that were not read")),
        left => Some(format!("Kafka deletes records of {name} that were not read in about {left} s")),
    }
}

fn because(actor: &ActorStatus) -> String {
    actor.last_error.as_ref().map(|error| format!(" ({error})")).unwrap_or_default()
}

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs())
}

/// A life in a word.
pub(super) fn life(life: Life) -> &'static str {
    match life {
        Life::Starting => "starting",
        Life::Standby => "standby",
        Life::Running => "running",
        Life::BackingOff => "backing off",
        Life::Halted => "halted",
        Life::Paused => "paused",
        Life::Stopped => "stopped",
    }
}

fn doing(status: &PartitionStatus) -> &'static str {
    match (status.actor.life, status.activity) {
        (Life::BackingOff, _) => "it crashed and waits to start again",
        (_, Activity::Registering) => "it waits for the shards",
        (_, Activity::Reading) => "it gets no records from Kafka",
        (_, Activity::WaitingForCredit) => "it waits until others have worked off what is in flight",
        (_, Activity::Processing) => "it processes a batch",
        (_, Activity::WaitingForLanes) => "it waits for the shards to take what it sent",
    }
}
