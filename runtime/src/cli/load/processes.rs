//! The load's processes as their parent sees them: started once, told over their standard input what share to take,
//! ended with the parent. Not here: the load itself (`worker.rs`).

use super::LoadSpec;
use crate::cli::Failure;
use anyhow::anyhow;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// How long a process may take until it is ready: a GPU's context and a calibration.
const READY_MAX: Duration = Duration::from_secs(60);

/// Running processes; they end when this is dropped.
pub struct Generators {
    running: Vec<Generator>,
}

struct Generator {
    resource: Resource,
    child: Child,
}

/// What a process loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Resource {
    /// Cores, by reading memory.
    Cpu,
    /// The GPU, by running kernels.
    Gpu,
    /// The link, by copying from pinned memory.
    Link,
}

impl Resource {
    fn name(self) -> &'static str {
        match self {
            Resource::Cpu => "cpu",
            Resource::Gpu => "gpu",
            Resource::Link => "link",
        }
    }

    fn share(self, load: &LoadSpec) -> f64 {
        match self {
            Resource::Cpu => load.cpu,
            Resource::Gpu => load.gpu,
            Resource::Link => load.link,
        }
    }
}

impl Generators {
    /// Starts the processes of a load and waits until they are ready; they rest. What they say of themselves is handed
    /// to `said`.
    ///
    /// # Errors
    /// A process that cannot be started or does not get ready.
    pub fn start(load: &LoadSpec, said: &mut dyn FnMut(&str)) -> Result<Self, Failure> {
        let mut generators = Generators { running: Vec::new() };
        for resource in [Resource::Cpu, Resource::Gpu, Resource::Link] {
            if resource.share(load) > 0.0 {
                let (generator, line) = Generator::start(resource)?;
                generators.running.push(generator);
                said(&line);
            }
        }
        Ok(generators)
    }

    /// From now on this is taken.
    ///
    /// # Errors
    /// A process has ended.
    pub fn take(&mut self, load: &LoadSpec) -> Result<(), Failure> {
        for Generator { resource, child } in &mut self.running {
            let told = child.stdin.as_mut().map(|stdin| writeln!(stdin, "{}", resource.share(load)));
            if !matches!(told, Some(Ok(()))) {
                return Err(ended(*resource));
            }
        }
        Ok(())
    }
}

fn ended(resource: Resource) -> Failure {
    Failure::failed(anyhow!("the process that loads the {} has ended; what it says is above", resource.name()))
}

impl Generator {
    /// Starts a process; it and its first line.
    fn start(resource: Resource) -> Result<(Self, String), Failure> {
        let program = std::env::current_exe().map_err(|error| Failure::failed(anyhow!("this program: {error}")))?;
        let mut command = Command::new(program);
        command.args(["load-worker", resource.name()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        // A thread of a team is pinned, and its children would be.
        let child = device::unpinned(|| command.spawn());
        let mut child = child.map_err(|error| Failure::failed(anyhow!("a process for load: {error}")))?;
        let (tell, told) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                let mut line = String::new();
                let read = BufReader::new(stdout).read_line(&mut line);
                // Nobody listens any more if it took too long.
                let _ = tell.send(read.is_ok_and(|bytes| bytes > 0).then_some(line));
            });
        }
        let generator = Generator { resource, child };
        let line = told.recv_timeout(READY_MAX).ok().flatten().ok_or_else(|| ended(resource))?;
        Ok((generator, line.trim_end().to_owned()))
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        // End of input ends it; a process that hangs in a driver is ended by force.
        drop(self.child.stdin.take());
        std::thread::sleep(Duration::from_millis(20));
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
