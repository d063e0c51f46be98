//! What a process used, as the kernel counts it.

use std::time::Duration;

/// What one run took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub records: u64,
    pub elapsed: Duration,
    /// CPU time of the process, user and system.
    pub cpu: Duration,
    /// The most memory that was resident, in bytes.
    pub peak: u64,
}

impl Usage {
    pub fn rate(&self) -> f64 {
        self.records as f64 / self.elapsed.as_secs_f64()
    }

    /// CPU-seconds for a million records.
    pub fn cpu_a_million(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.records as f64
    }
}

/// What a process had used at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub cpu: Duration,
    pub peak: u64,
}

impl Reading {
    pub fn until(&self, after: &Self, elapsed: Duration, records: u64) -> Usage {
        Usage { records, elapsed, cpu: after.cpu.saturating_sub(self.cpu), peak: after.peak }
    }
}

pub fn of_this_process() -> Reading {
    of(std::process::id()).expect("this process lives")
}

/// `None` when the process is gone.
pub fn of(pid: u32) -> Option<Reading> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name may hold blanks, and stands in parentheses.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let peak: u64 = peak.trim().trim_end_matches("kB").trim().parse().ok()?;
    // Linux counts in hundredths of a second on every architecture that this builds for.
    Some(Reading { cpu: Duration::from_millis(ticks * 10), peak: peak * 1024 })
}
