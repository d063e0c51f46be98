//! What is said in the log of records that are many, at a bounded rate.

use std::time::{Duration, Instant};

use strandline_actors::ports::StageInput;

/// The shortest time between two lines.
const PAUSE: Duration = Duration::from_secs(30);

/// Lines of one kind.
#[derive(Default)]
pub(super) struct Notices {
    said: Option<Instant>,
    since: u64,
}

impl Notices {
    /// Counts records; answers how many there were since the last line if it is time for another.
    pub(super) fn due(&mut self, records: usize) -> Option<u64> {
        self.since += records as u64;
        let due = records > 0 && self.said.is_none_or(|said| said.elapsed() >= PAUSE);
        due.then(|| {
            self.said = Some(Instant::now());
            std::mem::take(&mut self.since)
        })
    }

    pub(super) fn late(&mut self, input: &StageInput<'_>, offsets: &[i64], late: &[(u32, i64)]) {
        if let Some(records) = self.due(late.len())
            && let Some((record, watermark)) = late.first()
        {
            let offset = offsets[*record as usize];
            tracing::warn!(partition = %input.partition, offset, watermark, records, "late rows; this is one of them");
        }
    }

    pub(super) fn late_closed(&mut self, input: &StageInput<'_>, offsets: &[i64], late: &[(u32, i64)]) {
        if let Some(records) = self.due(late.len())
            && let Some((record, closed)) = late.first()
        {
            let offset = offsets[*record as usize];
            tracing::warn!(
                partition = %input.partition, offset, closed, records,
                "rows came for windows that were closed while their partition was quiet or not yet found; this is one of \
                 them"
            );
        }
    }

    pub(super) fn ahead(&mut self, input: &StageInput<'_>, offsets: &[i64], ahead: &[u32]) {
        if let Some(records) = self.due(ahead.len())
            && let Some(record) = ahead.first()
        {
            let offset = offsets[*record as usize];
            tracing::warn!(
                partition = %input.partition, offset, records,
                "records whose event time is further ahead of their Kafka timestamp, or of the clock, than \
                 'watermark.max.ahead' did not move the watermark; this is one of them"
            );
        }
    }
}
