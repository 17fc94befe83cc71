//! What is known of a device without a context on it: its link at best, its driver, its free memory. Next: `probe.rs`.

/// `PCIe 4.0 x16`: the fastest link that device and slot allow, not the width that power saving leaves; `None` where
/// the management library does not say.
pub fn link_name(ordinal: u32) -> Option<String> {
    let nvml = nvml_wrapper::Nvml::init().ok()?;
    let device = nvml.device_by_index(ordinal).ok()?;
    let (generation, lanes) = (device.max_pcie_link_gen().ok()?, device.max_pcie_link_width().ok()?);
    Some(format!("PCIe {generation}.0 x{lanes}"))
}

/// Memory that nobody has taken; `None` where the management library does not say.
pub fn memory_free_bytes(ordinal: u32) -> Option<u64> {
    let nvml = nvml_wrapper::Nvml::init().ok()?;
    Some(nvml.device_by_index(ordinal).ok()?.memory_info().ok()?.free)
}

/// `CUDA 12.8` for 12080, as the driver numbers its versions.
pub fn driver_name(version: u32) -> String {
    format!("CUDA {}.{}", version / 1000, version % 1000 / 10)
}

#[cfg(test)]
mod tests {
    #[test]
    fn drivers_are_named_by_the_cuda_version_that_they_bring() {
        assert_eq!(super::driver_name(12_080), "CUDA 12.8");
        assert_eq!(super::driver_name(13_010), "CUDA 13.1");
    }
}
