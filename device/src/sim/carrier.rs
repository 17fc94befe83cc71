//! The thread that brings pageable memory into pinned memory, as the simulated GPU sees it: an agent with its own
//! knowledge and its own virtual time, which is that of pageable copies. So neither depends on when the thread really
//! runs. Next: `race.rs`.

use super::Machine;
use super::faults::Delays;
use super::memory::SimTask;
use super::profile::SourceMemory;
use super::race::{CARRIER, VectorClock};
use super::state::Moment;
use crate::DeviceError;
use crate::clock::Nanos;
use crate::gpu::{Access, DevicePtr, Epoch, FlagId};

/// See the module text.
pub struct Carrier {
    time: Nanos,
    knows: VectorClock,
    delays: Delays,
}

impl Carrier {
    /// One that has done nothing, with the delays of this seed.
    pub fn new(seed: u64) -> Self {
        let delays = Delays::new(seed, CARRIER as u64);
        Self { time: Nanos(0), knows: VectorClock::of(CARRIER), delays }
    }

    /// Whether a flag has reached the epoch; if so, it knows what the signaller did.
    pub fn sees(&mut self, machine: &Machine, flag: FlagId, epoch: Epoch) -> Result<bool, DeviceError> {
        let reached = {
            let mut state = machine.shared.lock();
            state.check()?;
            state.flag(flag)?.reached(epoch)
        };
        if let Some(moment) = reached {
            self.time = self.time.max(moment.time);
            self.knows.join(&moment.knows);
        }
        Ok(reached.is_some())
    }

    /// It writes bytes there.
    pub fn writes(&mut self, machine: &Machine, start: DevicePtr, bytes: u64) -> Result<(), DeviceError> {
        self.delays.delay(machine.faults.host_delay);
        let task = SimTask::new(&machine.memory, &machine.shared, CARRIER, self.knows, "carrier");
        task.touch(start, bytes, Access::Write)?;
        self.time = self.time + machine.profile.copy_time(bytes, SourceMemory::Pageable);
        Ok(())
    }

    /// It writes a flag.
    pub fn signals(&mut self, machine: &Machine, flag: FlagId, epoch: Epoch) {
        let moment = Moment { time: self.time + machine.profile.to_gpu, knows: self.knows.release(CARRIER) };
        machine.shared.update(|state| _ = state.flag(flag).map(|flag| flag.write(epoch, moment)));
    }
}
