//! Working memory: what each worker has for itself, and the regions of a round that hold no value of the program.
//! Not here: values (`shared.rs`).

use super::ahead::Ahead;
use kernels::cpu::ops::attention::{AttentionScratch, AttentionShape};

/// One worker's own memory, sized at load for every step.
#[derive(Debug)]
pub struct WorkerScratch {
    /// One per distinct attention shape of the program.
    pub attention: Vec<AttentionScratch>,
    /// 2 · experts floats.
    pub router: Vec<f32>,
    /// Products in pairs before they are added, see `pairs.rs`.
    pub pairs: Vec<f32>,
    /// Cache slots of some tokens.
    pub slots: Vec<u32>,
    /// Blocks claimed while the GPU computed.
    pub ahead: Ahead,
}

impl WorkerScratch {
    /// Memory for these attention shapes, `experts` router logits, and rounds of `tokens`.
    pub fn new(shapes: &[AttentionShape], experts: usize, tokens: usize) -> Self {
        Self {
            attention: shapes.iter().map(AttentionScratch::new).collect(),
            router: vec![0.0; 2 * experts],
            pairs: vec![0.0; super::pairs::PIECE_RESULTS],
            slots: vec![0; tokens],
            ahead: Ahead::default(),
        }
    }
}
