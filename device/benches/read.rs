//! Plain read bandwidth, barrier and wake-up of this machine by thread count: the bounds that CPU kernels are judged
//! by.
//!
//! `cargo bench -p device --bench read` covers 1 GiB; as a test (without `--bench`) it covers 4 MiB and judges nothing.

use std::time::Duration;

use device::machine::MachineDescription;
use device::probe::{Effort, ROTATION_BYTES, barrier, read_curve, wake_up};
use device::team::{Team, TeamConfig};
use device::topology::Topology;

fn main() {
    let real = std::env::args().any(|argument| argument == "--bench");
    let (bytes, effort) = if real {
        (ROTATION_BYTES, Effort::profile())
    } else {
        (4 << 20, Effort { warm_up_rounds: 0, rounds: (2, 2), time: Duration::ZERO })
    };
    let machine = MachineDescription::of_this_process().expect("this machine can be described");
    println!("{machine:?}");
    let topology = Topology::of_this_process().expect("the machine's topology is readable");
    let mut threads: Vec<usize> = [1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64].into();
    threads.retain(|&threads| threads < machine.threads_at_most);
    threads.push(machine.threads_at_most);
    read_curve(&topology, &threads, bytes, effort, |point| {
        let (rate, timing) = (point.gb_per_s, point.timing);
        println!(
            "threads {:3}: read {rate:6.1} GB/s, {} rounds, median {:.0} us",
            point.threads, timing.rounds, timing.median_us
        );
    })
    .expect("the read curve is measured");
    let mut team = Team::new(TeamConfig::on_cores(&topology, machine.threads_at_most)).expect("a team on the cores");
    for threads in threads {
        team.set_active(threads);
        let barrier = barrier(&mut team, effort).expect("barriers are measured");
        let wake_up = wake_up(&mut team, 20, Duration::from_millis(1)).expect("wake-ups are measured");
        println!("threads {threads:3}: barrier {:.3} us, wake-up {:.1} us", barrier.median_us, wake_up.median_us);
    }
}
