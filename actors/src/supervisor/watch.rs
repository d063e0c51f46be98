//! Watches that actors get on.
//!
//! An actor that stands still with work before it is ended and started again. Where that does not end it, or where it does not
//! come back from its work, its thread is lost: it is given up with every actor that lives there. They are started again on a
//! new one, and only whoever was in the middle of something is charged for it.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use actix::{AsyncContext, Context};

use super::Supervisor;
use crate::board::{Activity, ActorId, Life, Snapshot};
use crate::child::Cause;
use crate::message::Died;
use crate::position::{Offset, PartitionKey};

/// How often the time is doubled that a partition may get no record.
const LONGEST: u32 = 6;

impl Supervisor {
    /// Looks for actors that do not get on.
    pub(super) fn watch(&mut self, ctx: &mut Context<Self>) {
        let mut stalled = self.stalled(&self.shared.board.snapshot());
        self.give_up_threads(&mut stalled);
        for (id, cause) in stalled {
            if let (ActorId::Partition(key), Cause::Stalled(_)) = (id, &cause)
                && let Some(known) = self.partitions.get(&key)
            {
                known.hung.store(true, Ordering::SeqCst);
            }
            // What is halted, paused or backs off has no life, and is started again by nothing of this.
            if let Some(incarnation) = self.end_life(id) {
                ctx.notify(Died { id, incarnation, cause });
            }
        }
    }

    /// The actors that do not get on, as they show it.
    fn stalled(&self, snapshot: &Snapshot) -> Vec<(ActorId, Cause)> {
        let stall = self.shared.pipeline.tuning.stall;
        let busy_shards = snapshot.shards.iter().filter(|(_, status)| {
            status.actor.life == Life::Running && status.busy.is_some_and(|since| since.elapsed() > stall)
        });
        let mut stalled: Vec<(ActorId, Cause)> = busy_shards
            .map(|(shard, _)| {
                (ActorId::Shard(*shard), Cause::Stalled(format!("it handles one message for more than {stall:?}")))
            })
            .collect();
        for (key, status) in &snapshot.partitions {
            let behind = status.end.is_some_and(|end| end > status.position);
            let long = status.activity_since.elapsed() > stall;
            let cause = match status.activity {
                _ if status.actor.life != Life::Running => continue,
                Activity::Processing if long => {
                    Cause::Stalled(format!("it processes one batch for more than {stall:?}"))
                }
                Activity::Reading if long => {
                    Cause::Starved(format!("the source has not answered for more than {stall:?}"))
                }
                Activity::Reading if behind && status.progress.elapsed() > self.patience(key, status.position) => {
                    Cause::Starved("it got no record for long although it is behind the end of the log".to_owned())
                }
                // Whoever waits for others does not stall: they do.
                _ => continue,
            };
            stalled.push((ActorId::Partition(*key), cause));
        }
        stalled
    }

    /// How long a partition may get no record. What it has to pass may be a large transaction that was aborted: it gets twice the
    /// time whenever it was started again at one place.
    fn patience(&self, key: &PartitionKey, position: Offset) -> Duration {
        let starved = self.partitions.get(key).map(|known| known.starved);
        let times = starved.filter(|(place, _)| *place == position).map_or(0, |(_, times)| times);
        self.shared.pipeline.tuning.stall.saturating_mul(1 << times.min(LONGEST))
    }

    /// A thread on which something stalls is given up, and with it every actor that lives on it. Whoever only gets nothing leaves
    /// its thread to the others.
    fn give_up_threads(&self, stalled: &mut Vec<(ActorId, Cause)>) {
        let place = |id| self.shared.with_arbiters(|arbiters| arbiters.place(id));
        let stalls = |(id, cause): &(ActorId, Cause)| matches!(cause, Cause::Stalled(_)).then(|| place(*id));
        let mut stuck: BTreeSet<usize> = stalled.iter().filter_map(stalls).collect();
        for overdue in self.shared.lives.overdue(self.shared.pipeline.tuning.stall) {
            stuck.insert(overdue.place);
            if overdue.busy && !stalled.iter().any(|(known, _)| *known == overdue.id) {
                let cause = Cause::Stalled("it was started anew meanwhile, and does not come back".to_owned());
                stalled.push((overdue.id, cause));
            }
        }
        if stuck.is_empty() {
            return;
        }
        let shards = (0..self.shared.pipeline.shards).map(ActorId::Shard);
        let partitions = self.partitions.keys().copied().map(ActorId::Partition);
        for id in [ActorId::Committer].into_iter().chain(shards).chain(partitions) {
            if stuck.contains(&place(id)) && !stalled.iter().any(|(known, _)| *known == id) {
                let cause = Cause::Starved("its thread does not come back".to_owned());
                stalled.push((id, cause));
            }
        }
        if let Some(env) = &self.env {
            env.credits.renew();
        }
        self.shared.lives.lost(&stuck);
        self.shared.with_arbiters(|arbiters| stuck.iter().for_each(|place| arbiters.replace(*place)));
    }
}
