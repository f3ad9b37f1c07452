//! Metrics of the process, by the names that Prometheus' own client libraries give them.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Units of time in `/proc`, in a second: Linux gives these to programs, whatever its own clock is.
const TICKS_PER_S: f64 = 100.0;

/// What `/proc` says of this process. Numbers that cannot be read are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Process {
    cpu_s: Option<f64>,
    resident_bytes: Option<u64>,
    virtual_bytes: Option<u64>,
    open_fds: Option<u64>,
    max_fds: Option<u64>,
    /// Seconds since 1970.
    start_time_s: Option<f64>,
}

impl Process {
    pub(super) fn now() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let mut process = Self::parse(
            &read("/proc/self/stat"),
            &read("/proc/self/status"),
            &read("/proc/self/limits"),
            &read("/proc/stat"),
        );
        // The folder that is read is open itself.
        process.open_fds =
            fs::read_dir("/proc/self/fd").ok().map(|all| (all.count() as u64).saturating_sub(1));
        process
    }

    fn parse(stat: &str, status: &str, limits: &str, system: &str) -> Self {
        // The name stands in parentheses, and may hold any letters.
        let fields: Vec<&str> =
            stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace().collect();
        let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let word = |text: &str, name: &str, at: usize| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_ascii_whitespace().nth(at)?.parse::<u64>().ok()
        };
        let kib = |name| word(status, name, 0).map(|kib| kib << 10);
        let begun = ticks(19).zip(word(system, "btime", 0));
        Self {
            cpu_s: ticks(11).zip(ticks(12)).map(|(user, kernel)| (user + kernel) as f64 / TICKS_PER_S),
            resident_bytes: kib("VmRSS:"),
            virtual_bytes: kib("VmSize:"),
            open_fds: None,
            max_fds: word(limits, "Max open files", 0),
            start_time_s: begun.map(|(ticks, boot)| boot as f64 + ticks as f64 / TICKS_PER_S),
        }
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Self { cpu_s, resident_bytes, virtual_bytes, open_fds, max_fds, start_time_s } = *self;
        if let Some(seconds) = cpu_s {
            let help = "Processor time of the process, in seconds";
            let metric = encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
            ConstCounter::new(seconds).encode(metric)?;
        }
        let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
        for (name, help, value) in [
            (
                "process_resident_memory_bytes",
                "Memory of the process in RAM, in bytes",
                bytes(resident_bytes),
            ),
            ("process_virtual_memory_bytes", "Address space of the process, in bytes", bytes(virtual_bytes)),
            ("process_open_fds", "Open file descriptors", bytes(open_fds)),
            ("process_max_fds", "File descriptors that the process may have", bytes(max_fds)),
            ("process_start_time_seconds", "Start of the process, in seconds since 1970", start_time_s),
        ] {
            if let Some(value) = value {
                let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                ConstGauge::new(value).encode(metric)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_in_the_files_of_linux() {
        let stat = "77 (a ) b) S 1 77 77 0 -1 4194560 9 0 0 0 250 50 0 0 20 0 4 0 12345 1000 25 18446744073709551615";
        let status = "Name:\ta\nVmSize:\t    2048 kB\nVmRSS:\t     512 kB\n";
        let limits = "Limit  Soft  Hard  Units\nMax open files            1024    4096    files\n";
        let found = Process::parse(stat, status, limits, "cpu 1 2\nbtime 1700000000\n");
        let expected = Process {
            cpu_s: Some(3.0),
            resident_bytes: Some(512 << 10),
            virtual_bytes: Some(2048 << 10),
            open_fds: None,
            max_fds: Some(1024),
            start_time_s: Some(1_700_000_123.45),
        };
        assert_eq!(found, expected);
        assert_eq!(Process::parse("", "", "", ""), Process::default());
    }

    #[test]
    fn this_process_has_them_all() {
        let Process { cpu_s, resident_bytes, virtual_bytes, open_fds, max_fds, start_time_s } =
            Process::now();
        let seconds = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("later than 1970").as_secs_f64();
        assert!(cpu_s.is_some() && resident_bytes > Some(1 << 20) && virtual_bytes >= resident_bytes);
        assert!(open_fds > Some(2) && max_fds >= open_fds);
        assert!(start_time_s.is_some_and(|begun| begun < seconds + 2.0 && begun > seconds - 1e6));
    }
}
