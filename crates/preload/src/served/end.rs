//! The end of the program: the trace is written, and a line of figures.

use super::context::Context;
use super::contexts;
use super::counts::Counts;
use super::fork;
use super::message::say;
use std::ffi::OsString;
use std::fs::File;
use std::io::BufWriter;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use weirpool_observe::{Recorded, write_trace};

/// Called when the libraries of the process end: after the program's own functions of this kind, which may free memory.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn end() {
    if fork::is_child() {
        return;
    }
    let _ = catch_unwind(|| {
        let contexts = contexts::ever();
        for (at, context) in contexts.iter().enumerate() {
            record(context, at);
        }
        if contexts
            .first()
            .is_some_and(|first| !first.settings.is_quiet)
        {
            let figures: Vec<_> = contexts.into_iter().map(figures).collect();
            say(&format!("{}{Counts}", figures.join("; ")));
        }
    });
}

fn record(context: &Context, at: usize) {
    let Some(file) = &context.settings.record else {
        return;
    };
    let is_first = std::env::var(crate::settings::PROCESS)
        .is_ok_and(|process| process == std::process::id().to_string());
    let file = named(file, is_first, at);
    let written = File::create(&file)
        .and_then(|target| write_trace(&context.pool.history(), BufWriter::new(target)));
    if let Err(error) = written {
        say(&format!("{}: {error}", file.display()));
    }
}

/// Returns the file of a context: as it was named for the first one of the program, and with the process and the number
/// of the context behind it for others.
fn named(file: &Path, is_first: bool, at: usize) -> PathBuf {
    let mut name = OsString::from(file);
    if !is_first {
        name.push(format!(".{}", std::process::id()));
    }
    if at > 0 {
        name.push(format!(".{at}"));
    }
    name.into()
}

/// Returns the figures of a context's pool.
fn figures(context: &Context) -> String {
    let read = context.pool.inspect().statistics();
    let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
    let waits = match read.waits.served {
        0 => String::new(),
        served => format!("; {served} waited {:?} in all", read.waits.times.total()),
    };
    let left = match read.live_blocks {
        0 => String::new(),
        blocks => format!("; {blocks} not freed"),
    };
    let admitted = match context.admitted.load(Ordering::Relaxed) {
        0 => String::new(),
        admitted => format!(", {admitted} of the driver's admitted"),
    };
    let plural = if read.allocations == 1 { "" } else { "s" };
    format!(
        "{} allocation{plural}{admitted} on device {}, at most {:.1} MiB used and {:.1} MiB reserved{waits}{left}",
        read.allocations,
        context.device,
        mib(read.used.high),
        mib(read.reserved.high),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_context_of_each_process_has_a_file_of_its_own() {
        let id = std::process::id();
        let file = Path::new("trace.csv");
        assert_eq!(named(file, true, 0), file);
        assert_eq!(named(file, true, 1), Path::new("trace.csv.1"));
        assert_eq!(
            named(file, false, 1),
            PathBuf::from(format!("trace.csv.{id}.1"))
        );
    }
}
