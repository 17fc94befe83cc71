//! What the thread team costs: barrier, wake-up, and a decode-like load alone and beside busy loops of the same
//! priority: one on every core, and on 10 of 16 cores, pinned there or free.
//!
//! `cargo bench -p device --bench team` prints medians of alternated runs. Run as a test (without `--bench`) it does
//! the same with tiny sizes and judges nothing but that it ends: time is never a test here.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use device::team::{Pinning, Team, TeamConfig};
use device::topology::{CpuId, Topology};

/// Sizes of the real and of the tiny run.
struct Sizes {
    barriers: u32,
    seconds: f64,
    repeats: usize,
}

fn main() {
    let real = std::env::args().any(|argument| argument == "--bench");
    let sizes = if real {
        Sizes { barriers: 20_000, seconds: 0.3, repeats: 3 }
    } else {
        Sizes { barriers: 200, seconds: 0.01, repeats: 1 }
    };
    let topology = Topology::of_this_process().expect("the machine's topology is readable");
    let cores = topology.threads_at_most();
    let mut counts = vec![1, 2, cores * 6 / 16, cores];
    counts.retain(|&threads| (1..=cores).contains(&threads));
    counts.dedup();
    for threads in counts {
        let mut team = Team::new(TeamConfig::on_cores(&topology, threads)).expect("a team on the cores");
        println!("threads {threads:3}: barrier {:7.3} us", barrier_us(&mut team, sizes.barriers));
        println!("threads {threads:3}: wake-up {:7.3} us", wake_up_us(&mut team, 50));
        for crowd in crowds(&topology) {
            compare_loaded(&mut team, &crowd, &sizes);
        }
    }
}

/// Busy loops: a name, and where each may run.
struct Crowd {
    name: &'static str,
    places: Vec<Vec<CpuId>>,
}

fn crowds(topology: &Topology) -> Vec<Crowd> {
    let cpus = topology.team_cpus();
    let few = (cpus.len() * 10 / 16).max(1);
    let pinned = |cpus: &[CpuId]| cpus.iter().map(|&cpu| vec![cpu]).collect();
    vec![
        Crowd { name: "one per core", places: pinned(&cpus) },
        Crowd { name: "10 of 16 cores", places: pinned(&cpus[..few]) },
        Crowd { name: "10 of 16, free", places: vec![cpus.clone(); few] },
    ]
}

/// Median time of one barrier, over batches of 100.
fn barrier_us(team: &mut Team, barriers: u32) -> f64 {
    let batches = std::sync::Mutex::new(Vec::new());
    team.run(|worker| {
        let mut times = Vec::with_capacity(barriers as usize / 100);
        for _ in 0..barriers / 100 {
            let start = Instant::now();
            for _ in 0..100 {
                worker.barrier();
            }
            times.push(start.elapsed().as_secs_f64() * 1e6 / 100.0);
        }
        if worker.index() == 0 {
            *batches.lock().unwrap() = times;
        }
    })
    .unwrap();
    median(batches.into_inner().unwrap())
}

/// Median time of an empty round whose workers were asleep.
fn wake_up_us(team: &mut Team, rounds: usize) -> f64 {
    let times = (0..rounds).map(|_| {
        std::thread::sleep(Duration::from_millis(1));
        let start = Instant::now();
        team.run(|_| {}).unwrap();
        start.elapsed().as_secs_f64() * 1e6
    });
    median(times.collect())
}

fn compare_loaded(team: &mut Team, crowd: &Crowd, sizes: &Sizes) {
    for step_us in [20.0, 100.0, 1000.0] {
        let (mut alone, mut ratios) = (Vec::new(), Vec::new());
        for _ in 0..sizes.repeats {
            let speed = steps_per_second(team, step_us, sizes.seconds);
            let hogs = Hogs::start(crowd);
            ratios.push(steps_per_second(team, step_us, 3.0 * sizes.seconds) / speed);
            drop(hogs);
            alone.push(speed);
        }
        println!(
            "threads {:3}: steps of {step_us:4.0} us: {:8.0}/s alone, kept beside busy loops ({}): {:.3}",
            team.threads(),
            median(alone),
            crowd.name,
            median(ratios)
        );
    }
}

/// Rounds of 50 steps with a barrier after each; a step is `step_us` of arithmetic per worker in 4 blocks each.
fn steps_per_second(team: &mut Team, step_us: f64, seconds: f64) -> f64 {
    let blocks = 4 * team.threads() as u32;
    let work = (step_us / 4.0 * iterations_per_us()) as u64;
    let (start, mut steps) = (Instant::now(), 0);
    while start.elapsed().as_secs_f64() < seconds {
        team.run(|worker| {
            for _ in 0..50 {
                worker.for_blocks(blocks, 1, |_| burn(work));
                worker.barrier();
            }
        })
        .unwrap();
        steps += 50;
    }
    f64::from(steps) / start.elapsed().as_secs_f64()
}

fn burn(iterations: u64) {
    let mut state = 1_u64;
    for _ in 0..iterations {
        state = std::hint::black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}

/// The speed of `burn` with the core to itself: the best of many short runs.
fn iterations_per_us() -> f64 {
    static SPEED: std::sync::OnceLock<f64> = std::sync::OnceLock::new();
    *SPEED.get_or_init(|| {
        let runs = (0..200).map(|_| {
            let start = Instant::now();
            burn(20_000);
            20_000.0 / (start.elapsed().as_secs_f64() * 1e6)
        });
        runs.fold(1.0, f64::max)
    })
}

/// Busy loops until dropped.
struct Hogs {
    stop: std::sync::Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Hogs {
    fn start(crowd: &Crowd) -> Self {
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let threads = crowd.places.iter().cloned().map(|cpus| {
            let stop = std::sync::Arc::clone(&stop);
            std::thread::spawn(move || {
                device::team::pin_this_thread(&Pinning::Cpus(cpus));
                while !stop.load(Relaxed) {
                    std::hint::black_box(0);
                }
            })
        });
        Self { threads: threads.collect(), stop }
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
