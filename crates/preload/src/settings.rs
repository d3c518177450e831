//! The settings of a program that runs on the pool: `weirpool run` writes them to the environment of the program, and
//! the library in the program reads them.

use bytesize::ByteSize;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Names the library of the pool. Without it, the audit library does nothing.
pub const LIBRARY: &str = "WEIRPOOL_RUN_LIBRARY";
/// Names the process that `weirpool run` starts, in whose name files are written.
pub const PROCESS: &str = "WEIRPOOL_RUN_PROCESS";
const WAIT: &str = "WEIRPOOL_RUN_WAIT";
const TAG: &str = "WEIRPOOL_RUN_TAG";
pub(crate) const BROKER: &str = "WEIRPOOL_RUN_BROKER";
const LIMIT: &str = "WEIRPOOL_RUN_LIMIT";
const RESERVE: &str = "WEIRPOOL_RUN_RESERVE";
const PAGE: &str = "WEIRPOOL_RUN_PAGE";
const RECORD: &str = "WEIRPOOL_RUN_RECORD";
const MEMORY: &str = "WEIRPOOL_RUN_MEMORY";
const QUIET: &str = "WEIRPOOL_RUN_QUIET";

/// The file name of the pool's library.
pub const LIBRARY_FILE: &str = "libweirpool_preload.so";
/// The file name of the audit library.
pub const AUDIT_FILE: &str = "libweirpool_audit.so";

/// How a request that is short waits by default: as long as by default in PyTorch's package.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(5);

/// How a program runs on the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The longest time for which an allocation waits for memory. Then it fails with `CUDA_ERROR_OUT_OF_MEMORY`.
    pub wait: Duration,
    /// The tag of the program's allocations, if they have one.
    pub tag: Option<String>,
    /// The socket of a broker that leases the memory, if one does.
    pub broker: Option<PathBuf>,
    /// The most bytes that the pool of each context takes: nearly all programs have one context for each device. `None` for
    /// all of the device's memory.
    pub limit: Option<u64>,
    /// The bytes that the program takes as a whole before it takes any, and gives back when it has freed its blocks; `None`
    /// for programs that take their memory step by step.
    pub reserve: Option<u64>,
    /// The port of the loopback interface at which the live page is served, if it is; 0 for any free port.
    pub page: Option<u16>,
    /// The file to which the allocations are written when the program ends, if they are recorded.
    pub record: Option<PathBuf>,
    /// Whether `cuMemAlloc` gives memory that `cuIpcGetMemHandle` can export: memory of the driver, which the pool only
    /// admits.
    pub is_plain: bool,
    /// Whether no line of figures is written to standard error when the program ends.
    pub is_quiet: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            wait: DEFAULT_WAIT,
            tag: None,
            broker: None,
            limit: None,
            reserve: None,
            page: None,
            record: None,
            is_plain: false,
            is_quiet: false,
        }
    }
}

impl Settings {
    /// Returns the settings as variables of the environment.
    pub fn variables(&self) -> Vec<(&'static str, OsString)> {
        let text = |text: &dyn ToString| OsString::from(text.to_string());
        let flag = |is_set: bool| is_set.then(|| OsString::from("1"));
        let path = |path: &Option<PathBuf>| path.clone().map(OsString::from);
        let all = [
            (WAIT, Some(text(&self.wait.as_millis()))),
            (TAG, self.tag.clone().map(OsString::from)),
            (BROKER, path(&self.broker)),
            (LIMIT, self.limit.as_ref().map(|bytes| text(bytes))),
            (RESERVE, self.reserve.as_ref().map(|bytes| text(bytes))),
            (PAGE, self.page.as_ref().map(|port| text(port))),
            (RECORD, path(&self.record)),
            (MEMORY, self.is_plain.then(|| OsString::from("plain"))),
            (QUIET, flag(self.is_quiet)),
        ];
        let set = |(name, value): (_, Option<_>)| Some((name, value?));
        all.into_iter().filter_map(set).collect()
    }

    /// Reads the settings of this process.
    ///
    /// # Errors
    /// Returns an error that names a variable with an invalid value.
    pub fn of_environment() -> Result<Self, String> {
        Self::of(|name| env::var_os(name))
    }

    fn of(value: impl Fn(&str) -> Option<OsString>) -> Result<Self, String> {
        let read = |name| value(name).filter(|value| !value.is_empty());
        let number = |name| -> Result<Option<u64>, String> {
            let Some(value) = read(name) else {
                return Ok(None);
            };
            let number = value.to_str().and_then(|text| text.parse().ok());
            let expected = || format!("{name} is {value:?}: expected a number");
            number.ok_or_else(expected).map(Some)
        };
        let bytes = |name| -> Result<Option<u64>, String> {
            let Some(value) = read(name) else {
                return Ok(None);
            };
            let text = value.to_str();
            let size = text.and_then(|text| text.parse::<ByteSize>().ok());
            let expected = || format!("{name} is {value:?}: expected bytes, such as 8GiB");
            size.map(|size| Some(size.as_u64())).ok_or_else(expected)
        };
        let is_plain = match read(MEMORY) {
            None => false,
            Some(kind) if kind == "virtual" => false,
            Some(kind) if kind == "plain" => true,
            Some(kind) => return Err(format!("{MEMORY} is {kind:?}: expected virtual or plain")),
        };
        let port = number(PAGE)?.map(u16::try_from).transpose();
        Ok(Self {
            wait: number(WAIT)?.map_or(DEFAULT_WAIT, Duration::from_millis),
            tag: read(TAG).map(|tag| tag.to_string_lossy().into_owned()),
            broker: read(BROKER).map(PathBuf::from),
            limit: bytes(LIMIT)?,
            reserve: bytes(RESERVE)?,
            page: port.map_err(|_| format!("{PAGE}: expected a port"))?,
            record: read(RECORD).map(PathBuf::from),
            is_plain,
            is_quiet: read(QUIET).is_some(),
        })
    }
}

/// Returns the paths of the audit library and of the pool's library: in `deps` beside `executable`, beside it, in `../lib`, or
/// where this crate was built. `None` if one is in none of these places.
pub fn libraries(executable: &Path) -> Option<(PathBuf, PathBuf)> {
    let beside = executable.parent()?;
    // A build leaves the one in the folder of its script, and the other among the dependencies.
    let built = option_env!("OUT_DIR").map(Path::new);
    let folders = [
        // What cargo copies beside its programs may be of an earlier build.
        Some(beside.join("deps")),
        Some(beside.to_owned()),
        Some(beside.join("../lib")),
        built.map(|built| built.join("../../../deps")),
        built.map(Path::to_owned),
    ];
    let find = |file: &str| {
        let mut places = folders.iter().flatten().map(|folder| folder.join(file));
        places.find_map(|place| place.canonicalize().ok())
    };
    Some((find(AUDIT_FILE)?, find(LIBRARY_FILE)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&'static str, OsString)]) -> Result<Settings, String> {
        Settings::of(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.clone())
        })
    }

    #[test]
    fn settings_are_read_back_as_they_were_written() {
        let all = Settings {
            wait: Duration::from_millis(250),
            tag: Some("chat".into()),
            broker: Some("/run/gpu0.sock".into()),
            limit: Some(8 << 30),
            reserve: Some(2 << 30),
            page: Some(8080),
            record: Some("trace.csv".into()),
            is_plain: true,
            is_quiet: true,
        };
        for settings in [all, Settings::default()] {
            assert_eq!(read(&settings.variables()), Ok(settings));
        }
    }

    #[test]
    fn invalid_setting_is_refused_by_its_name() {
        for (name, value) in [
            (WAIT, "soon"),
            (LIMIT, "much"),
            (RESERVE, "some"),
            (PAGE, "70000"),
            (MEMORY, "fast"),
        ] {
            let refused = read(&[(name, value.into())]).unwrap_err();
            assert!(refused.starts_with(name), "{refused}");
        }
    }
}
