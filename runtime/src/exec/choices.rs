//! Choices of experts, for those who ask: recorded, and forced.
//!
//! Where choices are recorded, every router, wherever it runs, writes those of a round to one region that the CPU reads
//! after the round: with a GPU mapped memory, one launch more for each router there. So nothing is recorded unless
//! asked for. Forced choices take the place of the routers' own, which then tell how nearly tied they were. Not here:
//! how experts are chosen (`kernels::cpu::ops::router`), what counts are for (`plan_format::routing`), what choices may
//! differ (`crate::verify`). Next: `light.rs`.

use super::failure::lock;
use super::shared::{Home, Place, Shared};
use device::gpu::DevicePtr;
use plan_format::program::{OpKind, Program};
use plan_format::routing::{LayerHits, RoutingCounts};
use std::sync::{Arc, Mutex};

/// Whether choices of experts are recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choices {
    /// They are not.
    #[default]
    Unseen,
    /// They are: counted, and kept on demand.
    Recorded,
}

/// A router, and where its choices of a round begin in the region.
#[derive(Clone, Copy, Debug)]
struct RouterPlace {
    layer: u32,
    experts: usize,
    chosen: usize,
    offset_bytes: usize,
}

/// All routers of a program, in its order, and the region of their choices.
#[derive(Clone, Debug)]
pub struct Routers {
    places: Vec<RouterPlace>,
    size_bytes: usize,
}

/// The region of a round's choices: I32 \[tokens, chosen\] of each router.
#[derive(Debug)]
pub struct ChoiceMemory {
    /// As the CPU sees it.
    pub region: Shared,
    /// As a GPU sees it, where one takes part.
    pub device: Option<DevicePtr>,
    /// What lies where.
    pub routers: Arc<Routers>,
}

/// The choices of one router, of tokens from position 0 on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenBy {
    /// Its layer.
    pub layer: u32,
    /// Experts that a token chooses.
    pub chosen: usize,
    /// \[tokens, chosen\].
    pub ids: Vec<i32>,
}

/// The choices of all routers, in the program's order.
pub type Chosen = Vec<ChosenBy>;

/// What was recorded.
#[derive(Debug)]
pub struct Recorder {
    counts: Vec<Vec<u64>>,
    kept: Option<Vec<Vec<i32>>>,
}

/// Choices that a sequence from position 0 on is to take, and where the routers would have chosen otherwise.
#[derive(Debug)]
pub struct Forced {
    chosen: Chosen,
    flips: Mutex<Vec<Flip>>,
}

/// A token whose router would not have chosen what it had to.
#[derive(Clone, Debug, PartialEq)]
pub struct Flip {
    /// The router's layer.
    pub layer: u32,
    /// The token's position.
    pub position: u32,
    /// Experts that it had to take against its own choice.
    pub taken: Vec<i32>,
    /// Experts that it would have taken instead.
    pub own: Vec<i32>,
    /// By how much the best of its own was ahead of the last of those, in what experts are ranked by.
    pub margin: f32,
    /// Root mean square of the router's logits, times the steepest slope from a logit to what experts are ranked by.
    pub scale: f32,
}

impl Routers {
    /// Those of a program, in rounds of so many tokens.
    pub fn of(program: &Program, ubatch_tokens: usize) -> Routers {
        let mut end = 0;
        let router = |op: &plan_format::program::Op| match &op.kind {
            OpKind::Router { router, .. } => {
                let layer = program.items[op.item.index()].layer.unwrap_or_default();
                let (chosen, offset_bytes) = (router.chosen as usize, end);
                end = (end + ubatch_tokens * chosen * 4).next_multiple_of(256);
                Some(RouterPlace { layer, experts: router.experts as usize, chosen, offset_bytes })
            }
            _ => None,
        };
        let places = program.ops.iter().filter_map(router).collect();
        Routers { places, size_bytes: end }
    }

    /// Bytes of the region; 0 without routers.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Where a router's choices lie, and how many each token has.
    pub fn offset_bytes(&self, number: usize) -> Option<(usize, usize)> {
        self.places.get(number).map(|place| (place.offset_bytes, place.chosen))
    }

    /// The same for the CPU.
    pub fn place(&self, number: usize) -> Option<Place> {
        let (offset_bytes, chosen) = self.offset_bytes(number)?;
        Some(Place { base_bytes: offset_bytes, offset_bytes, stride: chosen, cols: chosen, home: Home::Shared })
    }
}

impl ChoiceMemory {
    /// For the CPU alone; none where nothing is recorded or chosen.
    pub fn for_cpu(program: &Program, ubatch_tokens: usize, choices: Choices) -> Option<ChoiceMemory> {
        let routers = Arc::new(Routers::of(program, ubatch_tokens));
        let wanted = choices == Choices::Recorded && routers.size_bytes() > 0;
        wanted.then(|| ChoiceMemory { region: Shared::new(routers.size_bytes()), device: None, routers })
    }
}

impl Recorder {
    /// Nothing yet, of these routers.
    pub fn new(routers: &Routers) -> Recorder {
        Recorder { counts: routers.places.iter().map(|place| vec![0; place.experts]).collect(), kept: None }
    }

    /// From now on choices are kept, too.
    pub fn keep(&mut self) {
        self.kept = Some(vec![Vec::new(); self.counts.len()]);
    }

    /// What was kept since.
    pub fn take(&mut self, routers: &Routers) -> Chosen {
        let kept = self.kept.take().unwrap_or_default();
        let of = |(place, ids): (&RouterPlace, Vec<i32>)| ChosenBy { layer: place.layer, chosen: place.chosen, ids };
        routers.places.iter().zip(kept).map(of).collect()
    }

    /// Takes in a round that is over.
    pub fn take_in(&mut self, memory: &ChoiceMemory, tokens: usize) {
        for (number, counts) in self.counts.iter_mut().enumerate() {
            let Some(place) = memory.routers.place(number) else { continue };
            // SAFETY: the round is over, so nobody writes.
            let ids: &[i32] = unsafe { memory.region.slice(place.offset_bytes, tokens * place.cols) };
            for id in ids {
                if let Some(count) = usize::try_from(*id).ok().and_then(|id| counts.get_mut(id)) {
                    *count += 1;
                }
            }
            if let Some(kept) = &mut self.kept {
                kept[number].extend_from_slice(ids);
            }
        }
    }

    /// The layers that have chosen.
    pub fn of_layers(&self, routers: &Routers) -> RoutingCounts {
        let seen = routers.places.iter().zip(&self.counts).filter(|(_, hits)| hits.iter().any(|&hits| hits > 0));
        let layer = |(place, hits): (&RouterPlace, &Vec<u64>)| LayerHits {
            layer: place.layer,
            chosen: place.chosen as u32,
            hits: hits.clone(),
        };
        RoutingCounts { layers: seen.map(layer).collect() }
    }
}

impl Forced {
    /// These choices. `None`: not those of these routers.
    pub fn new(chosen: Chosen, routers: &Routers) -> Option<Forced> {
        let fits = |(by, place): (&ChosenBy, &RouterPlace)| {
            let ids = by.ids.iter().all(|&id| usize::try_from(id).is_ok_and(|id| id < place.experts));
            (by.layer, by.chosen) == (place.layer, place.chosen) && ids
        };
        let all = chosen.len() == routers.places.len() && chosen.iter().zip(&routers.places).all(fits);
        all.then(|| Forced { chosen, flips: Mutex::default() })
    }

    /// The layer of a router, and what the token at a position is to choose.
    pub fn at(&self, number: usize, position: u32) -> Option<(u32, &[i32])> {
        let by = self.chosen.get(number)?;
        let ids = by.ids.chunks_exact(by.chosen.max(1)).nth(position as usize)?;
        Some((by.layer, ids))
    }

    /// Notes where a router would have chosen otherwise.
    pub fn note(&self, flip: Flip) {
        lock(&self.flips).push(flip);
    }

    /// What was noted, by layer and position.
    pub fn take_flips(&self) -> Vec<Flip> {
        let mut flips = std::mem::take(&mut *lock(&self.flips));
        flips.sort_by_key(|flip| (flip.layer, flip.position));
        flips
    }
}

impl Flip {
    /// What tells two choices of a token apart, if they are not the same experts. `ranked` is what experts are ranked
    /// by, `scale` as [`Flip::scale`].
    pub fn between(
        forced: &[i32],
        own: &[i32],
        (layer, position): (u32, u32),
        (ranked, scale): (&[f32], f32),
    ) -> Option<Flip> {
        let without = |a: &[i32], b: &[i32]| a.iter().copied().filter(|id| !b.contains(id)).collect::<Vec<i32>>();
        let (taken, own) = (without(forced, own), without(own, forced));
        let rank = |id: &i32| ranked[*id as usize];
        let best = own.iter().map(rank).fold(f32::NEG_INFINITY, f32::max);
        let last = taken.iter().map(rank).fold(f32::INFINITY, f32::min);
        let flip = Flip { layer, position, taken, own, margin: best - last, scale };
        (!flip.taken.is_empty()).then_some(flip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flip_has_the_widest_margin_of_its_experts() {
        let ranked = [5.0, 4.0, 3.0, 2.5, 1.0];
        assert_eq!(Flip::between(&[1, 0], &[0, 1], (3, 7), (&ranked, 2.0)), None, "another order is no other choice");
        let flip = Flip::between(&[0, 3, 4], &[0, 1, 2], (3, 7), (&ranked, 2.0)).expect("other experts");
        assert_eq!((flip.taken, flip.own, flip.margin), (vec![3, 4], vec![1, 2], 3.0));
        assert_eq!((flip.layer, flip.position, flip.scale), (3, 7, 2.0));
    }
}
