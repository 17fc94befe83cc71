//! Names and colours of kinds, homes and regions, the same in all drawings and texts. Next: `view.rs`.

use plan_format::artifact::Region;
use plan_format::program::ItemKind;
use plan_format::schedule::{Home, HostMemory, Phase};

/// Kinds of item in the order of a layer, with what people call them.
pub const KINDS: &[(ItemKind, &str)] = &[
    (ItemKind::Embedding, "embedding"),
    (ItemKind::MixerInput, "attention inputs"),
    (ItemKind::Attention, "attention + cache"),
    (ItemKind::Recurrent, "recurrence + state"),
    (ItemKind::MixerOutput, "attention output"),
    (ItemKind::FfnInput, "FFN gate + up"),
    (ItemKind::FfnOutput, "FFN down"),
    (ItemKind::Router, "router"),
    (ItemKind::SharedExperts, "shared experts"),
    (ItemKind::ExpertsInput, "experts gate + up"),
    (ItemKind::ExpertsOutput, "experts down"),
    (ItemKind::ExpertsJoin, "divided experts' sum"),
    (ItemKind::Head, "head"),
];

/// What people call a kind.
pub fn kind_name(kind: ItemKind) -> &'static str {
    KINDS.iter().find(|(known, _)| *known == kind).map_or("other", |(_, name)| name)
}

/// Groups of kinds that share a colour in timelines.
pub const GROUPS: &[(&str, &str, &[ItemKind])] = &[
    ("attention projections", "#4e79a7", &[ItemKind::MixerInput, ItemKind::MixerOutput]),
    ("attention, recurrence", "#59a89c", &[ItemKind::Attention, ItemKind::Recurrent]),
    ("feed-forward", "#e8953c", &[ItemKind::FfnInput, ItemKind::FfnOutput]),
    ("router, shared experts", "#a36bb0", &[ItemKind::Router, ItemKind::SharedExperts]),
    ("routed experts", "#d1495b", &[ItemKind::ExpertsInput, ItemKind::ExpertsOutput, ItemKind::ExpertsJoin]),
    ("embedding, head", "#7a7a7a", &[ItemKind::Embedding, ItemKind::Head]),
];

/// The group's colour of a kind.
pub fn kind_color(kind: ItemKind) -> &'static str {
    GROUPS.iter().find(|(_, _, kinds)| kinds.contains(&kind)).map_or("#7a7a7a", |(_, color, _)| color)
}

/// Homes with their names and colours.
pub const HOMES: &[(Home, &str, &str)] = &[
    (Home::Resident, "GPU, resident", "#2f6db3"),
    (Home::Host(HostMemory::Pinned), "host, pinned", "#f6c98a"),
    (Home::Host(HostMemory::Pageable), "host, pageable", "#f3e3b3"),
    (Home::Host(HostMemory::Mapped), "host, in the model file", "#dcdcdc"),
];

/// Name and colour of a home.
pub fn home(home: Home) -> (&'static str, &'static str) {
    HOMES.iter().find(|(known, ..)| *known == home).map_or(("?", "#000"), |&(_, name, color)| (name, color))
}

/// The processors' colours where they are compared.
pub const CPU: &str = "#e08214";
/// The GPU's.
pub const GPU: &str = "#2f6db3";

/// Memory regions of one side with names and colours, in drawing order.
pub const GPU_REGIONS: &[(Region, &str, &str)] = &[
    (Region::GpuWeights, "resident weights", "#2f6db3"),
    (Region::GpuStates, "caches and states", "#59a89c"),
    (Region::GpuSlots, "temporary slots", "#e8953c"),
    (Region::GpuArena, "activations", "#a36bb0"),
    (Region::GpuContext, "driver context", "#9a9a9a"),
    (Region::GpuKernels, "kernels", "#c4c4c4"),
];

/// The same for CPU memory.
pub const HOST_REGIONS: &[(Region, &str, &str)] = &[
    (Region::HostPinned, "pinned weights", "#f0a54a"),
    (Region::HostPageable, "pageable weights", "#f3d9a0"),
    (Region::HostMapped, "weights in the model file", "#dcdcdc"),
    (Region::HostStates, "caches and states", "#59a89c"),
    (Region::HostArena, "activations", "#a36bb0"),
];

/// `decode`, `verify 4`, `prefill 512`.
pub fn phase_name(phase: Phase) -> String {
    match phase {
        Phase::Decode => "decode".to_owned(),
        Phase::Verify { tokens } => format!("verify {tokens}"),
        Phase::Prefill { ubatch_tokens } => format!("prefill {ubatch_tokens}"),
    }
}

/// Light to dark blue for a share of 0 to 1.
pub fn blues(share: f64) -> String {
    let mix = |from: f64, to: f64| (from + (to - from) * share.clamp(0.0, 1.0)).round() as u8;
    format!("#{:02x}{:02x}{:02x}", mix(246.0, 137.0), mix(248.0, 182.0), mix(251.0, 226.0))
}
