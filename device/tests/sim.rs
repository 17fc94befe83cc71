//! The simulated GPU by itself: limits of memory and pinning, faults, addresses, virtual time of events.
//! Ordering is tested in `hybrid.rs`.
#![cfg(not(loom))]

mod support;

use device::DeviceError;
use device::clock::Nanos;
use device::gpu::{CopySource, DevicePtr, Gpu, GpuOp, GpuTarget, LaunchArgs, StreamKind};
use device::sim::{Faults, LoadScript, SimConfig, SimGpu};
use support::{Bare, launch, profile, sim};

#[test]
fn memory_ends_at_the_ceiling_and_at_faults() {
    let config =
        |ceiling_bytes, faults| SimConfig { profile: profile(), load: LoadScript::default(), faults, ceiling_bytes };
    let gpu = SimGpu::new(config(Some(4096 + 1024), Faults::none()));
    gpu.take_memory(1000, "weights").unwrap(); // takes 1024 of the 1024 left by the context
    let error = gpu.take_memory(1, "slots").unwrap_err().to_string();
    assert!(error.contains("slots") && error.contains("--vram"), "{error}");
    let memory = gpu.memory().unwrap();
    assert_eq!((memory.ours_bytes, memory.free_bytes), (5120, 0));
    for ask in [u64::MAX, 1 << 20] {
        let gpu = SimGpu::new(config(None, Faults::none()));
        assert!(matches!(gpu.take_memory(ask, "weights"), Err(DeviceError::GpuMemory { .. })));
    }
    let gpu = SimGpu::new(config(None, Faults { fail_memory_request: Some(1), ..Faults::none() }));
    gpu.take_memory(1, "a").unwrap();
    assert!(matches!(gpu.take_memory(1, "b"), Err(DeviceError::GpuMemory { .. })));
    gpu.take_memory(1, "c").unwrap();
}

#[test]
fn pinning_ends_at_the_limit_and_copies_from_unpinned_memory_are_slow() {
    let time = |faults| {
        let gpu = sim(faults);
        let bare = Bare::new(&gpu);
        let CopySource::Span(span) = &bare.source else { panic!("a span") };
        let pinned = gpu.pin(&span.region);
        gpu.copy_to_gpu(bare.transfer, bare.slot, &bare.source).unwrap();
        gpu.synchronize(bare.transfer).unwrap();
        (pinned.is_ok(), gpu.clock().now())
    };
    let (pinned, fast) = time(Faults::none());
    let (refused, slow) = time(Faults { refuse_pinning_from_bytes: Some(0), ..Faults::none() });
    assert_eq!((pinned, fast), (true, Nanos(100 + 500 + 10_240)));
    assert_eq!((refused, slow), (false, Nanos(100 + 500 + 40_960)));
}

#[test]
fn addresses_outside_and_double_views_are_refused() {
    struct Odd(DevicePtr, u64, DevicePtr);
    impl GpuOp for Odd {
        fn name(&self) -> &str {
            "odd"
        }
        fn run(&self, target: GpuTarget<'_>, _: LaunchArgs) -> Result<(), DeviceError> {
            let GpuTarget::Simulated(task) = target else { panic!("a simulated GPU runs this") };
            let read = task.read(self.0, self.1)?;
            task.write(self.2, 4)?[0] = read.len() as u8;
            Ok(())
        }
    }
    let attempt = |op: fn(DevicePtr) -> Odd| {
        let gpu = sim(Faults::none());
        let start = gpu.take_memory(512, "memory").unwrap().start;
        let stream = gpu.new_stream(StreamKind::Compute).unwrap();
        gpu.launch(stream, &launch(op(start))).and_then(|()| gpu.synchronize(stream))
    };
    attempt(|start| Odd(start, 256, start.offset(256))).unwrap();
    let bad: [fn(DevicePtr) -> Odd; 5] = [
        |start| Odd(start, 513, start),
        |_| Odd(DevicePtr(0), 1, DevicePtr(0)),
        |start| Odd(start.offset(1 << 45), 1, start),
        |start| Odd(start, u64::MAX, start),
        |start| Odd(start, 257, start.offset(256)),
    ];
    for op in bad {
        let message = attempt(op).unwrap_err().to_string();
        assert!(message.contains("not in any memory") || message.contains("asks twice"), "{message}");
    }
}

#[test]
fn events_tell_virtual_time_between_operators() {
    let gpu = sim(Faults::jitter(9));
    let bare = Bare::new(&gpu);
    let (before, after) = (gpu.new_event().unwrap(), gpu.new_event().unwrap());
    assert!(gpu.event_passed(before).unwrap() && gpu.elapsed(before, after).is_ok());
    gpu.record(bare.compute, before).unwrap();
    for _ in 0..3 {
        gpu.launch(bare.compute, &bare.layer()).unwrap();
    }
    gpu.record(bare.compute, after).unwrap();
    gpu.synchronize(bare.compute).unwrap();
    // The first starts when it is submitted, 0.1 us after the record; the others follow it without a gap.
    assert_eq!(gpu.elapsed(before, after).unwrap(), Nanos(100 + 3 * 2_000));
}
