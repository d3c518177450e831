//! The amount of host memory, from which page-locked memory is taken.
//!
//! The driver does not know it. The system may grant the process less than the machine has, and the kernel kills a
//! process that locks more. So the limits of the process's control groups count.

use std::path::Path;
use weirpool_device::MemoryInfo;

/// Returns free and total memory of the host within the limits of this process; `None` if the system does not report it
/// (all but Linux).
pub(super) fn figures() -> Option<MemoryInfo> {
    figures_by(|path| std::fs::read_to_string(path).ok())
}

fn figures_by(read: impl Fn(&Path) -> Option<String>) -> Option<MemoryInfo> {
    let machine = read(Path::new("/proc/meminfo"))?;
    let all = MemoryInfo {
        free: in_machine(&machine, "MemAvailable:")?,
        total: in_machine(&machine, "MemTotal:")?,
    };
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().filter_map(Group::of);
    Some(limits.fold(all, |info, group| group.within(info, &read)))
}

/// `MemTotal:       131072 kB`
fn in_machine(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// A control group that limits memory, of version 2 or 1.
struct Group<'a> {
    root: &'static str,
    path: &'a str,
    /// The files with its limit and its usage.
    files: [&'static str; 2],
}

impl<'a> Group<'a> {
    /// `0::/user.slice/service`, or `4:memory:/user.slice`
    fn of(line: &'a str) -> Option<Self> {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let (root, files) = if controllers.is_empty() {
            ("/sys/fs/cgroup", ["memory.max", "memory.current"])
        } else {
            controllers.split(',').find(|name| *name == "memory")?;
            let files = ["memory.limit_in_bytes", "memory.usage_in_bytes"];
            ("/sys/fs/cgroup/memory", files)
        };
        Some(Self { root, path, files })
    }

    /// Reduces the figures to the limits of the group and of its ancestors. In a container the group may be visible at
    /// the root, whatever its path is.
    fn within(&self, info: MemoryInfo, read: &impl Fn(&Path) -> Option<String>) -> MemoryInfo {
        let path = Path::new(self.path.trim_start_matches('/'));
        path.ancestors().fold(info, |info, path| {
            let folder = Path::new(self.root).join(path);
            let number = |file| read(&folder.join(file))?.trim().parse::<u64>().ok();
            let [limit, used] = self.files.map(number);
            match limit {
                // `max`, or no such file.
                None => info,
                Some(limit) => MemoryInfo {
                    free: info.free.min(limit.saturating_sub(used.unwrap_or(0))),
                    total: info.total.min(limit),
                },
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: (&str, &str) = (
        "/proc/meminfo",
        "MemTotal:       1048576 kB\nMemFree:          4096 kB\nMemAvailable:    524288 kB\n",
    );
    const MIB: u64 = 1 << 20;

    fn figures_of(files: &[(&str, &str)]) -> Option<[u64; 2]> {
        let info = figures_by(|path| {
            let file = files.iter().find(|(name, _)| Path::new(name) == path)?;
            Some(file.1.to_owned())
        })?;
        Some([info.free, info.total].map(|bytes| bytes / MIB))
    }

    #[test]
    fn without_a_limit_it_is_the_machines() {
        assert_eq!(figures_of(&[MACHINE]), Some([512, 1024]));
        let group = ("/proc/self/cgroup", "0::/\n");
        let limit = ("/sys/fs/cgroup/memory.max", "max\n");
        assert_eq!(figures_of(&[MACHINE, group, limit]), Some([512, 1024]));
        assert_eq!(figures_of(&[]), None);
    }

    #[test]
    fn the_narrowest_of_the_groups_counts() {
        let files = [
            MACHINE,
            ("/proc/self/cgroup", "0::/outer/inner\n"),
            ("/sys/fs/cgroup/outer/memory.max", "209715200\n"),
            ("/sys/fs/cgroup/outer/memory.current", "104857600\n"),
            ("/sys/fs/cgroup/outer/inner/memory.max", "max\n"),
        ];
        assert_eq!(figures_of(&files), Some([100, 200]));
    }

    #[test]
    fn a_container_may_see_its_group_at_the_root() {
        let files = [
            MACHINE,
            ("/proc/self/cgroup", "0::/kubepods/pod\n"),
            ("/sys/fs/cgroup/memory.max", "314572800\n"),
        ];
        assert_eq!(figures_of(&files), Some([300, 300]));
    }

    #[test]
    fn groups_of_the_first_version_count_as_well() {
        let (limit, unlimited) = ("104857600\n", "9223372036854771712\n");
        let files = [
            MACHINE,
            ("/proc/self/cgroup", "9:cpu,cpuacct:/a\n4:memory:/a\n"),
            ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", limit),
            ("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "10485760"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", unlimited),
        ];
        assert_eq!(figures_of(&files), Some([90, 100]));
    }
}
