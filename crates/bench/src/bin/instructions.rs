//! Instructions and cache lines of the hot paths, counted by valgrind: `cargo run --release -p weirpool-bench --bin
//! instructions`. Times are noise on shared machines; counts are not.
//!
//! Each case runs in a process under `cachegrind`, for two numbers of operations; the difference is what the
//! operations took, without the start of the process. For the cache lines, each operation is followed by a walk
//! over more memory than the simulated cache of 32 KiB has room for, so that it misses each line that it touches once.
//!
//! Counts are compared with those of `crates/bench/instructions.csv`. The program fails if one is more than 2 % higher
//! (cache lines: 10 %). `--accept` writes the new counts. One program always takes the same instructions; another version
//! of the compiler can take some percent more, and is a reason to accept.

use anyhow::{Context, bail, ensure};
use clap::Parser;
use futures::FutureExt;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;
use weirpool::device::sim::{Backing, Checker, Clock, SimDevice, SimStream};
use weirpool::{Block, Pool, ReleaseThreshold, Reservation, Stream, Tag};
use weirpool_compat::RawPool;
use weirpool_driver_pool::{DriverPool, DriverPoolUse};

/// The part by which a count of instructions may be higher than the accepted one.
const TOLERANCE: f64 = 0.02;
/// The part by which a count of cache lines may be higher: values on the stack share lines by chance.
const TOLERANCE_OF_LINES: f64 = 0.1;
/// Operations of the two runs. More would change counts by less than one in a hundred.
const RUNS: [u64; 2] = [1_000, 3_000];
const LINE: usize = 64;
/// Twice what the simulated cache has room for.
const SWEPT: usize = 64 << 10;
const BYTES: u64 = 64 << 10;
const MIB: u64 = 1 << 20;

#[derive(Parser)]
struct Options {
    /// Counts these cases only.
    cases: Vec<String>,
    /// Writes the counts to `instructions.csv` instead of comparing them.
    #[arg(long)]
    accept: bool,
    /// Runs a case in this process.
    #[arg(long, hide = true, requires = "operations")]
    run: Option<String>,
    #[arg(long, hide = true)]
    operations: Option<u64>,
    #[arg(long, hide = true)]
    sweep: bool,
}

/// A pool on a simulated device whose time stands still, so that each run takes the same way.
struct Fixture {
    device: SimDevice,
    pool: Pool,
    stream: Stream,
    other: Stream,
    raw: RawPool,
    work: SimStream,
    tag: Tag,
    reservation: Reservation,
    mix: RefCell<Mix>,
    /// Passes each call on to a pool of the driver, which keeps its memory. The simulated driver's own part of a pair is
    /// about 2,180 instructions.
    passed: (Pool, Stream),
}

/// Blocks of 512 B to 64 MiB in a pool of their own, at most [`LIVE`] of them and 2 GiB.
struct Mix {
    pool: Pool,
    stream: Stream,
    random: fastrand::Rng,
    held: Vec<Block>,
    bytes: u64,
}

/// The number of live blocks of the mix.
const LIVE: usize = 256;

impl Mix {
    fn new() -> anyhow::Result<Self> {
        let device = SimDevice::builder()
            .memory(8 << 30)
            .backing(Backing::AddressesOnly)
            .clock(Clock::Manual)
            .checker(Checker::Off)
            .build();
        let pool = Pool::builder(device).build()?;
        Ok(Self {
            stream: pool.create_stream()?,
            pool,
            random: fastrand::Rng::with_seed(1),
            held: Vec::new(),
            bytes: 0,
        })
    }

    /// Allocates or frees a block. Sizes are uniform in their logarithm.
    fn step(&mut self) {
        let bytes = (512.0 * 2_f64.powf(17.0 * self.random.f64())) as u64;
        let is_full = self.held.len() == LIVE || self.bytes + bytes > 2 << 30;
        if is_full || (self.random.bool() && !self.held.is_empty()) {
            let block = self.held.swap_remove(self.random.usize(..self.held.len()));
            self.bytes -= block.size();
        } else {
            // No other case uses this way: what one case uses alone is compiled into it.
            let request = self.pool.allocate(&self.stream, bytes);
            let block = request.blocking().expect("memory");
            self.bytes += block.size();
            self.held.push(block);
        }
    }
}

type Operation = fn(&Fixture);

const CASES: &[(&str, Operation)] = &[
    ("pair", |fixture| {
        let block = fixture.pool.try_allocate(&fixture.stream, BYTES);
        drop(black_box(block.expect("memory")));
    }),
    ("pair, awaited", |fixture| {
        let request = fixture.pool.allocate(&fixture.stream, BYTES).into_future();
        drop(black_box(now(request)));
    }),
    ("pair of a tag", |fixture| {
        let request = fixture
            .pool
            .allocate(&fixture.stream, BYTES)
            .tag(fixture.tag);
        drop(black_box(request.try_now().expect("memory")));
    }),
    ("pair from a reservation", |fixture| {
        let block = fixture.reservation.allocate(&fixture.stream, BYTES);
        drop(black_box(block.expect("reserved")));
    }),
    ("reservation and its pair", |fixture| {
        let reservation = fixture.pool.reserve(MIB).try_now().expect("memory");
        let block = reservation.allocate(&fixture.stream, MIB);
        drop(black_box(block.expect("reserved")));
    }),
    ("pair by address", |fixture| {
        let wait = Duration::from_secs(1);
        let address = fixture.raw.allocate(&fixture.work, BYTES, wait);
        let freed = fixture.raw.free(address.expect("memory"), &fixture.work);
        freed.expect("an address that is allocated");
    }),
    ("pair beyond the cache of the stream", |fixture| {
        let block = fixture.pool.try_allocate(&fixture.stream, 48 * MIB);
        drop(black_box(block.expect("memory")));
    }),
    ("pair, freed on another stream", |fixture| {
        let block = fixture.pool.try_allocate(&fixture.stream, BYTES);
        let freed = block.expect("memory").deallocate_on(&fixture.other);
        drop(black_box(freed.expect("a stream of the pool")));
        fixture.device.advance_to_end();
    }),
    ("pair passed through", |fixture| {
        let (pool, stream) = &fixture.passed;
        let block = pool.try_allocate(stream, 256);
        drop(black_box(block.expect("memory")));
    }),
    ("half a pair of a mix", |fixture| {
        fixture.mix.borrow_mut().step()
    }),
    ("wait and grant", |fixture| {
        let all = fixture.pool.try_allocate(&fixture.stream, 48 * MIB);
        let mut request = fixture
            .pool
            .allocate(&fixture.stream, 32 * MIB)
            .into_future();
        assert!((&mut request).now_or_never().is_none(), "it waits");
        drop(all.expect("memory"));
        drop(black_box(now(request)));
    }),
];

fn now(request: impl Future<Output = Result<Block, weirpool::AllocError>>) -> Block {
    let block = request.now_or_never().expect("granted at once");
    block.expect("memory")
}

fn passed_through() -> anyhow::Result<(Pool, Stream)> {
    let device = SimDevice::builder()
        .memory(1 << 30)
        .clock(Clock::Manual)
        .checker(Checker::Off)
        .build();
    let driver_pool = DriverPool::builder(&device).build()?;
    driver_pool.set_release_threshold(ReleaseThreshold::Keep)?;
    let segments = driver_pool.segments(DriverPoolUse::PassedThrough);
    let pool = Pool::builder(device).segment_source(segments).build()?;
    Ok((pool.clone(), pool.create_stream()?))
}

impl Fixture {
    fn new() -> anyhow::Result<Self> {
        let device = SimDevice::builder()
            .memory(1 << 30)
            .clock(Clock::Manual)
            .checker(Checker::Off)
            .build();
        let pool = Pool::builder(device.clone()).capacity(64 * MIB).build()?;
        let [stream, other] = [pool.create_stream()?, pool.create_stream()?];
        let reservation = pool.reserve(4 * MIB).try_now()?;
        Ok(Self {
            raw: RawPool::new(&pool),
            work: device.create_stream(),
            device,
            pool,
            stream,
            other,
            tag: Tag::new("instructions"),
            reservation,
            mix: RefCell::new(Mix::new()?),
            passed: passed_through()?,
        })
    }
}

fn run(name: &str, operations: u64, sweeps: bool) -> anyhow::Result<()> {
    let case = CASES.iter().find(|(known, _)| *known == name);
    let (_, operation) = case.with_context(|| format!("there is no case {name:?}"))?;
    let fixture = Fixture::new()?;
    let mut swept = vec![0_u8; SWEPT];
    for _ in 0..operations {
        operation(&fixture);
        if sweeps {
            black_box(&mut swept[..])
                .iter_mut()
                .step_by(LINE)
                .for_each(|byte| *byte = byte.wrapping_add(1));
        }
    }
    Ok(())
}

/// What one operation takes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Counts {
    instructions: f64,
    lines: f64,
}

impl Counts {
    fn of(name: &str) -> anyhow::Result<Self> {
        let per_operation = |sweeps, total: fn(&str) -> anyhow::Result<u64>| {
            let mut totals = [0; 2];
            for (total_of_run, operations) in totals.iter_mut().zip(RUNS) {
                *total_of_run = total(&under_valgrind(name, operations, sweeps)?)?;
            }
            let more = totals[1].saturating_sub(totals[0]);
            anyhow::Ok(more as f64 / (RUNS[1] - RUNS[0]) as f64)
        };
        let misses = per_operation(true, |report| figure(report, "D1  misses:"))?;
        Ok(Self {
            instructions: per_operation(false, |report| figure(report, "I   refs:"))?.round(),
            lines: (misses - (SWEPT / LINE) as f64).round(),
        })
    }
}

fn under_valgrind(name: &str, operations: u64, sweeps: bool) -> anyhow::Result<String> {
    let mut command = Command::new("valgrind");
    command.args([
        "--tool=cachegrind",
        "--cache-sim=yes",
        "--cachegrind-out-file=/dev/null",
    ]);
    // Not those of this machine.
    command.args(["--I1=32768,8,64", "--D1=32768,8,64", "--LL=8388608,16,64"]);
    // The environment and the program's name lie on the stack, and move what lies above them. So they are few and short.
    let program = std::env::current_exe()?;
    let (folder, file) = (program.parent(), program.file_name());
    let (folder, file) = folder.zip(file).context("the program has a path")?;
    command.env_clear();
    command.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    command.current_dir(folder).arg(Path::new(".").join(file));
    command.args(["--run", name, "--operations", &operations.to_string()]);
    command.args(sweeps.then_some("--sweep"));
    let output = command.output()?;
    let report = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(
        output.status.success(),
        "valgrind failed for {name}:\n{report}"
    );
    Ok(report)
}

/// Returns the first number of valgrind's line.
fn figure(report: &str, title: &str) -> anyhow::Result<u64> {
    let line = report.lines().find_map(|line| line.split_once(title));
    let (_, figures) = line.with_context(|| format!("no line {title:?} in\n{report}"))?;
    let first = figures.split_whitespace().next().unwrap_or_default();
    Ok(first.replace(',', "").parse()?)
}

fn accepted_at() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("instructions.csv")
}

fn accepted() -> anyhow::Result<BTreeMap<String, Counts>> {
    let text = fs::read_to_string(accepted_at()).context("run with --accept first")?;
    let lines = text.lines().skip(1);
    lines
        .map(|line| {
            let mut fields = line.rsplitn(3, ';');
            let (lines, instructions, name) = (fields.next(), fields.next(), fields.next());
            let number = |field: Option<&str>| field.and_then(|text| text.trim().parse().ok());
            let counts = number(instructions).zip(number(lines));
            let (instructions, lines) =
                counts.with_context(|| format!("{line:?} in {}", accepted_at().display()))?;
            let counts = Counts {
                instructions,
                lines,
            };
            Ok((name.unwrap_or_default().to_owned(), counts))
        })
        .collect()
}

/// Returns sentences about counts that are too high.
fn excesses(name: &str, now: Counts, before: Counts) -> Vec<String> {
    let kinds = [
        (
            "instructions",
            TOLERANCE,
            now.instructions,
            before.instructions,
        ),
        ("cache lines", TOLERANCE_OF_LINES, now.lines, before.lines),
    ];
    // Two are within the tolerance of any count.
    let too_high = kinds.into_iter().filter(|(_, tolerance, now, before)| {
        *now > (before * (1.0 + tolerance)).max(before + 2.0)
    });
    too_high
        .map(|(kind, _, now, before)| format!("{name}: {now} {kind}, {before} accepted"))
        .collect()
}

/// Prints all counts. Returns sentences about those that are too high.
fn compare(counted: &BTreeMap<&str, Counts>) -> anyhow::Result<Vec<String>> {
    let accepted = accepted()?;
    let mut all = Vec::new();
    println!(
        "{:<40}{:>14}{:>10}{:>14}{:>10}",
        "", "instructions", "accepted", "cache lines", "accepted"
    );
    for (name, now) in counted {
        let before = accepted.get(*name);
        let before = before.with_context(|| format!("{name:?} is not accepted: --accept"))?;
        println!(
            "{name:<40}{:>14}{:>10}{:>14}{:>10}",
            now.instructions, before.instructions, now.lines, before.lines
        );
        all.extend(excesses(name, *now, *before));
    }
    Ok(all)
}

fn accept(counted: &BTreeMap<&str, Counts>) -> anyhow::Result<()> {
    let mut text = "case; instructions; cache lines\n".to_owned();
    for (
        name,
        Counts {
            instructions,
            lines,
        },
    ) in counted
    {
        writeln!(text, "{name}; {instructions}; {lines}")?;
    }
    Ok(fs::write(accepted_at(), text)?)
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    if let Some(name) = &options.run {
        run(name, options.operations.unwrap_or_default(), options.sweep)?;
        return Ok(ExitCode::SUCCESS);
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("not counted: valgrind is not installed");
        return Ok(ExitCode::SUCCESS);
    }
    let names: Vec<_> = match &options.cases[..] {
        [] => CASES.iter().map(|(name, _)| *name).collect(),
        asked => asked.iter().map(String::as_str).collect(),
    };
    // Counts do not depend on processes that run beside.
    let counted: anyhow::Result<BTreeMap<_, _>> = thread::scope(|scope| {
        let count = |name| scope.spawn(move || Ok((name, Counts::of(name)?)));
        let counts: Vec<_> = names.into_iter().map(count).collect();
        let counts = counts.into_iter().map(|count| count.join());
        counts.map(|count| count.expect("no panic")).collect()
    });
    let counted = counted?;
    if options.accept {
        ensure!(options.cases.is_empty(), "--accept takes all cases");
        accept(&counted)?;
    }
    let excesses = compare(&counted)?;
    if !excesses.is_empty() {
        bail!(
            "more than 2 % (instructions) or 10 % (cache lines) above what is accepted:\n  {}\nIf that is worth it, or comes with another compiler, run again with --accept, and say why",
            excesses.join("\n  ")
        );
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_beyond_the_tolerance_are_named() {
        let before = Counts {
            instructions: 1000.0,
            lines: 10.0,
        };
        let with = |instructions, lines| {
            let now = Counts {
                instructions,
                lines,
            };
            excesses("pair", now, before)
        };
        assert!(with(1020.0, 12.0).is_empty() && with(1.0, 1.0).is_empty());
        assert_eq!(
            with(1021.0, 10.0),
            ["pair: 1021 instructions, 1000 accepted"]
        );
        assert_eq!(with(1000.0, 13.0), ["pair: 13 cache lines, 10 accepted"]);
    }

    #[test]
    fn figures_of_a_report_are_read() {
        let report =
            "==7== I   refs:      1,234,567\n==7== D1  misses:  8,901  ( 8,000 rd + 901 wr)\n";
        assert_eq!(figure(report, "I   refs:").unwrap(), 1_234_567);
        assert_eq!(figure(report, "D1  misses:").unwrap(), 8_901);
        assert!(figure(report, "LL misses:").is_err());
    }

    #[test]
    fn each_case_is_accepted() {
        let accepted = accepted().unwrap();
        assert!(
            accepted.keys().eq(CASES
                .iter()
                .map(|case| case.0)
                .collect::<std::collections::BTreeSet<_>>())
        );
    }
}
