//! Products with stacks of matrices (routed experts, heads), routing and weighted sums. Next: `op.rs`.

use super::acts::{SLOT_TOKENS_MAX, is_sorted};
use super::lower::Lower;
use super::{at, gpu_layout};
use crate::Error;
use kernels::cpu::ops::router::{RouterScore, RouterWeights};
use kernels::cuda::experts::{EXPERTS_MAX, InputRows, Routing, Slots, Sorted, grouped, held_ids, route, slots, sort};
use kernels::cuda::product::{Form, PARTS_MAX, Part};
use kernels::cuda::transfer::move_rows;
use kernels::cuda::{DevicePtr, View, ops, product};
use plan_format::WeightId;
use plan_format::program::{self, ExpertInput, OpKind, Rows};
use plan_format::sizes::experts_in;

/// Where a sorted routing lies.
#[derive(Clone, Copy)]
struct SortedRoom {
    order: DevicePtr,
    tiles: DevicePtr,
    n_tiles: DevicePtr,
}

impl SortedRoom {
    fn of(self, entries: u32, matrices: u32) -> Sorted {
        let SortedRoom { order, tiles, n_tiles } = self;
        Sorted { order, tiles, n_tiles, tile: Sorted::tile_for(entries, matrices) }
    }
}

impl Lower<'_> {
    fn sorted_room(&self) -> SortedRoom {
        let address = |offset| at(self.env.scratch.start.offset(offset));
        let scratch = self.scratch;
        SortedRoom { order: address(scratch.order), tiles: address(scratch.tiles), n_tiles: address(scratch.n_tiles) }
    }

    pub(super) fn expert_mat_mul(
        &mut self,
        index: usize,
        chosen: u32,
        ids: program::View,
        parts: &[program::MatMulPart],
        input: ExpertInput,
    ) -> Result<(), Error> {
        let first = parts.first().ok_or(Error::Program { what: "experts without weights" })?;
        let own_input = input == ExpertInput::PerExpert;
        let slots = self.slots_of(first.weight, self.view(ids), chosen, own_input)?;
        let placed: Vec<(Part, u64)> = parts
            .iter()
            .map(|part| Ok((self.part(part)?, self.env.weight(part.weight)?.stride_bytes)))
            .collect::<Result<_, Error>>()?;
        let sorts = self.sorted != Some(ids);
        self.sorted = Some(ids);
        self.stack(index, slots, placed, sorts)
    }

    pub(super) fn head_mat_mul(
        &mut self,
        index: usize,
        heads: u32,
        weight: WeightId,
        out: program::View,
    ) -> Result<(), Error> {
        let ids = View { data: at(self.env.scratch.start.offset(self.scratch.head_ids)), stride: 0, cols: heads };
        let slots = self.slots_of(weight, ids, heads, true)?;
        let stride_bytes = self.env.weight(weight)?.stride_bytes;
        let part = self.part(&program::MatMulPart { weight, bias: None, out })?;
        self.sorted = None;
        self.stack(index, slots, vec![(part, stride_bytes)], true)
    }

    fn slots_of(&self, weight: WeightId, ids: View, slots: u32, own_input: bool) -> Result<Slots, Error> {
        let weight = self.env.weight(weight)?;
        gpu_layout(weight.layout)?;
        Ok(Slots {
            ids,
            slots,
            matrices: weight.shape.stack as u32,
            input_stride: if own_input { weight.shape.cols as u32 } else { 0 },
            places: weight.places.map_or(DevicePtr::NULL, at),
            matrix_bytes: weight.stride_bytes,
        })
    }

    /// The products of stacks that share ids and input; `parts` with the bytes from matrix to matrix.
    fn stack(&mut self, index: usize, shared: Slots, parts: Vec<(Part, u64)>, sorts: bool) -> Result<(), Error> {
        let input = self.input(index)?;
        let (room, chip) = (self.sorted_room(), self.chip);
        let input_rows = if shared.input_stride > 0 { InputRows::PerEntry } else { InputRows::PerToken };
        self.emits.push(Box::new(move |args, out| {
            let tokens = args.tokens;
            if tokens == 0 {
                return Ok(());
            }
            input.convert(args, out);
            let is_grouped = |part: &Part| is_sorted(part.weight.ty, part.weight.cols, tokens);
            let sorted = room.of(tokens * shared.slots, shared.matrices);
            if sorts && tokens > SLOT_TOKENS_MAX {
                out.push(sort(shared.ids, tokens, shared.slots, shared.matrices, &sorted));
            }
            let like = |a: &(Part, u64), b: &(Part, u64)| {
                (a.0.weight.ty, a.0.weight.layout, a.0.weight.cols, a.1)
                    == (b.0.weight.ty, b.0.weight.layout, b.0.weight.cols, b.1)
            };
            for group in parts.chunk_by(like).flat_map(|group| group.chunks(PARTS_MAX)) {
                let (ty, cols) = (group[0].0.weight.ty, group[0].0.weight.cols);
                let slot = Slots { matrix_bytes: group[0].1, ..shared };
                if is_grouped(&group[0].0) {
                    let acts = input.acts.activations(product::form(ty, cols, u32::MAX));
                    let parts: Vec<Part> = group.iter().map(|(part, _)| *part).collect();
                    out.push(grouped(chip, &parts, &acts, tokens, &slot, input_rows, &sorted)?);
                } else {
                    let acts = input.acts.activations(if ty.is_plain() { Form::F32 } else { Form::Q8 });
                    let parts: Vec<Part> = group.iter().map(|(part, _)| *part).collect();
                    out.push(slots(&parts, &acts, tokens, &slot)?);
                }
            }
            Ok(())
        }));
        Ok(())
    }

    pub(super) fn expert_sum(
        &mut self,
        index: usize,
        x: program::View,
        chosen: u32,
        weights: Option<program::View>,
        sum: program::View,
    ) {
        let mut out_view = self.view(sum);
        let mut residual = View::default();
        if let Some((other, total)) = self.sum_after(index, sum) {
            (residual, out_view) = (other, total);
            self.done.push(index + 1);
        }
        let (x, weights) = (self.view(x), weights.map_or(View::default(), |weights| self.view(weights)));
        let rows = self.rows_of(sum);
        self.emit(move |args, out| {
            out.push(ops::expert_sum(x, chosen, weights, residual, out_view, args.rows(rows)));
        });
    }

    /// Where each chosen expert is among those that a part holds.
    pub(super) fn held_ids(
        &mut self,
        ids: program::View,
        held: &[program::Part],
        out: program::View,
    ) -> Result<(), Error> {
        if held.last().is_some_and(|part| part.end > EXPERTS_MAX) {
            return Err(Error::Program { what: "more divided experts than the GPU's kernel takes" });
        }
        let (ids, rows, place) = (self.view(ids), self.rows_of(out), self.view(out));
        let held: Vec<u32> = experts_in(held).collect();
        self.emit(move |args, out| out.push(held_ids(ids, held.iter().copied(), place, args.rows(rows))));
        Ok(())
    }

    /// The sum over the chosen experts that a part holds.
    pub(super) fn held_sum(
        &mut self,
        x: program::View,
        chosen: u32,
        weights: Option<program::View>,
        ids: program::View,
        sum: program::View,
    ) {
        let (x, weights) = (self.view(x), weights.map_or(View::default(), |weights| self.view(weights)));
        let (ids, rows, sum) = (self.view(ids), self.rows_of(sum), self.view(sum));
        self.emit(move |args, out| {
            out.push(ops::held_sum(x, chosen, weights, ids, View::default(), sum, args.rows(rows)));
        });
    }

    pub(super) fn router(&mut self, index: usize, kind: &OpKind) -> Result<(), Error> {
        let OpKind::Router { logits, select_bias, router, ids, weights } = kind else {
            return Err(Error::Program { what: "a router that is none" });
        };
        let routing = Routing {
            experts: router.experts,
            chosen: router.chosen,
            score: match router.score {
                program::RouterScore::Softmax => RouterScore::Softmax,
                program::RouterScore::Sigmoid => RouterScore::Sigmoid,
                program::RouterScore::Logit => RouterScore::Logit,
            },
            weights: match router.weights {
                program::RouterWeights::Score => RouterWeights::Score,
                program::RouterWeights::ScoreNormalised => RouterWeights::ScoreNormalised,
                program::RouterWeights::SoftmaxOfChosen => RouterWeights::SoftmaxOfChosen,
            },
            scale: router.scale,
        };
        if routing.experts > EXPERTS_MAX {
            return Err(Error::Program { what: "a router over more experts than the GPU's kernel takes" });
        }
        let bias = self.small(*select_bias)?;
        let (logits, ids, weights) = (self.view(*logits), self.view(*ids), self.view(*weights));
        let recorded =
            self.env.choices_of(index).map(|to| View { data: at(to.start), stride: to.stride, cols: to.cols });
        self.emit(move |args, out| {
            let rows = args.rows(Rows::Tokens);
            out.push(route(&routing, logits, bias, ids, weights, rows));
            out.extend(recorded.map(|to| move_rows(ids, to, rows, None)));
        });
        Ok(())
    }
}
