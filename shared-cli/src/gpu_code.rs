//! Which CUDA modules a program needs, and the machine code that a driver makes of them: `ats-plan` stores it in the
//! plan so that `ats-run` compiles nothing, and both must name the same modules. Not here: launches (`kernels::cuda`),
//! loading (`device::cuda`).

use device::DeviceError;
use device::cuda::CudaGpu;
use gguf::GgmlType;
use kernels::cuda::{Chip, GpuLayout};
use kernels::quant::WeightType;
use plan_format::artifact::MachineCode;
use plan_format::program::{Program, WeightRole};

/// PTX modules that a program on a GPU with this chip may need: those of its weights' types in the layouts in which a
/// GPU keeps them, and those that every program needs. Sorted.
pub fn modules(program: &Program, chip: Chip) -> Vec<&'static str> {
    let (mut products, mut lookups) = (Vec::new(), Vec::new());
    for weight in &program.weights {
        let tensor = &program.tensors[weight.tensor.index()];
        let Ok(ty) = WeightType::try_from(GgmlType::from_id(tensor.ggml_type)) else { continue };
        let place = (ty, GpuLayout::preferred(ty));
        if matches!(weight.role, WeightRole::EmbeddingRows | WeightRole::TiedHead) {
            lookups.push(place);
        }
        if !matches!(weight.role, WeightRole::EmbeddingRows | WeightRole::Small) {
            products.push(place);
        }
    }
    kernels::cuda::modules_for(chip, products, lookups)
}

/// BLAKE3 of a module's PTX, all zero for an unknown module.
pub fn ptx_hash(module: &str) -> [u8; 32] {
    kernels::cuda::ptx(module).map_or([0; 32], |text| *blake3::hash(text.as_bytes()).as_bytes())
}

/// Machine code of modules for a device and its driver, made on `threads` threads: seconds per module and thread.
///
/// # Errors
/// The first module that the driver does not take.
pub fn machine_code(gpu: &CudaGpu, modules: &[&str], threads: usize) -> Result<Vec<MachineCode>, DeviceError> {
    let codes = gpu.machine_codes(modules, threads)?;
    let named = |(&module, bytes): (&&str, Vec<u8>)| MachineCode {
        module: module.to_owned(),
        ptx_hash: ptx_hash(module),
        bytes,
    };
    Ok(modules.iter().zip(codes).map(named).collect())
}

/// Loads modules: from stored machine code where it was made of the same PTX and this driver takes it, else from PTX on
/// `threads` threads. Returns how many had to be compiled.
///
/// # Errors
/// A module that does not load.
pub fn load(gpu: &CudaGpu, modules: &[&str], code: &[MachineCode], threads: usize) -> Result<usize, DeviceError> {
    let mut missing = Vec::new();
    for &name in modules {
        let stored = code.iter().find(|stored| stored.module == name && stored.ptx_hash == ptx_hash(name));
        if stored.is_none_or(|stored| gpu.load_machine_code(name, &stored.bytes).is_err()) {
            missing.push(name);
        }
    }
    gpu.load_modules(&missing, threads)?;
    Ok(missing.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_differ_between_modules_and_unknown_ones_match_nothing_stored() {
        assert_ne!(ptx_hash("rows"), ptx_hash("heads"));
        assert_eq!(ptx_hash("no_such_module"), [0; 32]);
    }
}
