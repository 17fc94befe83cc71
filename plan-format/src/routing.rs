//! How often a model's experts were chosen, layer by layer: counted by the runtime, read by the planner.
//! It holds counts and what follows from them; where layers' experts lie is the planner's. Next: `program.rs`.

use crate::program::{OpKind, Program};
use serde::{Deserialize, Serialize};

/// Counts of all layers that were seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoutingCounts {
    /// In order of the layers.
    pub layers: Vec<LayerHits>,
}

/// Counts of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerHits {
    /// The layer (block).
    pub layer: u32,
    /// Experts that a token chooses.
    pub chosen: u32,
    /// By expert: how many tokens have chosen it.
    pub hits: Vec<u64>,
}

/// Why counts are not those of a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoutingMisfit {
    /// No JSON of this form.
    #[error("these are no counts of experts: {0}")]
    Form(String),
    /// A layer that the model does not have, or that has no router.
    #[error("layer {0} of the model has no router")]
    Layer(u32),
    /// Other numbers of experts.
    #[error(
        "layer {layer} chooses {found_chosen} of {found} experts in the counts, {chosen} of {experts} in the model"
    )]
    Experts {
        /// The layer.
        layer: u32,
        /// Chosen in the counts.
        found_chosen: u32,
        /// Experts in the counts.
        found: usize,
        /// Chosen in the model.
        chosen: u32,
        /// Experts in the model.
        experts: u32,
    },
    /// An expert was counted more often than tokens can have chosen it, or the layer was never seen.
    #[error("the counts of layer {0} contradict each other")]
    Counts(u32),
    /// A layer is there more than once.
    #[error("layer {0} was counted twice")]
    Twice(u32),
    /// No layer at all.
    #[error("no layer was counted")]
    Nothing,
}

impl LayerHits {
    /// Tokens that were counted: each chose `chosen` experts.
    pub fn tokens(&self) -> f64 {
        self.hits.iter().map(|&hits| hits as f64).sum::<f64>() / f64::from(self.chosen.max(1))
    }

    /// How many different experts `tokens` tokens choose on average, if each chooses as the counted ones did.
    pub fn distinct(&self, tokens: u32) -> f64 {
        let counted = self.tokens();
        let missed = |hits: u64| (1.0 - (hits as f64 / counted).min(1.0)).powi(tokens.min(1 << 20) as i32);
        self.hits.iter().map(|&hits| 1.0 - missed(hits)).sum()
    }

    /// The same of some experts: how many different ones of them `tokens` tokens choose, and how many choices fall on
    /// them.
    pub fn of(&self, experts: impl Iterator<Item = u32>, tokens: u32) -> (f64, f64) {
        let counted = self.tokens();
        let rate = |expert: u32| {
            let hits = self.hits.get(expert as usize).map_or(0.0, |&hits| hits as f64);
            if counted > 0.0 { (hits / counted).min(1.0) } else { 0.0 }
        };
        let one = |rate: f64| (1.0 - (1.0 - rate).powi(tokens.min(1 << 20) as i32), f64::from(tokens) * rate);
        experts.map(rate).map(one).fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// Share of all choices that the `count` experts take that are chosen most often.
    pub fn share_of_hottest(&self, count: usize) -> f64 {
        let mut sorted = self.hits.clone();
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        let all: f64 = sorted.iter().map(|&hits| hits as f64).sum();
        sorted.iter().take(count).map(|&hits| hits as f64).sum::<f64>() / all.max(1.0)
    }
}

impl RoutingCounts {
    /// Reads what [`RoutingCounts::to_json`] wrote. Errors: anything else.
    pub fn from_json(text: &str) -> Result<Self, RoutingMisfit> {
        serde_json::from_str(text).map_err(|error| RoutingMisfit::Form(error.to_string()))
    }

    /// One line per layer, for people and for [`RoutingCounts::from_json`].
    pub fn to_json(&self) -> String {
        let line = |layer: &LayerHits| {
            let hits: Vec<String> = layer.hits.iter().map(u64::to_string).collect();
            let LayerHits { layer, chosen, .. } = layer;
            format!("  {{\"layer\": {layer}, \"chosen\": {chosen}, \"hits\": [{}]}}", hits.join(", "))
        };
        let lines: Vec<String> = self.layers.iter().map(line).collect();
        format!("{{\"layers\": [\n{}\n]}}\n", lines.join(",\n"))
    }

    /// The counts of a layer.
    pub fn layer(&self, layer: u32) -> Option<&LayerHits> {
        self.layers.iter().find(|hits| hits.layer == layer)
    }

    /// Whether these are counts of this program's routers; layers may be missing. Errors: what does not fit.
    pub fn check(&self, program: &Program) -> Result<(), RoutingMisfit> {
        let is_repeated =
            |(index, hits): &(usize, &LayerHits)| self.layers[..*index].iter().any(|h| h.layer == hits.layer);
        if let Some((_, hits)) = self.layers.iter().enumerate().find(is_repeated) {
            return Err(RoutingMisfit::Twice(hits.layer));
        }
        if self.layers.is_empty() {
            return Err(RoutingMisfit::Nothing);
        }
        for LayerHits { layer, chosen, hits } in &self.layers {
            let router = program.ops.iter().find_map(|op| match &op.kind {
                OpKind::Router { router, .. } if program.items[op.item.index()].layer == Some(*layer) => Some(*router),
                _ => None,
            });
            let router = router.ok_or(RoutingMisfit::Layer(*layer))?;
            if (router.chosen, router.experts as usize) != (*chosen, hits.len()) {
                let (found_chosen, found) = (*chosen, hits.len());
                let (layer, chosen, experts) = (*layer, router.chosen, router.experts);
                return Err(RoutingMisfit::Experts { layer, found_chosen, found, chosen, experts });
            }
            let all = hits.iter().try_fold(0u64, |sum, &hits| sum.checked_add(hits));
            let most = hits.iter().copied().max().unwrap_or(0);
            let fits =
                |all: &u64| *all > 0 && all.is_multiple_of(u64::from(*chosen)) && most <= all / u64::from(*chosen);
            if !all.as_ref().is_some_and(fits) {
                return Err(RoutingMisfit::Counts(*layer));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(hits: &[u64]) -> LayerHits {
        LayerHits { layer: 3, chosen: 2, hits: hits.to_vec() }
    }

    #[test]
    fn distinct_experts_follow_the_counts() {
        let even = hits(&[10; 8]);
        assert!((even.distinct(1) - 2.0).abs() < 1e-9);
        // 8 (1 - (3/4)^4).
        assert!((even.distinct(4) - 5.468_75).abs() < 1e-9);
        let steep = hits(&[40, 40, 0, 0, 0, 0, 0, 0]);
        assert!((steep.distinct(1000) - 2.0).abs() < 1e-9);
        assert!((hits(&[30, 20, 20, 10]).share_of_hottest(2) - 0.625).abs() < 1e-9);
    }

    #[test]
    fn counts_come_back_from_their_text() {
        let counts = RoutingCounts { layers: vec![hits(&[3, 1]), LayerHits { layer: 4, ..hits(&[0, 4]) }] };
        assert_eq!(RoutingCounts::from_json(&counts.to_json()).unwrap(), counts);
        assert_eq!(counts.layer(4).unwrap().tokens(), 2.0);
        for text in ["", "{}", "{\"layers\": [{\"layer\": -1, \"chosen\": 1, \"hits\": []}]}"] {
            assert!(matches!(RoutingCounts::from_json(text), Err(RoutingMisfit::Form(_))), "{text}");
        }
    }
}
