//! In which order of bytes each weight lies at its home. Pure. Next: `../compile.rs`.

use gguf::GgmlType;
use kernels::cuda::GpuLayout;
use kernels::quant::WeightType;
use plan_format::program::{Program, Tensor, Weight, WeightRole};
use plan_format::schedule::{Home, HostMemory, Layout, Placement};

/// Layout of each part of each weight: `layouts[weight][part]`.
///
/// - Small weights (F32 on every device) and embedding rows: as in the file.
/// - Resident: the GPU's tiles where the type has them ([`GpuLayout::preferred`]), else as in the file, which the GPU's
///   kernels read as well.
/// - On the host, mapped: as in the file, since nobody copies it.
/// - On the host, pinned or pageable: the CPU's panels, *whether or not some schedule promotes it*. What is promoted is
///   unpacked on arrival: it comes in pieces through the staging behind the slots ([`Slots::staging`]), from where a
///   kernel on the transfer stream writes it to its slot in the order that it would have when resident. The other way,
///   one order that both processors read, costs more: the CPU would lose its panels in every round that does not
///   promote (it would pack on the way), to save one pass of GPU memory over each promoted weight, which runs at ten or
///   more times the link's rate. The cost model has that pass in an item's `stream_us`.
///
/// [`Slots::staging`]: plan_format::schedule::Slots::staging
pub(super) fn layouts(program: &Program, placement: &Placement) -> Vec<Vec<Layout>> {
    let mut homes = vec![None; program.weights.len()];
    for (item, home) in program.items.iter().zip(&placement.homes) {
        item.weights.iter().for_each(|weight| homes[weight.index()] = Some(*home));
    }
    let layouts = |(weight, home): (&Weight, &Option<Home>)| {
        let layout = layout(weight.role, *home, &program.tensors[weight.tensor.index()]);
        vec![layout; weight.parts.len()]
    };
    program.weights.iter().zip(&homes).map(layouts).collect()
}

fn layout(role: WeightRole, home: Option<Home>, tensor: &Tensor) -> Layout {
    match (role, home) {
        (WeightRole::Small | WeightRole::EmbeddingRows, _) | (_, None | Some(Home::Host(HostMemory::Mapped))) => {
            Layout::Gguf
        }
        (_, Some(Home::Host(_))) => Layout::CpuPanel16,
        (_, Some(Home::Resident)) => resident(tensor),
    }
}

fn resident(tensor: &Tensor) -> Layout {
    let ty = WeightType::try_from(GgmlType::from_id(tensor.ggml_type));
    match ty.map(GpuLayout::preferred) {
        Ok(GpuLayout::Tiled) => Layout::GpuTiled,
        Ok(GpuLayout::Gguf) | Err(_) => Layout::Gguf,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_follow_the_home_the_role_and_the_type() {
        let tensor = |ty: GgmlType| Tensor {
            name: "t".into(),
            file: 0,
            offset_bytes: 0,
            size_bytes: 0,
            ggml_type: ty.id(),
            dims: [256, 16, 1, 1],
        };
        let host = |memory| Some(Home::Host(memory));
        let (pinned, pageable, mapped) =
            (host(HostMemory::Pinned), host(HostMemory::Pageable), host(HostMemory::Mapped));
        let cases = [
            (WeightRole::Matrix, Some(Home::Resident), GgmlType::Q6_K, Layout::GpuTiled),
            (WeightRole::Matrix, Some(Home::Resident), GgmlType::Q4_K, Layout::Gguf),
            (WeightRole::Experts, pinned, GgmlType::Q6_K, Layout::CpuPanel16),
            (WeightRole::TiedHead, pageable, GgmlType::Q4_K, Layout::CpuPanel16),
            (WeightRole::Heads, mapped, GgmlType::F16, Layout::Gguf),
            (WeightRole::Small, Some(Home::Resident), GgmlType::F32, Layout::Gguf),
            (WeightRole::EmbeddingRows, mapped, GgmlType::Q6_K, Layout::Gguf),
            (WeightRole::Small, None, GgmlType::F32, Layout::Gguf),
        ];
        for (role, home, ty, expected) in cases {
            assert_eq!(layout(role, home, &tensor(ty)), expected, "{role:?} {home:?} {ty}");
        }
    }
}
