//! Streaming only the experts that a round has chosen: which they are, where each goes in the slot, and the table that
//! tells the GPU. Not here: when the host knows them (`script.rs`). Next: `driver.rs`.

use super::ops::GpuWeight;
use super::staging::Unpacker;
use crate::Error;
use crate::exec::shared::{Place, Shared};
use device::gpu::{Access, CopySource, DevicePtr, Gpu, HostSpan, MappedRegion};
use device::timeline::FillStep;
use std::sync::Arc;

/// How a slot gets the chosen experts of an item.
pub struct RoutedFill {
    /// The ids in the host's arena, and as the GPU sees the whole value.
    pub ids: Place,
    /// First byte of the ids' value as the GPU reaches it.
    pub ids_start: DevicePtr,
    /// Steps for weights that are no experts.
    pub whole: Vec<FillStep>,
    /// Stacks of experts.
    pub stacks: Vec<RoutedStack>,
    /// The table in mapped memory, which the GPU reads in place, and its offset there.
    pub table: (MappedRegion, u64),
    /// Experts of the layer.
    pub experts: usize,
}

/// A stack of experts on its way to a slot.
pub struct RoutedStack {
    /// All matrices on the host.
    pub host: HostSpan,
    /// Bytes from one matrix to the next there.
    pub host_stride: usize,
    /// Where they go.
    pub place: GpuWeight,
    /// By place in the slot: pieces through the staging area with what unpacks them; empty where the copy engine writes
    /// the slot.
    pub unpackers: Vec<Vec<Unpacker>>,
}

impl RoutedFill {
    /// The steps of this round's fill, appended; the table is written. Errors: an id that is no expert, more experts
    /// than the slot holds, a simulated GPU that finds a race.
    pub fn steps(&self, gpu: &dyn Gpu, arena: &Shared, tokens: usize, steps: &mut Vec<FillStep>) -> Result<(), Error> {
        let row_bytes = self.ids.stride as u64 * 4;
        gpu.host_touches(self.ids_start, tokens as u64 * row_bytes, Access::Read)?;
        let (mapped, offset) = self.table;
        let table_start = mapped.device.offset(offset);
        let table_bytes = self.experts as u64 * 4;
        gpu.host_touches(table_start, table_bytes, Access::Write)?;
        // SAFETY: the table is this fill's own part of the mapped region; its last reader ended in an earlier round.
        let table =
            unsafe { std::slice::from_raw_parts_mut(mapped.host.add(offset as usize).cast::<i32>(), self.experts) };
        // SAFETY: the router's results have come (the script waits for them), and nobody writes them before this is
        // over.
        let ids = unsafe { arena.view::<i32>(self.ids, 0..tokens) };
        table.fill(-1);
        let mut used = 0;
        steps.extend(self.whole.iter().cloned());
        for &id in (0..tokens).flat_map(|token| ids.row(token)) {
            let expert = usize::try_from(id).ok().filter(|&expert| expert < self.experts);
            let expert =
                expert.ok_or(Error::Program { what: "a router chose an expert that the layer does not have" })?;
            if table[expert] < 0 {
                self.bring(expert, used as usize, steps)?;
                table[expert] = used;
                used += 1;
            }
        }
        Ok(())
    }

    /// Steps that bring one expert to its place in the slot.
    fn bring(&self, expert: usize, place: usize, steps: &mut Vec<FillStep>) -> Result<(), Error> {
        for stack in &self.stacks {
            if place >= stack.place.room {
                return Err(Error::Program { what: "a round chose more experts than its slot holds" });
            }
            let first = stack.host.range.start + expert * stack.host_stride;
            let region = &stack.host.region;
            match stack.unpackers.get(place) {
                None => {
                    let to = stack.place.start.offset(place as u64 * stack.place.stride_bytes);
                    let span = HostSpan { region: Arc::clone(region), range: first..first + stack.host_stride };
                    steps.push(FillStep::Copy(to, CopySource::Span(span)));
                }
                Some(pieces) => steps.extend(pieces.iter().map(|piece| piece.step(region, first))),
            }
        }
        Ok(())
    }

    /// Steps of the largest fill.
    pub fn steps_max(&self) -> usize {
        let of_stack = |stack: &RoutedStack| {
            let pieces = stack.unpackers.first().map_or(1, Vec::len);
            stack.place.room * pieces
        };
        self.whole.len() + self.stacks.iter().map(of_stack).sum::<usize>()
    }
}
