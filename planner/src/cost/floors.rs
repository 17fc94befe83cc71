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

/// Floors of a round of `case` under a prepared schedule, at no load; never above what the round is priced at.
///
/// An item that the profile says to be faster than plain reads (small weights in a cache, a plain read measured on a
/// busy machine) counts with its time, and memory delivers at least what CPU and link together were measured to take.
pub fn floors(problem: &Problem, profile: &Profile, case: usize, prepared: &Prepared) -> Floors {
    let costs = &problem.costs.cases[case];
    let team = &problem.costs.teams[prepared.team];
    let cpu_us = problem.cpu_us(case, prepared.team);
    let bytes_of = |item: usize| problem.read_bytes[case][item] as f64;
    let us = |bytes: f64, gb_per_s: f64| bytes / gb_per_s / 1000.0;
    let streams = || prepared.streams.iter().map(|stream| stream.item as usize);
    let stream_us = |item: usize| f64::from(costs.items[item].stream_us);
    let streamed_bytes: f64 = streams().map(bytes_of).sum();
    let link_us: f64 = streams().map(stream_us).sum();
    let link_gb_per_s = streams().map(|item| bytes_of(item) / stream_us(item).max(1e-3) / 1000.0).fold(0.0, f64::max);
    let read_gb_per_s = profile.memory.read_gb_per_s;
    let gpu_gb_per_s = profile.gpu.as_ref().map_or(f64::INFINITY, |gpu| gpu.memory_gb_per_s);
    let (mut host_us, mut gpu_us, mut dram_gb_per_s) = (0.0, 0.0, read_gb_per_s.max(link_gb_per_s));
    for (item, cost) in costs.items.iter().enumerate() {
        if prepared.on_gpu[item] {
            gpu_us += us(bytes_of(item), gpu_gb_per_s).min(f64::from(cost.gpu_us));
            continue;
        }
        let alone_us = f64::from(cpu_us[item]);
        let item_us = us(bytes_of(item), read_gb_per_s).min(alone_us);
        host_us += item_us;
        let stretch = |slowdown: f32| 1.0 + f64::from(cost.dram_share) * (f64::from(slowdown) - 1.0);
        let beside_link = item_us / alone_us.max(1e-3) * read_gb_per_s / stretch(team.cpu_slowdown_while_link);
        let link = link_gb_per_s / stretch(team.link_slowdown_while_cpu);
        dram_gb_per_s = dram_gb_per_s.max(beside_link + link);
    }
    let dram_us = us(host_us * read_gb_per_s * 1000.0 + streamed_bytes, dram_gb_per_s);
    Floors {
        overlapped_us: dram_us.max(host_us).max(gpu_us).max(link_us),
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
