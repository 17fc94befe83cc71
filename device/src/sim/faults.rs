//! What goes wrong on a simulated GPU on request: refused memory, refused pinning, a failing operator, and delays that
//! tempt a faulty ordering to show.
//!
//! Delays are real (the thread gives its core away) and change no virtual time: results and virtual times must be the
//! same with any of them. Drawn from a seed, so that a failing run can be named.

/// The faults of one simulated GPU. [`Faults::none`] is a healthy one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults {
    /// Seed of the delays.
    pub seed: u64,
    /// Longest delay before a copy; 0 = none.
    pub copy_delay: u32,
    /// Longest delay before an operator.
    pub op_delay: u32,
    /// Longest delay before the host's work and signals.
    pub host_delay: u32,
    /// The how-manieth request for GPU memory fails (0 = the first).
    pub fail_memory_request: Option<u32>,
    /// Pinning fails from this many pinned bytes on, whatever the profile allows.
    pub refuse_pinning_from_bytes: Option<u64>,
    /// The launch with this number (0 = the first) fails, and the GPU is lost.
    pub fail_launch: Option<u64>,
    /// From the launch with this number on (0 = always) others hold so many bytes of the GPU's memory.
    pub others_take: Option<(u64, u64)>,
}

impl Faults {
    /// A healthy GPU.
    pub fn none() -> Self {
        Self {
            seed: 0,
            copy_delay: 0,
            op_delay: 0,
            host_delay: 0,
            fail_memory_request: None,
            refuse_pinning_from_bytes: None,
            fail_launch: None,
            others_take: None,
        }
    }

    /// GPU memory of others after so many launches.
    pub fn others_bytes(&self, launches: u64) -> u64 {
        self.others_take.filter(|(from, _)| launches >= *from).map_or(0, |(_, bytes)| bytes)
    }

    /// Copies come late: a reader that does not wait for its copy reads old bytes.
    pub fn late_copies(seed: u64) -> Self {
        Self { seed, copy_delay: 40, ..Self::none() }
    }

    /// Operators come late: a copy that does not wait for the last reader overwrites its slot.
    pub fn late_operators(seed: u64) -> Self {
        Self { seed, op_delay: 40, ..Self::none() }
    }

    /// The host comes late: a stream that does not wait for the host's part reads old activations.
    pub fn late_host(seed: u64) -> Self {
        Self { seed, host_delay: 40, ..Self::none() }
    }

    /// Everything comes late at times.
    pub fn jitter(seed: u64) -> Self {
        Self { seed, copy_delay: 20, op_delay: 20, host_delay: 20, ..Self::none() }
    }
}

/// A source of delays: xorshift64*, one per thread.
#[derive(Debug)]
pub struct Delays(u64);

impl Delays {
    /// The source of agent `agent`.
    pub fn new(seed: u64, agent: u64) -> Self {
        let mixed = seed.wrapping_add(agent.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        Self(mixed | 1)
    }

    /// Gives the core away up to `longest` times, and now and then sleeps.
    pub fn delay(&mut self, longest: u32) {
        if longest == 0 {
            return;
        }
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let draw = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32;
        if draw.is_multiple_of(64) {
            std::thread::sleep(std::time::Duration::from_micros(u64::from(longest)));
        }
        for _ in 0..(draw >> 8) % u64::from(longest) {
            std::thread::yield_now();
        }
    }
}
