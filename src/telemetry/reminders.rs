//! When to say again in the log that something does not take what it is sent: at once, and then less and less often.

use std::time::Duration;

use tokio::time::Instant;

/// The first pause between two lines, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));

/// While nothing is taken: when that is said again, and the pause until then.
#[derive(Debug, Default)]
pub(super) struct Reminders(Option<(Instant, Duration)>);

impl Reminders {
    /// Nothing was taken. Whether that is to be said now.
    pub(super) fn due(&mut self, now: Instant) -> bool {
        let pause = match self.0 {
            None => PAUSES.0,
            Some((next, pause)) if now >= next => (pause * 2).min(PAUSES.1),
            Some(_) => return false,
        };
        self.0 = Some((now + pause, pause));
        true
    }

    /// Something was taken. Whether that is news.
    pub(super) fn over(&mut self) -> bool {
        self.0.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_at_once_and_then_less_often() {
        let begun = Instant::now();
        let mut reminders = Reminders::default();
        assert!(!reminders.over());
        let mut said = Vec::new();
        for second in 0..100 {
            if reminders.due(begun + Duration::from_secs(second)) {
                said.push(second);
            }
        }
        assert_eq!(said, [0, 10, 30, 70]);
        assert!(reminders.over() && reminders.due(begun));
    }
}
