//! Days, weeks and months somewhere: their bounds in universal time.
//!
//! The bounds of a period are the first instants of its first day and of the day after its last. So a day has 23 or 25
//! hours when clocks are put forward or back, also where that happens at midnight, and the periods leave no gap.

use arrow::array::timezone::Tz;
use chrono::{DateTime, Datelike, Days, LocalResult, Months, NaiveDate, NaiveDateTime, TimeDelta, TimeZone, Utc};

/// Periods of the calendar of one time zone.
#[derive(Clone, Debug)]
pub(super) struct Calendar {
    period: Period,
    zone: Tz,
    name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Period {
    Day,
    Week,
    Month,
}

impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        self.period == other.period && self.name == other.name
    }
}

impl Eq for Calendar {}

impl Calendar {
    /// The periods of a unit in a zone; an error says what is wrong with the names.
    pub(super) fn new(unit: &str, zone: &str) -> Result<Self, String> {
        let period = match unit.to_ascii_lowercase().as_str() {
            "day" => Period::Day,
            "week" => Period::Week,
            "month" => Period::Month,
            _ => return Err(format!("'{unit}' is no unit of calendar_window: 'day', 'week' and 'month' are")),
        };
        let parsed = zone.parse().map_err(|_| format!("'{zone}' is no time zone: write e.g. 'Europe/Berlin'"))?;
        Ok(Self { period, zone: parsed, name: zone.to_owned() })
    }

    /// The periods in words.
    pub(super) fn shown(&self) -> String {
        let period = match self.period {
            Period::Day => "day",
            Period::Week => "week",
            Period::Month => "month",
        };
        format!("{period} in {}", self.name)
    }

    /// The end of the period that starts at a time.
    pub(super) fn end(&self, start: i64, tick: i64) -> Option<i64> {
        self.bounds(start, tick).map(|(_, end)| end)
    }

    /// Start and end of the period that has a time, in ticks of so many nanoseconds; `None`: out of range.
    pub(super) fn bounds(&self, time: i64, tick: i64) -> Option<(i64, i64)> {
        let ticks = 1_000_000_000 / tick;
        let instant = DateTime::from_timestamp(time.div_euclid(ticks), 0)?;
        let date = self.first_day(instant.with_timezone(&self.zone).date_naive())?;
        // Where clocks are put back over midnight, an instant can be of a day that the bounds count as the next one.
        for date in [date, self.next(date)?, self.first_day(date.checked_sub_days(Days::new(1))?)?] {
            let (start, end) = (self.midnight(date)?, self.midnight(self.next(date)?)?);
            if (start..end).contains(&instant) {
                let ticks = |bound: DateTime<Utc>| bound.timestamp().checked_mul(ticks);
                return Some((ticks(start)?, ticks(end)?));
            }
        }
        None
    }

    fn first_day(&self, date: NaiveDate) -> Option<NaiveDate> {
        match self.period {
            Period::Day => Some(date),
            Period::Week => date.checked_sub_days(Days::new(date.weekday().num_days_from_monday().into())),
            Period::Month => date.with_day(1),
        }
    }

    fn next(&self, first_day: NaiveDate) -> Option<NaiveDate> {
        match self.period {
            Period::Day => first_day.checked_add_days(Days::new(1)),
            Period::Week => first_day.checked_add_days(Days::new(7)),
            Period::Month => first_day.checked_add_months(Months::new(1)),
        }
    }

    /// The first instant of a day.
    fn midnight(&self, date: NaiveDate) -> Option<DateTime<Utc>> {
        let midnight = date.and_hms_opt(0, 0, 0)?;
        match self.zone.from_local_datetime(&midnight) {
            LocalResult::Single(instant) => Some(instant.to_utc()),
            LocalResult::Ambiguous(first, _) => Some(first.to_utc()),
            // Clocks are put forward over midnight, in one place even over a whole day.
            LocalResult::None => self.after_gap(midnight),
        }
    }

    /// The first instant after the gap in local time that a time is in.
    fn after_gap(&self, missing: NaiveDateTime) -> Option<DateTime<Utc>> {
        let local = |instant: DateTime<Utc>| instant.with_timezone(&self.zone).naive_local();
        let (mut before, mut after) = (missing.and_utc(), missing.and_utc());
        before = before.checked_sub_signed(TimeDelta::days(2))?;
        after = after.checked_add_signed(TimeDelta::days(2))?;
        while (after - before).num_seconds() > 1 {
            let middle = before + TimeDelta::seconds((after - before).num_seconds() / 2);
            if local(middle) < missing { before = middle } else { after = middle }
        }
        Some(after)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn seconds(text: &str) -> i64 {
        text.parse::<DateTime<Utc>>().unwrap().timestamp()
    }

    fn bounds(unit: &str, zone: &str, time: &str) -> (String, String) {
        let (start, end) = Calendar::new(unit, zone).unwrap().bounds(seconds(time), 1_000_000_000).unwrap();
        let text = |time| DateTime::from_timestamp(time, 0).unwrap().format("%FT%TZ").to_string();
        (text(start), text(end))
    }

    #[test]
    fn days_weeks_and_months_begin_where_they_do_there() {
        for (unit, zone, time, start, end) in [
            ("day", "UTC", "2024-05-17T23:59:59Z", "2024-05-17T00:00:00Z", "2024-05-18T00:00:00Z"),
            // 23 and 25 hours.
            ("day", "Europe/Berlin", "2024-03-31T12:00:00Z", "2024-03-30T23:00:00Z", "2024-03-31T22:00:00Z"),
            ("day", "Europe/Berlin", "2024-10-27T22:59:59Z", "2024-10-26T22:00:00Z", "2024-10-27T23:00:00Z"),
            ("day", "Europe/Berlin", "2024-10-27T23:00:00Z", "2024-10-27T23:00:00Z", "2024-10-28T23:00:00Z"),
            // Clocks were put forward at midnight: the day began at one o'clock.
            ("day", "America/Sao_Paulo", "2018-11-04T03:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"),
            ("day", "America/Sao_Paulo", "2018-11-04T02:59:59Z", "2018-11-03T03:00:00Z", "2018-11-04T03:00:00Z"),
            // A day that this island never had.
            ("day", "Pacific/Apia", "2011-12-30T09:00:00Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"),
            ("day", "Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"),
            ("week", "Europe/Berlin", "2024-03-31T21:59:59Z", "2024-03-24T23:00:00Z", "2024-03-31T22:00:00Z"),
            ("month", "Asia/Kolkata", "2024-02-29T18:29:59Z", "2024-01-31T18:30:00Z", "2024-02-29T18:30:00Z"),
            ("month", "UTC", "1969-12-31T23:59:59Z", "1969-12-01T00:00:00Z", "1970-01-01T00:00:00Z"),
        ] {
            assert_eq!(bounds(unit, zone, time), (start.to_owned(), end.to_owned()), "{unit} of {time} in {zone}");
        }
    }

    /// Clocks were put back one minute after midnight, so that minute was twice, with an hour of the day before between.
    #[test]
    fn periods_leave_no_gap_and_do_not_overlap() {
        let calendar = Calendar::new("day", "America/St_Johns").unwrap();
        let (first, last) = (seconds("2006-10-25T00:00:00Z"), seconds("2006-11-02T00:00:00Z"));
        let mut end = None;
        for time in (first..last).step_by(20) {
            let (start, until) = calendar.bounds(time, 1_000_000_000).unwrap();
            assert!((start..until).contains(&time));
            assert!(end.is_none_or(|end| until == end || start == end), "a window begins where the last one ends");
            end = Some(until);
        }
    }

    #[test]
    fn names_that_are_none() {
        assert!(Calendar::new("year", "UTC").unwrap_err().contains("'day', 'week' and 'month'"));
        assert!(Calendar::new("day", "Europe/Bärlin").unwrap_err().contains("no time zone"));
        assert_eq!(
            Calendar::new("day", "UTC").unwrap().bounds(i64::MAX, 1),
            Calendar::new("day", "UTC").unwrap().bounds(i64::MAX, 1)
        );
        assert!(Calendar::new("day", "UTC").unwrap().bounds(i64::MIN, 1_000_000_000).is_none());
    }
}
