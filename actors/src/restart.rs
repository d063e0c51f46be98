//! When a crashed actor is started again: a policy as data.
//!
//! At once the first time, then after a growing pause with half of it jitter, and not at all when the budget is spent.
//! The budget and the pause are as new after the actor was healthy for a while.

use std::time::Duration;

/// The policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RestartPolicy {
    /// The pause before the second restart.
    pub initial: Duration,
    /// The longest pause.
    pub max: Duration,
    /// Restarts until the actor halts.
    pub budget: u32,
    /// The healthy time after which the budget is full again.
    pub refill: Duration,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            initial: Duration::from_millis(500),
            max: Duration::from_secs(60),
            budget: 20,
            refill: Duration::from_secs(120),
        }
    }
}

/// What to do after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// Start again after this pause.
    After(Duration),
    /// The budget is spent.
    Halt,
}

/// The crashes of one actor.
#[derive(Clone, Debug)]
pub struct Crashes {
    policy: RestartPolicy,
    used: u32,
}

impl Crashes {
    /// No crash yet.
    pub fn new(policy: RestartPolicy) -> Self {
        Self { policy, used: 0 }
    }

    /// Notes a crash, and says when to start again. `healthy_for` is how long the actor had worked before it; `jitter`
    /// is a random number in `[0, 1)`.
    pub fn crashed(&mut self, healthy_for: Duration, jitter: f64) -> Restart {
        if healthy_for >= self.policy.refill {
            self.used = 0;
        }
        if self.used >= self.policy.budget {
            return Restart::Halt;
        }
        self.used += 1;
        if self.used == 1 {
            return Restart::After(Duration::ZERO);
        }
        let doublings = (self.used - 2).min(31);
        let pause = self.policy.initial.saturating_mul(1 << doublings).min(self.policy.max);
        Restart::After(pause.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0)))
    }

    /// Forgets all crashes, as after an operator's decision to go on.
    pub fn reset(&mut self) {
        self.used = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_once_then_doubling_with_half_jitter_then_halt() {
        let mut crashes = Crashes::new(RestartPolicy { budget: 10, ..RestartPolicy::default() });
        let mut full = Vec::new();
        for _ in 0..10 {
            match crashes.crashed(Duration::ZERO, 1.0) {
                Restart::After(pause) => full.push(pause.as_millis()),
                Restart::Halt => panic!("halted within the budget"),
            }
        }
        assert_eq!(full, [0, 500, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000]);
        assert_eq!(crashes.crashed(Duration::ZERO, 1.0), Restart::Halt);
        // Still spent at the next crash, new after a healthy time.
        assert_eq!(crashes.crashed(Duration::from_secs(119), 1.0), Restart::Halt);
        assert_eq!(crashes.crashed(Duration::from_secs(120), 1.0), Restart::After(Duration::ZERO));
        assert_eq!(crashes.crashed(Duration::ZERO, 0.0), Restart::After(Duration::from_millis(250)));
    }
}
