//! What ran when: per-thread rings of timestamps, kept from the first round on, exported as Chrome trace events.
//!
//! Invariants: recording allocates nothing, takes no lock and makes no system call; a ring has one writer at a time,
//! and a reader that comes too late finds entries gone, never mixed. Rings say nothing about names: ids are the
//! caller's, who turns them into text when exporting. Files are the caller's, too. Next: `clock.rs`.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Nanos;
use crate::sync::CachePadded;

/// What an entry's time was spent on. A track of the exported trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Track {
    /// A worker of the team.
    Worker(u16),
    /// The GPU's compute stream.
    Compute,
    /// The copy engine.
    Transfer,
    /// The executor: waits for the GPU, schedule switches.
    Control,
}

impl Track {
    fn encode(self) -> u64 {
        match self {
            Self::Compute => 0,
            Self::Transfer => 1,
            Self::Control => 2,
            Self::Worker(index) => 3 + u64::from(index),
        }
    }

    fn decode(code: u64) -> Self {
        match code {
            0 => Self::Compute,
            1 => Self::Transfer,
            2 => Self::Control,
            index => Self::Worker((index - 3) as u16),
        }
    }

    fn name(self) -> String {
        match self {
            Self::Worker(index) => format!("CPU worker {index}"),
            Self::Compute => "GPU compute".to_owned(),
            Self::Transfer => "GPU transfer".to_owned(),
            Self::Control => "executor".to_owned(),
        }
    }
}

/// One thing that ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Where.
    pub track: Track,
    /// Split of the round, as the executor numbers them.
    pub split: u16,
    /// Operator or other label, as the executor numbers them.
    pub label: u32,
    /// When it began.
    pub start: Nanos,
    /// When it ended.
    pub end: Nanos,
}

/// The last entries of one thread.
#[derive(Debug)]
pub struct Ring {
    slots: Box<[[AtomicU64; 3]]>,
    begun: CachePadded<AtomicU64>,
    written: CachePadded<AtomicU64>,
}

impl Ring {
    /// A ring that keeps the last `entries` (at least 1).
    pub fn new(entries: usize) -> Self {
        let slots = (0..entries.max(1)).map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect();
        Self { slots, begun: CachePadded::default(), written: CachePadded::default() }
    }

    /// Adds an entry. One thread at a time.
    pub fn push(&self, entry: Entry) {
        let number = self.written.load(Ordering::Relaxed);
        let slot = &self.slots[(number % self.slots.len() as u64) as usize];
        // A reader must learn that the slot is being rewritten before it can see any of the new words.
        self.begun.store(number + 1, Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::Release);
        let what = entry.track.encode() << 48 | u64::from(entry.split) << 32 | u64::from(entry.label);
        for (place, word) in slot.iter().zip([what, entry.start.0, entry.end.0]) {
            place.store(word, Ordering::Relaxed);
        }
        self.written.store(number + 1, Ordering::Release);
    }

    /// Entries ever pushed: a mark for [`since`](Self::since).
    pub fn mark(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// The entries since `mark` that are still there, oldest first, appended to `into`. Returns the new mark.
    pub fn since(&self, mark: u64, into: &mut Vec<Entry>) -> u64 {
        let written = self.mark();
        let kept = self.slots.len() as u64;
        for number in mark.max(written.saturating_sub(kept))..written {
            let words = self.slots[(number % kept) as usize].each_ref().map(|word| word.load(Ordering::Relaxed));
            std::sync::atomic::fence(Ordering::Acquire);
            if self.begun.load(Ordering::Relaxed) <= number + kept {
                into.push(decode(words));
            }
        }
        written
    }
}

fn decode([what, start, end]: [u64; 3]) -> Entry {
    Entry {
        track: Track::decode(what >> 48),
        split: (what >> 32) as u16,
        label: what as u32,
        start: Nanos(start),
        end: Nanos(end),
    }
}

/// Entries as a Chrome trace (JSON object with `traceEvents`; ui.perfetto.dev and chrome://tracing open it): one track
/// per worker and per GPU queue. `name` turns an entry into its label.
pub fn chrome_trace(entries: &[Entry], name: impl Fn(&Entry) -> String) -> String {
    let mut tracks: Vec<Track> = entries.iter().map(|entry| entry.track).collect();
    tracks.sort_unstable();
    tracks.dedup();
    let mut text = String::from("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    let mut comma = "";
    for track in tracks {
        let (tid, name) = (track.encode(), quoted(&track.name()));
        write_event(
            &mut text,
            &mut comma,
            format_args!("\"ph\":\"M\",\"name\":\"thread_name\",\"tid\":{tid},\"args\":{{\"name\":{name}}}"),
        );
    }
    for entry in entries {
        let (tid, name, split) = (entry.track.encode(), quoted(&name(entry)), entry.split);
        let (start, span) = (entry.start.as_micros_f64(), entry.end.since(entry.start).as_micros_f64());
        let times = format!("\"ts\":{start:.3},\"dur\":{span:.3}");
        let fields = format_args!("\"ph\":\"X\",\"name\":{name},\"tid\":{tid},{times},\"args\":{{\"split\":{split}}}");
        write_event(&mut text, &mut comma, fields);
    }
    text.push_str("\n]}\n");
    text
}

fn write_event(text: &mut String, comma: &mut &str, fields: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = write!(text, "{comma}\n{{\"pid\":1,{fields}}}");
    *comma = ",";
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut json = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => json.extend(['\\', character]),
            control if control < ' ' => _ = write!(json, "\\u{:04x}", control as u32),
            other => json.push(other),
        }
    }
    json.push('"');
    json
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(number: u64) -> Entry {
        let track =
            [Track::Compute, Track::Transfer, Track::Control, Track::Worker(number as u16 % 200)][number as usize % 4];
        let (split, label) = (number as u16, (number * 7) as u32);
        Entry { track, split, label, start: Nanos(number * 3), end: Nanos(number * 5) }
    }

    #[test]
    fn a_ring_keeps_the_last_entries_and_a_mark_continues() {
        let ring = Ring::new(4);
        let (mut found, mut mark) = (Vec::new(), 0);
        for (pushes, expected) in [(0, vec![]), (3, vec![0, 1, 2]), (2, vec![3, 4]), (9, vec![10, 11, 12, 13])] {
            for _ in 0..pushes {
                ring.push(entry(ring.mark()));
            }
            found.clear();
            mark = ring.since(mark, &mut found);
            assert_eq!(found, expected.into_iter().map(entry).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_reader_beside_the_writer_sees_whole_entries_in_order() {
        let ring = Ring::new(8);
        std::thread::scope(|scope| {
            scope.spawn(|| (0..20_000).for_each(|number| ring.push(entry(number))));
            let (mut mark, mut last) = (0, None);
            while mark < 20_000 {
                let mut found = Vec::new();
                mark = ring.since(mark, &mut found);
                for seen in found {
                    assert_eq!(seen, entry(seen.start.0 / 3));
                    assert!(last.is_none_or(|last| last < seen.start));
                    last = Some(seen.start);
                }
                std::thread::yield_now();
            }
        });
    }

    #[test]
    fn a_trace_is_json_with_named_tracks() {
        let entries = [
            Entry { track: Track::Worker(1), split: 2, label: 3, start: Nanos(1500), end: Nanos(4000) },
            Entry { track: Track::Transfer, split: 0, label: 9, start: Nanos(0), end: Nanos(1) },
        ];
        let text = chrome_trace(&entries, |entry| format!("op \"{}\"\n", entry.label));
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let events = json["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), 4);
        assert_eq!(events[0]["args"]["name"], "CPU worker 1");
        assert_eq!(events[2]["name"], "op \"3\"\n");
        assert_eq!((events[2]["ts"].as_f64(), events[2]["dur"].as_f64()), (Some(1.5), Some(2.5)));
        assert_eq!(events[2]["tid"], events[0]["tid"]);
        assert!(serde_json::from_str::<serde_json::Value>(&chrome_trace(&[], |_| String::new())).is_ok());
    }

    proptest! {
        #[test]
        fn any_name_survives_quoting(name in ".*") {
            prop_assert_eq!(serde_json::from_str::<String>(&quoted(&name)).unwrap(), name);
        }

        #[test]
        fn any_entry_survives_the_ring(code in 0_u64..1024, split: u16, label: u32, start: u64, end: u64) {
            let pushed = Entry { track: Track::decode(code), split, label, start: Nanos(start), end: Nanos(end) };
            let (ring, mut found) = (Ring::new(1), Vec::new());
            ring.push(pushed);
            ring.since(0, &mut found);
            prop_assert_eq!(found, vec![pushed]);
        }
    }
}
