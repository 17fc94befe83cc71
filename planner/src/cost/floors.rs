//! Bounds on what any schedule of a placement can reach (DESIGN, cost and static placement).
//!
//! Overlapped floor: the busiest of host DRAM (with the share that the link takes), GPU memory, and link. Serial floor:
//! host, GPU and switches one after the other, nothing overlapped between processors.

use super::Problem;
use crate::profile::Profile;
use plan_format::evaluate::Prepared;

/// The two floors of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Floors {
    /// No schedule with these items on the GPU is faster, all processors and the link working at once.
    pub overlapped_us: f64,
    /// Items at full memory bandwidth one after the other, and the switches between them.
    pub serial_us: f64,
}

/// Floors of a round of `case` under a prepared schedule, at no load.
pub fn floors(problem: &Problem, profile: &Profile, case: usize, prepared: &Prepared) -> Floors {
    let costs = &problem.costs.cases[case];
    let (mut host_bytes, mut gpu_bytes, mut link_us) = (0.0, 0.0, 0.0);
    for (item, &bytes) in problem.read_bytes[case].iter().enumerate() {
        if prepared.on_gpu[item] {
            gpu_bytes += bytes as f64;
        } else {
            host_bytes += bytes as f64;
        }
    }
    let mut streamed_bytes = 0.0;
    for stream in &prepared.streams {
        link_us += f64::from(costs.items[stream.item as usize].stream_us);
        streamed_bytes += problem.read_bytes[case][stream.item as usize] as f64;
    }
    let us = |bytes: f64, gb_per_s: f64| bytes / gb_per_s / 1000.0;
    let dram_us = us(host_bytes + streamed_bytes, profile.memory.read_gb_per_s);
    let gpu_us = profile.gpu.as_ref().map_or(0.0, |gpu| us(gpu_bytes, gpu.memory_gb_per_s));
    let host_us = us(host_bytes, profile.memory.read_gb_per_s);
    Floors {
        overlapped_us: dram_us.max(gpu_us).max(link_us),
        serial_us: host_us + gpu_us + switches_us(problem, case, prepared),
    }
}

/// Switches of a round, each producer and destination once.
pub fn switches_us(problem: &Problem, case: usize, prepared: &Prepared) -> f64 {
    let costs = &problem.costs.cases[case];
    let mut crossed = vec![false; problem.items.len()];
    let mut total_us = 0.0;
    for item in 0..problem.items.len() {
        for producer in problem.costs.inputs_of(item) {
            let p = producer.index();
            if prepared.on_gpu[p] != prepared.on_gpu[item] && !crossed[p] {
                crossed[p] = true;
                let cost = &costs.items[p];
                total_us += f64::from(if prepared.on_gpu[item] { cost.to_gpu_us } else { cost.to_cpu_us });
            }
        }
    }
    total_us
}
