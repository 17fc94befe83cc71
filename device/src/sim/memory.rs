//! The memory of a simulated GPU: regions behind addresses that are not addresses of the host, and a task's view of
//! them.
//!
//! Invariants: every access is bounds-checked, registered with the race detector before the bytes are touched, and a
//! task never holds two overlapping views of which one can write. So operators written in safe Rust cannot tear memory,
//! however wrong the ordering around them is. Next: `race.rs`.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::race::VectorClock;
use super::state::Shared;
use crate::DeviceError;
use crate::gpu::{Access, DevicePtr};
use crate::memory::HostRegion;

/// Regions lie this far apart, so that an address past the end of one is in none.
const REGION_STRIDE: u64 = 1 << 44;

/// All regions of one simulated GPU, mapped host memory included.
#[derive(Debug, Default)]
pub struct SimMemory(Mutex<Vec<Arc<HostRegion>>>);

impl SimMemory {
    /// Adds a zeroed region.
    pub fn add(&self, bytes: u64) -> Result<(DevicePtr, Arc<HostRegion>), DeviceError> {
        let region = Arc::new(HostRegion::new(usize::try_from(bytes).unwrap_or(usize::MAX))?);
        let mut regions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        regions.push(Arc::clone(&region));
        Ok((DevicePtr(regions.len() as u64 * REGION_STRIDE), region))
    }

    /// The host address of `bytes` bytes at `start`. Errors: not inside one region.
    pub fn locate(&self, start: DevicePtr, bytes: u64) -> Result<*mut u8, DeviceError> {
        let outside = || DeviceError::GpuAddress { address: start.0, bytes };
        let regions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (index, offset) = (start.0 / REGION_STRIDE, start.0 % REGION_STRIDE);
        let region = index.checked_sub(1).and_then(|index| regions.get(index as usize)).ok_or_else(outside)?;
        if offset.checked_add(bytes).is_none_or(|end| end > region.len() as u64) {
            return Err(outside());
        }
        Ok(region.as_ptr().cast_mut().wrapping_add(offset as usize))
    }
}

/// What an operator sees while it runs on a simulated stream: the memory, with its accesses watched.
pub struct SimTask<'a> {
    memory: &'a SimMemory,
    shared: &'a Shared,
    agent: usize,
    knows: VectorClock,
    name: &'a str,
    held: RefCell<Vec<(Range<u64>, Access)>>,
}

impl<'a> SimTask<'a> {
    /// A task of `agent`, which knows what `knows` says.
    pub fn new(memory: &'a SimMemory, shared: &'a Shared, agent: usize, knows: VectorClock, name: &'a str) -> Self {
        Self { memory, shared, agent, knows, name, held: RefCell::new(Vec::new()) }
    }

    /// Bytes to read. Errors: outside a region, a race, or overlap with bytes this task may write.
    pub fn read(&self, start: DevicePtr, bytes: u64) -> Result<&[u8], DeviceError> {
        let pointer = self.claim(start, bytes, Access::Read)?;
        // SAFETY: the range lies in a region that lives as long as the memory. No other agent writes it: the race
        // detector refused unordered accesses before they touched anything. This task holds no overlapping writable
        // view.
        Ok(unsafe { std::slice::from_raw_parts(pointer, bytes as usize) })
    }

    /// Bytes to change in place. Errors: outside a region, a race, or overlap with bytes this task holds.
    #[expect(clippy::mut_from_ref, reason = "exclusive by `claim`, which refuses overlapping views of one task")]
    pub fn write(&self, start: DevicePtr, bytes: u64) -> Result<&mut [u8], DeviceError> {
        let pointer = self.claim(start, bytes, Access::Write)?;
        // SAFETY: as in `read`, and nobody else reads it either; `claim` refused any overlap within this task.
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer, bytes as usize) })
    }

    fn claim(&self, start: DevicePtr, bytes: u64, access: Access) -> Result<*mut u8, DeviceError> {
        let pointer = self.memory.locate(start, bytes)?;
        let range = start.0..start.0 + bytes;
        let mut held = self.held.borrow_mut();
        let overlaps = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        if held.iter().any(|(other, kind)| overlaps(other) && (*kind, access) != (Access::Read, Access::Read)) {
            return Err(DeviceError::SimAlias { name: self.name.to_owned(), address: start.0 });
        }
        self.touch(start, bytes, access)?;
        held.push((range, access));
        Ok(pointer)
    }

    /// Registers an access without looking at the bytes.
    pub fn touch(&self, start: DevicePtr, bytes: u64, access: Access) -> Result<(), DeviceError> {
        self.memory.locate(start, bytes)?;
        let range = start.0..start.0 + bytes;
        let outcome = self.shared.lock().shadow.access(range, access, self.agent, &self.knows, self.name);
        outcome.map_err(|race| DeviceError::SimRace { earlier: race.earlier, later: race.later, address: start.0 })
    }
}
