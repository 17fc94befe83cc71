//! How often each expert of each layer was chosen. Workers count for themselves, in memory of their own, where a choice
//! passes: at the router, and where (token, choice) pairs are sorted for experts on the CPU, whose router may be
//! elsewhere. Both count apart, and a layer's counts are those of the place that saw more.
//! Not here: what is made of them (`plan_format::routing`, the planner).

use plan_format::OpId;
use plan_format::program::{Program, View};
use plan_format::routing::{LayerHits, RoutingCounts};

/// Where a step's counters lie among a worker's: one for each expert from here on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HitsAt {
    first: usize,
    experts: usize,
}

impl HitsAt {
    /// Counts chosen experts; what is no expert, or where nobody counts, is left out.
    pub fn add<'a>(self, counters: &mut [u64], ids: impl Iterator<Item = &'a i32>) {
        let Some(counters) = counters.get_mut(self.first..self.first + self.experts) else { return };
        for id in ids {
            if let Some(counter) = usize::try_from(*id).ok().and_then(|id| counters.get_mut(id)) {
                *counter += 1;
            }
        }
    }
}

/// All places where choices are counted.
#[derive(Clone, Debug, Default)]
pub struct HitsMap {
    places: Vec<(OpId, View, HitsAt)>,
}

impl HitsMap {
    /// Adds an operator that sees the choices `ids`.
    pub fn count(&mut self, op: OpId, ids: View, experts: u32) -> HitsAt {
        let first = self.len();
        let at = HitsAt { first, experts: experts as usize };
        self.places.push((op, ids, at));
        at
    }

    /// The place that was added last.
    pub fn last(&self) -> HitsAt {
        self.places.last().map(|(_, _, at)| *at).unwrap_or_default()
    }

    fn len(&self) -> usize {
        self.places.last().map_or(0, |(_, _, at)| at.first + at.experts)
    }

    /// A worker's counters.
    pub fn counters(&self) -> Vec<u64> {
        vec![0; self.len()]
    }

    /// The layers that were seen, from all workers' counters.
    pub fn of_layers(&self, program: &Program, workers: &[Vec<u64>]) -> RoutingCounts {
        let sum = |at: &HitsAt| -> Vec<u64> {
            let of_expert = |expert| workers.iter().filter_map(|own| own.get(at.first + expert)).sum();
            (0..at.experts).map(of_expert).collect()
        };
        let mut counts = RoutingCounts::default();
        for (op, ids, at) in &self.places {
            let item = program.ops.get(op.index()).and_then(|op| program.items.get(op.item.index()));
            let (Some(layer), hits) = (item.and_then(|item| item.layer), sum(at)) else { continue };
            let total = |hits: &[u64]| hits.iter().sum::<u64>();
            match counts.layers.iter_mut().find(|known| known.layer == layer) {
                Some(known) if total(&known.hits) < total(&hits) => known.hits = hits,
                None if total(&hits) > 0 => counts.layers.push(LayerHits { layer, chosen: ids.cols, hits }),
                _ => {}
            }
        }
        counts
    }
}
