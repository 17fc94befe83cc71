//! The CUDA backend's pure half: PTX modules, weight layouts, and for every operator the launch that computes it.
//!
//! Kernels are `*.cu` beside this file (start with `common.cuh`); `cargo xtask ptx` makes `ptx/*.ptx.gz`, a module per
//! operator family and, where weights are read, per weight type and layout. The functions here only describe launches:
//! which kernel of which module, on which grid, with which arguments. They touch no device. `device::cuda` loads
//! modules and enqueues launches; `check.rs` runs the case tables over any machine that can do so.
//! Read `launch.rs` next, then `product.rs` (matrix products), `ops.rs` (the rest).

mod args;
pub mod attention;
pub mod check;

pub mod experts;
mod launch;
mod layout;
pub mod ops;
pub mod product;
mod ptx;
pub mod recurrent;
pub mod rows;
pub mod transfer;

use std::io::Read as _;

use crate::quant::WeightType;
use flate2::read::GzDecoder;

pub use args::{BlockScale, Forms, View};
pub use launch::{DevicePtr, Launch};
pub use layout::{GpuLayout, GpuMatrix, repack, tile_rows, unpack_panels};
pub use product::Chip;

/// PTX text of a module, if there is one of that name; decompressed anew by each call.
pub fn ptx(module: &str) -> Option<String> {
    let index = ptx::PTX.binary_search_by_key(&module, |entry| entry.0).ok()?;
    let mut text = String::new();
    GzDecoder::new(ptx::PTX[index].1).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Names of all modules, sorted.
pub fn modules() -> impl Iterator<Item = &'static str> {
    ptx::PTX.iter().map(|entry| entry.0)
}

/// Names of the modules that a chip takes, sorted.
pub fn modules_on(chip: Chip) -> impl Iterator<Item = &'static str> {
    modules().filter(move |name| chip == Chip::Sm90 || !name.contains("_sm90"))
}

/// Modules that every program may need.
const GENERAL: [&str; 10] = [
    "rows",
    "heads",
    "elementwise",
    "router",
    "recurrent",
    "move",
    "repack",
    "attention",
    "attention_decode",
    "attention_prefill",
];

/// Modules of a chip for products with, and row look-ups in, weights of these types and layouts; sorted, each once.
pub fn modules_for(
    chip: Chip,
    products: impl IntoIterator<Item = (WeightType, GpuLayout)>,
    lookups: impl IntoIterator<Item = (WeightType, GpuLayout)>,
) -> Vec<&'static str> {
    let mut names = GENERAL.to_vec();
    for (ty, layout) in products {
        match ty.is_plain() {
            true => names.push(product::float_module(ty)),
            false => names.push(product::module("gemv", ty, layout)),
        }
        if ty != WeightType::F32 {
            names.extend([product::module("skinny", ty, layout), chip.matmul_module(ty, layout).1]);
        }
    }
    names.extend(lookups.into_iter().map(|(ty, layout)| product::module("embed", ty, layout)));
    names.sort_unstable();
    names.dedup();
    names
}

/// Names of the kernels in a PTX text.
pub fn entries(ptx: &str) -> impl Iterator<Item = &str> {
    ptx.lines().filter_map(|line| line.trim_start().strip_prefix(".visible .entry ")?.split('(').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_sorted_and_found_by_name() {
        let names: Vec<&str> = modules().collect();
        assert!(names.is_sorted(), "{names:?}");
        assert!(names.iter().all(|name| ptx(name).is_some()));
        assert_eq!(ptx("no_such_module"), None);
    }

    #[test]
    fn a_program_needs_the_modules_of_its_types_in_their_layouts() {
        let tiled = (WeightType::Q6_K, GpuLayout::Tiled);
        let plain = (WeightType::F32, GpuLayout::Gguf);
        for (chip, matmul) in [(Chip::Portable, "matmul_q6_k_tiled"), (Chip::Sm90, "matmul_sm90_q6_k_tiled")] {
            let names = modules_for(chip, [(WeightType::Q4_K, GpuLayout::Gguf), tiled, plain], [tiled]);
            for name in ["gemv_q4_k", matmul, "gemv_float_f32", "embed_q6_k_tiled", "attention_prefill"] {
                assert!(names.contains(&name), "{name}: {names:?}");
            }
            assert_eq!(names.iter().filter(|name| name.starts_with("matmul")).count(), 2, "{names:?}");
            assert!(names.iter().all(|name| modules_on(chip).any(|module| module == *name)), "{names:?}");
        }
    }

    #[test]
    fn every_module_has_kernels_and_is_for_the_architecture_that_its_name_says() {
        for name in modules() {
            let text = ptx(name).unwrap_or_default();
            assert!(entries(&text).count() > 0, "{name}");
            let everywhere = modules_on(Chip::Portable).any(|portable| portable == name);
            let target = if everywhere { ".target sm_80\n" } else { ".target sm_90a\n" };
            assert!(text.contains(target), "{name}");
        }
    }
}
