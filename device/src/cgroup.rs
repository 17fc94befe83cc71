//! Limits that a control group puts on this process: CPU quota and memory, versions 1 and 2.
//!
//! The limits of all ancestors apply, so the least one counts. A container often sees its own group as the root of the
//! mount: paths that do not exist are looked for at the mount's root too. Next: `topology.rs`, `memory.rs`.

use std::path::{Path, PathBuf};

use crate::DeviceError;
use crate::sysfile::SysRoot;

const MOUNT: &str = "sys/fs/cgroup";

/// CPU time allowed, in thousandths of a CPU; `None` without a quota.
pub fn cpu_quota_milli(root: &SysRoot) -> Result<Option<u64>, DeviceError> {
    let mut least = None;
    for folder in folders(root, "cpu") {
        let quota = match root.read(folder.join("cpu.max")) {
            Ok(text) => {
                parse_cpu_max(&text).ok_or_else(|| root.odd(folder.join("cpu.max"), &text, "`QUOTA PERIOD`"))?
            }
            Err(_) => cpu_quota_v1(root, &folder),
        };
        least = minimum(least, quota);
    }
    Ok(least)
}

/// Memory allowed in bytes; `None` without a limit.
pub fn memory_limit_bytes(root: &SysRoot) -> Option<u64> {
    let mut least = None;
    for folder in folders(root, "memory") {
        let leaves = ["memory.max", "memory.high", "memory.limit_in_bytes"];
        for text in leaves.iter().filter_map(|leaf| root.read(folder.join(leaf)).ok()) {
            least = minimum(least, parse_memory_limit(&text));
        }
    }
    least
}

/// Memory the group uses now, page cache included, in bytes; `None` without a group.
pub fn memory_used_bytes(root: &SysRoot) -> Option<u64> {
    let leaves = ["memory.current", "memory.usage_in_bytes"];
    let folder = folders(root, "memory").into_iter().next()?;
    leaves.iter().find_map(|leaf| root.read(folder.join(leaf)).ok()?.trim().parse().ok())
}

/// Time for which the groups of this process stopped it because of their CPU quota, in microseconds since they exist;
/// `None` without such groups.
pub fn stopped_us(root: &SysRoot) -> Option<u64> {
    let stats = folders(root, "cpu").into_iter().filter_map(|folder| root.read(folder.join("cpu.stat")).ok());
    stats.filter_map(|text| crate::evidence::parse_stopped_us(&text)).max()
}

fn minimum(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// The process's group of `controller` and its ancestors, innermost first.
fn folders(root: &SysRoot, controller: &str) -> Vec<PathBuf> {
    let listing = root.read("proc/self/cgroup").unwrap_or_default();
    let mut folders = Vec::new();
    for line in listing.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let mount = match controllers {
            "" => PathBuf::from(MOUNT),
            list if list.split(',').any(|name| name == controller) => Path::new(MOUNT).join(list),
            _ => continue,
        };
        let relative = Path::new(path.trim_start_matches('/'));
        folders.extend(relative.ancestors().map(|ancestor| mount.join(ancestor)));
        if !controllers.is_empty() {
            folders.extend(relative.ancestors().map(|ancestor| Path::new(MOUNT).join(controller).join(ancestor)));
        }
    }
    folders
}

/// `max 100000` or `150000 100000`. The outer `None`: not understood.
fn parse_cpu_max(text: &str) -> Option<Option<u64>> {
    let mut parts = text.split_whitespace();
    let (quota, period) = (parts.next()?, parts.next()?.parse::<u64>().ok()?);
    if quota == "max" {
        return Some(None);
    }
    Some(Some(quota.parse::<u64>().ok()?.saturating_mul(1000).checked_div(period)?))
}

fn cpu_quota_v1(root: &SysRoot, folder: &Path) -> Option<u64> {
    let number = |leaf: &str| root.read(folder.join(leaf)).ok()?.trim().parse::<i64>().ok();
    let (quota, period) = (number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?);
    if quota <= 0 || period <= 0 { None } else { Some(quota as u64 * 1000 / period as u64) }
}

/// `max`, or bytes; version 1 writes a huge number for "no limit".
fn parse_memory_limit(text: &str) -> Option<u64> {
    text.trim().parse::<u64>().ok().filter(|&bytes| bytes < 1 << 60)
}
