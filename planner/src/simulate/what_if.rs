//! The machine that might be: a profile with another link. Pure; planning for it is `crate::compile`.

use crate::profile::Profile;

/// The profile with a link of `gb_per_s` for large pieces, all else as it is.
///
/// All rates of the link scale with it, small pieces and mapped reads as well (their latencies stay in `latency`).
/// While CPU and copy engine share the DRAM, a slower link takes less of it and leaves more to the CPU, never more than
/// the CPU reads alone; a faster one gains no more than its share at present grows by.
pub fn with_link(profile: &Profile, gb_per_s: f64) -> Profile {
    let mut changed = profile.clone();
    let Some(gpu) = &mut changed.gpu else { return changed };
    let now_gb_per_s = gpu.host_to_device.iter().map(|rate| rate.gb_per_s).fold(0.0, f64::max);
    let factor = gb_per_s / now_gb_per_s;
    for rate in gpu.host_to_device.iter_mut().chain(&mut gpu.device_to_host) {
        rate.gb_per_s *= factor;
    }
    gpu.zero_copy_gb_per_s *= factor;
    gpu.pageable_gb_per_s = gpu.pageable_gb_per_s.min(gb_per_s);
    for team in &mut changed.contention {
        let dram_gb_per_s = team.cpu_while_link_gb_per_s + team.link_while_cpu_gb_per_s;
        team.link_alone_gb_per_s *= factor;
        team.link_while_cpu_gb_per_s = (team.link_while_cpu_gb_per_s * factor.max(1.0)).min(team.link_alone_gb_per_s);
        let left_gb_per_s = dram_gb_per_s - team.link_while_cpu_gb_per_s;
        // A tenth at least: nobody starves.
        team.cpu_while_link_gb_per_s = left_gb_per_s.clamp(team.cpu_alone_gb_per_s / 10.0, team.cpu_alone_gb_per_s);
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::with_link;
    use crate::profile::{Profile, machines::MACHINES, synthetic};

    #[test]
    fn a_link_of_another_width_is_still_a_possible_machine() {
        for machine in MACHINES {
            let profile = synthetic::profile(machine);
            for gb_per_s in [3.0, 12.0, 25.0, 50.0] {
                let changed = with_link(&profile, gb_per_s);
                let again = Profile::from_json(&changed.to_json()).unwrap_or_else(|e| panic!("{}: {e}", machine.name));
                let Some(gpu) = &again.gpu else { continue };
                let best = gpu.host_to_device.iter().map(|rate| rate.gb_per_s).fold(0.0, f64::max);
                assert!((best - gb_per_s).abs() < 1e-9, "{}: {best}", machine.name);
                for (old, new) in profile.contention.iter().zip(&again.contention) {
                    assert!(new.link_while_cpu_gb_per_s <= new.link_alone_gb_per_s);
                    assert!(new.cpu_while_link_gb_per_s <= old.cpu_alone_gb_per_s);
                }
            }
        }
    }

    #[test]
    fn the_same_link_changes_nothing_and_a_slower_one_leaves_more_to_the_cpu() {
        let profile = synthetic::profile(&MACHINES[0]);
        let now = profile.gpu.as_ref().unwrap().host_to_device.iter().map(|rate| rate.gb_per_s).fold(0.0, f64::max);
        let same = with_link(&profile, now);
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9 * b;
        for (old, new) in profile.contention.iter().zip(&same.contention) {
            assert!(close(new.cpu_while_link_gb_per_s, old.cpu_while_link_gb_per_s));
            assert!(close(new.link_while_cpu_gb_per_s, old.link_while_cpu_gb_per_s));
        }
        let slower = with_link(&profile, now / 4.0);
        let last = |p: &Profile| p.contention.last().unwrap().cpu_while_link_gb_per_s;
        assert!(last(&slower) > last(&profile));
    }
}
