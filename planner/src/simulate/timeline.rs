//! What a simulation saw: spans on four lanes, and its export as a Chrome trace.

use std::fmt::Write;

/// A resource that does one thing at a time, except `Switch`, where activations are under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// CPU team.
    Cpu,
    /// GPU compute stream.
    Gpu,
    /// Copy engine.
    Link,
    /// Activations between processors.
    Switch,
}

impl Lane {
    /// All lanes in display order.
    pub const ALL: [Lane; 4] = [Lane::Cpu, Lane::Gpu, Lane::Link, Lane::Switch];

    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            Lane::Cpu => "CPU",
            Lane::Gpu => "GPU",
            Lane::Link => "link (weights)",
            Lane::Switch => "switch (activations)",
        }
    }
}

/// Something that occupied a lane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// Where.
    pub lane: Lane,
    /// Item executed, streamed, or whose output moved.
    pub item: u32,
    /// Round of the item's execution.
    pub round: u32,
    /// Start.
    pub start_us: f64,
    /// End.
    pub end_us: f64,
}

/// All spans of a simulation.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Timeline {
    /// By start time.
    pub spans: Vec<Span>,
    /// Start of each round and, last, the end of the last.
    pub round_starts_us: Vec<f64>,
}

impl Timeline {
    /// Duration of round `round`, gap included.
    pub fn round_us(&self, round: usize) -> f64 {
        self.round_starts_us[round + 1] - self.round_starts_us[round]
    }

    /// Share of a round during which a lane was busy, 0 to 1; overlapping switches count once each.
    pub fn busy_share(&self, lane: Lane, round: usize) -> f64 {
        let (from_us, to_us) = (self.round_starts_us[round], self.round_starts_us[round + 1]);
        let within = |span: &Span| (span.end_us.min(to_us) - span.start_us.max(from_us)).max(0.0);
        let busy_us: f64 = self.spans.iter().filter(|span| span.lane == lane).map(within).sum();
        busy_us / (to_us - from_us)
    }

    /// The Trace Event Format that chrome://tracing and Perfetto read; `names` are the items'.
    pub fn to_chrome_trace(&self, names: &[String]) -> String {
        let mut text = String::from("{\"traceEvents\":[\n");
        for (tid, lane) in Lane::ALL.iter().enumerate() {
            let name = lane.name();
            let _ = writeln!(
                text,
                "{{\"ph\":\"M\",\"pid\":1,\"tid\":{tid},\"name\":\"thread_name\",\"args\":{{\"name\":\"{name}\"}}}},"
            );
        }
        for (index, span) in self.spans.iter().enumerate() {
            let tid = Lane::ALL.iter().position(|&lane| lane == span.lane).unwrap_or(0);
            let name = serde_json::Value::from(names.get(span.item as usize).map_or("?", String::as_str));
            let comma = if index + 1 == self.spans.len() { "" } else { "," };
            let _ = writeln!(
                text,
                "{{\"ph\":\"X\",\"pid\":1,\"tid\":{tid},\"name\":{name},\"ts\":{:.3},\"dur\":{:.3},\
                 \"args\":{{\"round\":{}}}}}{comma}",
                span.start_us,
                span.end_us - span.start_us,
                span.round
            );
        }
        text.push_str("]}\n");
        text
    }
}
