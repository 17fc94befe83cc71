//! Simulated machines by name: their device profiles as the simulated GPU and the fingerprints of plans want them.
//!
//! The profiles are the synthetic ones that `ats-plan` plans for (`--device sim:NAME` of both programs). Only the
//! figures that the simulation itself needs are read; what operators cost comes with the plan. Not here: planning.

use crate::Error;
use crate::hybrid::HandOver;
use device::clock::Nanos;
use device::sim::{LinkPoint, SimProfile};
use plan_format::find;
use plan_format::fingerprint::{DeviceFingerprint, SIMULATED};
use serde_json::Value;

/// Name and profile of every machine.
const PROFILES: [(&str, &str); 9] = [
    ("cpu-laptop", include_str!("../../../fixtures/devices/cpu-laptop.json")),
    ("h200-16core", include_str!("../../../fixtures/devices/h200-16core.json")),
    ("rtx2080-quad-ddr4", include_str!("../../../fixtures/devices/rtx2080-quad-ddr4.json")),
    ("rtx3060-desktop", include_str!("../../../fixtures/devices/rtx3060-desktop.json")),
    ("rtx3060-laptop", include_str!("../../../fixtures/devices/rtx3060-laptop.json")),
    ("rtx4050-laptop-16g", include_str!("../../../fixtures/devices/rtx4050-laptop-16g.json")),
    ("rtx4060-laptop", include_str!("../../../fixtures/devices/rtx4060-laptop.json")),
    ("rtx4090-desktop", include_str!("../../../fixtures/devices/rtx4090-desktop.json")),
    ("rtx5090-desktop", include_str!("../../../fixtures/devices/rtx5090-desktop.json")),
];

/// A simulated machine.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulatedMachine {
    name: &'static str,
    fingerprint: DeviceFingerprint,
    free_mib: u64,
    /// Figures of the GPU, its memory 0 if there is none.
    pub profile: SimProfile,
    /// What the simulation adds to each hand-over.
    pub hand_over: HandOver,
}

impl SimulatedMachine {
    /// The machine of a name, with or without `sim:`. Errors: there is none of that name.
    pub fn named(name: &str) -> Result<Self, Error> {
        let plain = name.strip_prefix(SIMULATED).unwrap_or(name);
        let found = PROFILES.iter().find(|(known, _)| *known == plain);
        let (name, text) = found.ok_or_else(|| Error::NoSimulatedMachine {
            name: name.to_owned(),
            known: PROFILES.map(|(known, _)| known).join(", "),
        })?;
        read(name, text).ok_or(Error::Program { what: "a built-in device profile that cannot be read" })
    }

    /// As a person names it: `sim:rtx3060-laptop`.
    pub fn name(&self) -> String {
        format!("{SIMULATED}{}", self.name)
    }

    /// What a plan must be for to run on it.
    pub fn fingerprint(&self) -> &DeviceFingerprint {
        &self.fingerprint
    }

    /// Ceiling of GPU memory of plans that are made unasked.
    pub fn ceiling_mib(&self) -> u64 {
        find::unasked_ceiling_mib(self.free_mib)
    }
}

fn read(name: &'static str, text: &str) -> Option<SimulatedMachine> {
    let json: Value = serde_json::from_str(text).ok()?;
    let (gpu, latency) = (&json["gpu"], &json["latency"]);
    let number = |value: &Value| value.as_f64();
    let mib = |value: &Value| value.as_u64().unwrap_or(0) << 20;
    let classes = json["cpu"]["core_classes"].as_array()?;
    let cores: u64 = classes.iter().filter_map(|class| class["cores"].as_u64()).sum();
    let gpu_memory_bytes = gpu.is_object().then(|| mib(&gpu["memory_mib"]));
    let cpu_model = json["cpu"]["model"].as_str()?;
    let link = gpu["host_to_device"].as_array().map(Vec::as_slice).unwrap_or_default();
    let point = |point: &Value| {
        Some(LinkPoint { bytes: point["size_kib"].as_u64()? << 10, rate_gbps: number(&point["gb_per_s"])? })
    };
    let link = link.iter().map(point).collect::<Option<Vec<_>>>()?;
    let fastest = link.last().map_or(1.0, |point| point.rate_gbps);
    let micros = |field: &str| number(&latency[field]).unwrap_or(0.0);
    let profile = SimProfile {
        name: name.to_owned(),
        memory_bytes: mib(&gpu["memory_mib"]),
        context_bytes: mib(&gpu["context_mib"]) + mib(&gpu["kernels_mib"]),
        pinned_limit_bytes: mib(&json["memory"]["pinned_limit_mib"]),
        link,
        pageable_factor: (number(&gpu["pageable_gb_per_s"]).unwrap_or(fastest) / fastest).min(1.0),
        submit: Nanos::from_micros_f64(micros("gpu_op_us")),
        copy_start: Nanos(0),
        to_gpu: Nanos::from_micros_f64(micros("to_gpu_us")),
        to_cpu: Nanos::from_micros_f64(micros("to_cpu_us")),
    };
    Some(SimulatedMachine {
        name,
        fingerprint: DeviceFingerprint::simulated(name, cpu_model, u32::try_from(cores).ok()?, gpu_memory_bytes),
        free_mib: gpu["free_mib"].as_u64().unwrap_or(0),
        profile,
        hand_over: HandOver { to_gpu_us: micros("to_gpu_us") as f32, to_cpu_us: micros("to_cpu_us") as f32 },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_is_read_and_names_itself() {
        for (name, text) in PROFILES {
            let json: Value = serde_json::from_str(text).expect("JSON");
            assert_eq!(json["name"], name);
            let machine = SimulatedMachine::named(&format!("sim:{name}")).expect(name);
            assert_eq!(machine.fingerprint.simulated_profile(), Some(name));
            assert_eq!(machine.fingerprint.gpu.is_some(), machine.ceiling_mib() > 0, "{name}");
            assert!(machine.profile.link.windows(2).all(|pair| pair[0].bytes < pair[1].bytes), "{name}");
        }
    }

    #[test]
    fn the_papers_laptop_is_as_its_profile_says() {
        let machine = SimulatedMachine::named("rtx3060-laptop").expect("a known name");
        assert_eq!((machine.name().as_str(), machine.ceiling_mib()), ("sim:rtx3060-laptop", 5632));
        assert_eq!(machine.profile.context_bytes, 220 << 20);
        assert_eq!((machine.profile.to_gpu, machine.profile.to_cpu), (Nanos(6000), Nanos(8000)));
        assert!((machine.profile.pageable_factor - 0.4).abs() < 0.01);
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let text = SimulatedMachine::named("sim:cray-1").expect_err("unknown").to_string();
        assert!(text.contains("cray-1") && text.contains("rtx3060-laptop"), "{text}");
    }
}
