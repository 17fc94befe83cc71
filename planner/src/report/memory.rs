//! Memory by region: a bar for the GPU against its ceiling, one for the host, and the figures.

use super::palette::{GPU_REGIONS, HOST_REGIONS};
use super::svg::{Anchor, Rect, Svg, number};
use plan_format::artifact::{Plan, Region};
use plan_format::text::bytes_text;

/// A region that takes something.
#[derive(Clone, Debug, PartialEq)]
pub struct Used {
    /// What it is.
    pub name: &'static str,
    /// Its colour.
    pub color: &'static str,
    /// Its size.
    pub bytes: u64,
}

/// Regions of the GPU that take something; the last is what is left of the ceiling.
pub fn gpu(plan: &Plan) -> Vec<Used> {
    let mut used = used(plan, GPU_REGIONS);
    let total: u64 = used.iter().map(|region| region.bytes).sum();
    let left = plan.origin.options.vram_bytes.saturating_sub(total);
    if left > 0 {
        used.push(Used { name: "unused below the ceiling", color: "#ffffff", bytes: left });
    }
    used
}

/// Regions of the host that take something.
pub fn host(plan: &Plan) -> Vec<Used> {
    used(plan, HOST_REGIONS)
}

fn used(plan: &Plan, regions: &[(Region, &'static str, &'static str)]) -> Vec<Used> {
    let used = regions.iter().map(|&(region, name, color)| Used { name, color, bytes: plan.report.bytes(region) });
    used.filter(|region| region.bytes > 0).collect()
}

const WIDTH: f64 = 1120.0;
const LEFT: f64 = 60.0;

/// A stacked bar with sizes inside where they fit.
pub fn svg(name: &str, regions: &[Used]) -> String {
    let mut svg = Svg::new(WIDTH, 44.0);
    let total: u64 = regions.iter().map(|region| region.bytes).sum();
    svg.text(LEFT - 8.0, 26.0, Anchor::End, "label", name);
    let scale = (WIDTH - LEFT - 90.0) / total.max(1) as f64;
    let mut x = LEFT;
    for region in regions {
        let width = region.bytes as f64 * scale;
        let attributes = format!("fill=\"{}\" stroke=\"#fff\" stroke-width=\"1\"", region.color);
        let attributes =
            if region.color == "#ffffff" { "fill=\"#fff\" stroke=\"#bbb\"".to_owned() } else { attributes };
        let tooltip = format!("{}: {}", region.name, bytes_text(region.bytes));
        svg.rect_with(Rect { x, y: 8.0, width, height: 28.0 }, &attributes, &tooltip);
        if width > 70.0 {
            let class = if is_dark(region.color) { "inverse" } else { "value" };
            svg.text(x + width / 2.0, 26.0, Anchor::Middle, class, bytes_text(region.bytes));
        }
        x += width;
    }
    svg.text(x + 8.0, 26.0, Anchor::Start, "value", bytes_text(total));
    svg.finish(&format!("{name} memory by region, {} GiB", number(total as f64 / 1_073_741_824.0)))
}

fn is_dark(color: &str) -> bool {
    let part = |range| u32::from_str_radix(color.get(range).unwrap_or("ff"), 16).unwrap_or(255);
    part(1..3) * 3 + part(3..5) * 6 + part(5..7) < 1500
}
