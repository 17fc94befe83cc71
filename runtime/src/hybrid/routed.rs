//! Streaming only the experts that a round has chosen: which they are, where each goes in the slot, and the table that
//! tells the GPU. Not here: when the host knows them (`script.rs`). Next: `driver.rs`.

use super::ops::GpuWeight;
use super::staging::{HostCopies, Passage};
use crate::Error;
use crate::exec::shared::{Place, Shared};
use device::gpu::{Access, DevicePtr, Gpu, HostSpan, MappedRegion};
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
    /// How the copy engine reaches them.
    pub host_copies: HostCopies,
}

/// A stack of experts on its way to a slot.
pub struct RoutedStack {
    /// All matrices on the host.
    pub host: HostSpan,
    /// Bytes from one matrix to the next there.
    pub host_stride: usize,
    /// Where they go.
    pub place: GpuWeight,
    /// How they pass through the staging area; `None` = the copy engine writes the slot.
    pub passage: Option<Passage>,
}

impl RoutedFill {
    /// Which experts the round has chosen: `chosen` gets them in the order of their places, and the table is written.
    /// Returns how many. Errors: an id that is no expert, a simulated GPU that finds a race.
    pub fn choose(
        &self,
        gpu: &dyn Gpu,
        arena: &Shared,
        tokens: usize,
        chosen: &mut Vec<usize>,
    ) -> Result<usize, Error> {
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
        chosen.clear();
        // −1: an expert that another part of the layer's experts holds.
        for &id in (0..tokens).flat_map(|token| ids.row(token)).filter(|id| **id != -1) {
            let expert = usize::try_from(id).ok().filter(|&expert| expert < self.experts);
            let expert =
                expert.ok_or(Error::Program { what: "a router chose an expert that the layer does not have" })?;
            if table[expert] < 0 {
                table[expert] = chosen.len() as i32;
                chosen.push(expert);
            }
        }
        Ok(chosen.len())
    }

    /// The steps that bring these experts to the first places of the slot, appended. Errors: more than it holds.
    pub fn steps(&self, chosen: &[usize], steps: &mut Vec<FillStep>) -> Result<(), Error> {
        if chosen.len() > self.room() {
            return Err(Error::Program { what: "a round chose more experts than its slot holds" });
        }
        steps.extend(self.whole.iter().cloned());
        for stack in &self.stacks {
            let starts = chosen.iter().map(|expert| stack.host.range.start + expert * stack.host_stride);
            match &stack.passage {
                Some(passage) => {
                    passage.steps((self.host_copies, &stack.host.region), stack.host_stride, starts, steps);
                }
                None => steps.extend(starts.enumerate().map(|(place, start)| {
                    let to = stack.place.start.offset(place as u64 * stack.place.stride_bytes);
                    let (region, range) = (Arc::clone(&stack.host.region), start..start + stack.host_stride);
                    FillStep::Copy(to, self.host_copies.source(HostSpan { region, range }))
                })),
            }
        }
        Ok(())
    }

    /// Experts that the slot holds.
    pub fn room(&self) -> usize {
        self.stacks.iter().map(|stack| stack.place.room).min().unwrap_or(0)
    }

    /// Steps of the largest fill.
    pub fn steps_max(&self) -> usize {
        let of_stack = |stack: &RoutedStack| stack.passage.as_ref().map_or(stack.place.room, Passage::steps_max);
        self.whole.len() + self.stacks.iter().map(of_stack).sum::<usize>()
    }
}
