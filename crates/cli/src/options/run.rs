//! The options of `weirpool run`.

use super::values;
use clap::{Parser, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use weirpool_preload::settings::Settings;

/// Runs an unmodified CUDA program on the pool: its `cudaMalloc`, `cudaMallocAsync` and their like wait for memory that is
/// short, within a limit or a broker's lease. The program, and those that it starts, need glibc's dynamic linker. Libraries:
/// libweirpool_preload.so and libweirpool_audit.so, beside this command, in deps or ../lib beside it, or where it was built.
#[derive(Clone, Debug, Parser)]
#[command(name = "run")]
pub(crate) struct Run {
    /// The longest time for which an allocation waits; then it fails, as the driver's does at once
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = values::duration)]
    wait: Duration,

    /// The tag of the allocations, and the name that a broker shows
    #[arg(long, value_name = "NAME")]
    tag: Option<String>,

    /// The socket of the broker that leases the memory of the GPU
    #[arg(long, value_name = "PATH")]
    broker: Option<PathBuf>,

    /// The most memory that each process takes of each GPU, in each of its contexts there; it sees no more [default: all]
    #[arg(long, value_name = "BYTES", value_parser = values::some_bytes)]
    limit: Option<u64>,

    /// Memory that the program takes as a whole before it takes any block, and gives back when it has freed its blocks: so
    /// programs never wait for each other's memory while they hold some. A 16th of it is taken without
    #[arg(long, value_name = "BYTES", value_parser = values::some_bytes)]
    reserve: Option<u64>,

    /// Serves the live page of the first pool at this port of 127.0.0.1; 0 for any free one [default if no port is given: 0]
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "0", require_equals = true)]
    page: Option<u16>,

    /// Writes the allocations when the program ends, as a trace that `weirpool replay` reads
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,

    /// The memory behind `cudaMalloc`
    #[arg(long, value_enum, default_value_t = MemoryName::Virtual)]
    memory: MemoryName,

    /// Prints no figures at the end of each process
    #[arg(long)]
    quiet: bool,

    /// The program and its arguments, behind `--`
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MemoryName {
    /// The pool's virtual memory
    Virtual,
    /// Memory of the driver that the pool admits, for programs that export it by cudaIpcGetMemHandle
    Plain,
}

impl Run {
    pub(crate) fn settings(&self) -> Settings {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        Settings {
            wait: self.wait,
            tag: self.tag.clone(),
            // The program may change its directory.
            broker: self.broker.as_ref().map(absolute),
            limit: self.limit,
            reserve: self.reserve,
            page: self.page,
            record: self.record.as_ref().map(absolute),
            is_plain: self.memory == MemoryName::Plain,
            is_quiet: self.quiet,
        }
    }
}
