//! Load on the machine, for measurements: what share of cores, GPU and link others are to take, and in which phases.
//!
//! `processes.rs` starts one process a resource and turns it on and off, `worker.rs` is such a process from inside. On
//! a simulated machine load is a script on its clock ([`LoadSpec::script`]). Not here: what is measured under it
//! (`timeline/`). Next: `processes.rs`.

mod gpu;
mod pace;
mod processes;
mod worker;

pub use processes::Generators;
pub use worker::{LoadWorkerArgs, run as run_worker};

use device::clock::Nanos;
use device::sim::{LoadStep, Resource};

/// Most that others may take: what is left must let a round end.
const SHARE_MOST: f64 = 0.95;

/// Shares of each resource that others take, 0 to 0.95.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadSpec {
    /// Of all cores, reading memory.
    pub cpu: f64,
    /// Of the time of the GPU.
    pub gpu: f64,
    /// Of the bandwidth of the link to the GPU.
    pub link: f64,
}

/// A stretch of time with one load.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// In words: `no load`, `CPU 60 %`.
    pub name: String,
    /// What others take.
    pub load: LoadSpec,
}

impl LoadSpec {
    /// Reads `cpu=60,link=60,gpu=60`: percent of each, those left out 0.
    ///
    /// # Errors
    /// Another name, no number, or a number that is out of range.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut spec = LoadSpec::default();
        for part in text.split(',') {
            let (name, percent) =
                part.split_once('=').ok_or_else(|| format!("`{part}` is not like cpu=60; give cpu, gpu and link"))?;
            let share = percent.trim().parse::<f64>().map_err(|_| format!("`{percent}` is no number of percent"))?;
            let share = share / 100.0;
            if !(0.0..=SHARE_MOST).contains(&share) {
                return Err(format!("{name}: give 0 to {:.0} percent", SHARE_MOST * 100.0));
            }
            match name.trim() {
                "cpu" => spec.cpu = share,
                "gpu" => spec.gpu = share,
                "link" => spec.link = share,
                other => return Err(format!("`{other}` is no resource; there are cpu, gpu and link")),
            }
        }
        if spec.is_none() { Err("a load of nothing: give at least one resource a share".to_owned()) } else { Ok(spec) }
    }

    /// Whether nobody takes anything.
    pub fn is_none(&self) -> bool {
        *self == LoadSpec::default()
    }

    /// The phases of the paper's Figure 13: the CPU's load first, then that of GPU and link, calm before, between and
    /// after.
    pub fn phases(&self) -> Vec<Phase> {
        let loads = [LoadSpec { cpu: self.cpu, ..Self::default() }, LoadSpec { cpu: 0.0, ..*self }];
        let mut phases = vec![Phase::new(LoadSpec::default())];
        for load in loads.into_iter().filter(|load| !load.is_none()) {
            phases.extend([Phase::new(load), Phase::new(LoadSpec::default())]);
        }
        phases
    }

    /// What a simulated machine's clock is told: from `at` on this much is taken. Cores are taken whole: a team that is
    /// smaller than what is left does not notice. What is left of GPU and link serves us in turn with others.
    pub fn script(&self, at: Nanos) -> [LoadStep; 3] {
        let taken = [(Resource::Cores, self.cpu), (Resource::Gpu, self.gpu), (Resource::Link, self.link)];
        taken.map(|(resource, share)| LoadStep { at, resource, slowdown: 1.0 / (1.0 - share) })
    }
}

impl Phase {
    fn new(load: LoadSpec) -> Self {
        let parts = [("CPU", load.cpu), ("GPU", load.gpu), ("link", load.link)];
        let parts = parts.into_iter().filter(|(_, share)| *share > 0.0);
        let parts: Vec<String> = parts.map(|(name, share)| format!("{name} {:.0} %", share * 100.0)).collect();
        Phase { name: if parts.is_empty() { "no load".to_owned() } else { parts.join(", ") }, load }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, names: &[&str]) {
        let spec = LoadSpec::parse(text).expect("a good load");
        let got: Vec<String> = spec.phases().into_iter().map(|phase| phase.name).collect();
        assert_eq!(got, names, "{text}");
    }

    #[test]
    fn loads_are_read_and_applied_in_the_papers_order() {
        check("cpu=60", &["no load", "CPU 60 %", "no load"]);
        check("gpu=30", &["no load", "GPU 30 %", "no load"]);
        check("link=60,cpu=50,gpu=60", &["no load", "CPU 50 %", "no load", "GPU 60 %, link 60 %", "no load"]);
    }

    #[test]
    fn what_is_no_load_is_refused() {
        for (text, word) in [
            ("cpu", "cpu=60"),
            ("cpu=x", "number"),
            ("cpu=96", "95"),
            ("cpu=-1", "0 to"),
            ("disk=5", "disk"),
            ("", "cpu=60"),
            ("cpu=0", "nothing"),
            ("cpu=NaN", "0 to"),
        ] {
            let error = LoadSpec::parse(text).expect_err(text);
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn a_share_taken_leaves_the_rest() {
        let [cores, gpu, link] = LoadSpec { cpu: 0.6, gpu: 0.5, link: 0.0 }.script(Nanos(7));
        assert_eq!((cores.slowdown, gpu.slowdown, link.slowdown), (2.5, 2.0, 1.0));
        assert_eq!((cores.at, cores.resource), (Nanos(7), Resource::Cores));
    }
}
