//! What to do about each error of the runtime. Not here: the errors themselves (`error.rs`), how they are shown
//! (`shared_cli`).

use crate::Error;
use shared_cli::Failure;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let hint = match &error {
            Error::StalePlan { path, .. } | Error::PlanFile { path, .. } => {
                Some(format!("make it again: ats-plan compile MODEL --out {}", path.display()))
            }
            Error::ForeignPlan { path, .. } => Some(format!(
                "make one for this machine: ats-plan compile MODEL --out {}; or run it with --force-device",
                path.display()
            )),
            Error::PlanTooShort { path, needed, .. } => {
                Some(format!("make it again: ats-plan compile MODEL --context {needed} --out {}", path.display()))
            }
            Error::ContextFull { needed, .. } => {
                Some(format!("shorten the input, or plan for more: ats-plan compile MODEL --context {needed}"))
            }
            Error::StartPlanner { .. } => Some("ats-plan must lie beside ats-run or be on the PATH".into()),
            Error::Write { .. } => {
                Some("name a plan with --plan, or set XDG_CACHE_HOME to a folder that takes one".into())
            }
            Error::NotFinite { .. } => {
                Some("the model file is damaged, or its weights overflow; try another file".into())
            }
            Error::Device(device::DeviceError::GpuAbsent(_)) => {
                Some("this plan needs the GPU; one without: ats-plan compile MODEL --vram 0".into())
            }
            _ => None,
        };
        let failure = Failure::failed(error);
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}
