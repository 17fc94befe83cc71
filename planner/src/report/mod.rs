//! Reports: plans and simulations as pages, drawings and texts. Pure: data in, text out; it decides and reads nothing.
//!
//! `page` is the report of a plan, `simulated` that of a what-if; each drawing has a file (`placement`, `density`,
//! `memory`, `regimes`, `adaptation`, `timeline`, `contribution`) over `svg` and `html`. `claims` does the arithmetic
//! of the paper's speed-ups, `differences` compares two plans, `golden` guards the figures of many, `llama_cpp`
//! exports.

mod adaptation;
pub mod claims;
pub mod claims_text;
mod contribution;
mod density;
pub mod differences;
pub mod golden;
mod html;
pub mod llama_cpp;
mod memory;
pub mod page;
mod palette;
mod placement;
mod regimes;
pub mod simulated;
mod svg;
mod timeline;
mod view;

pub use palette::phase_name;
