//! Three services in three processes on one GPU, whose peaks together exceed it:
//! `cargo run --release -p weirpool-broker --example broker [--device cuda] [--seconds 5] [--capacity-mib 8192]
//! [--chunk-mib 8] [--moved-mib 256] [--hold-ms 1000] [--only together|moves]`.
//!
//! Each service holds its weights, and serves requests that need up to 60 % of the GPU for a while. The services run
//! - **alone**: one process with a pool over all of the capacity, and no broker;
//! - **alone with the broker**, while the two others are connected, hold their weights, and idle;
//! - **split**: three processes, each with a third of the capacity, and no broker;
//! - **together**: three processes with the broker, each guaranteed its weights.
//!
//! At the end two processes take the same memory in turn. The time from a request to its memory is split into the time
//! in which one process returns memory, the time in which the other maps it, and the rest: messages and wake-ups.

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("skipped: the broker needs Linux");
}

#[cfg(target_os = "linux")]
fn main() -> anyhow::Result<()> {
    linux::main()
}

#[cfg(target_os = "linux")]
mod linux {
    use anyhow::{Context, bail, ensure};
    use std::env;
    use std::io::{BufRead, BufReader, Write};
    use std::path::PathBuf;
    use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
    use std::sync::Arc;
    use std::time::{Duration, Instant};
    use weirpool::device::Device;
    use weirpool::device::sim::{Clock, Operation, SimDevice};
    use weirpool::{AllocError, Pool, Stream};
    use weirpool_broker::{Broker, BrokerConfig, BrokerOptions, lease_capacity, lease_of};

    const MIB: u64 = 1 << 20;
    /// The part of the capacity that weights take, and that a request takes at most, in percent.
    const WEIGHTS: u64 = 5;
    const PEAK: u64 = 60;
    /// The time that a request works, once it has its memory.
    const WORK: Duration = Duration::from_millis(2);
    const MOVES: usize = 101;
    const CHUNK: u64 = 8 * MIB;

    #[derive(Clone, Debug)]
    struct Options {
        device: String,
        capacity: u64,
        time: Duration,
        chunk: u64,
        /// The bytes of a lease that moves between two services.
        moved: u64,
        hold: Duration,
        only: Option<String>,
    }

    impl Options {
        /// Returns the bytes of a service's weights, in whole chunks.
        fn weights(&self) -> u64 {
            (self.capacity * WEIGHTS / 100).next_multiple_of(self.chunk)
        }

        fn parse() -> anyhow::Result<Self> {
            let mut options = Self {
                device: "sim".into(),
                capacity: 8192 * MIB,
                time: Duration::from_secs(5),
                chunk: CHUNK,
                moved: 256 * MIB,
                hold: BrokerConfig::new("", 0).longest_hold,
                only: None,
            };
            let mut arguments = env::args().skip(1);
            while let Some(name) = arguments.next() {
                let value = arguments
                    .next()
                    .with_context(|| format!("{name} needs a value"))?;
                match name.as_str() {
                    "--device" => options.device = value,
                    "--capacity-mib" => options.capacity = value.parse::<u64>()? * MIB,
                    "--seconds" => options.time = Duration::from_secs_f64(value.parse()?),
                    "--chunk-mib" => options.chunk = value.parse::<u64>()? * MIB,
                    "--moved-mib" => options.moved = value.parse::<u64>()? * MIB,
                    "--hold-ms" => options.hold = Duration::from_millis(value.parse()?),
                    "--only" => options.only = Some(value),
                    _ => bail!("unknown option {name}"),
                }
            }
            ensure!(
                options.capacity >= 4 * options.moved,
                "the capacity is less than {} MiB",
                4 * options.moved / MIB
            );
            Ok(options)
        }
    }

    pub(super) fn main() -> anyhow::Result<()> {
        let options = Options::parse()?;
        if env::var_os("WEIRPOOL_SERVICE").is_some() {
            return Service::new(&options)?.run_commands();
        }
        // Each service runs in a process of its own. This process only starts them, and opens no device.
        let folder = env::temp_dir().join(format!("weirpool-example-{}", std::process::id()));
        std::fs::create_dir(&folder)?;
        let measured = measure(&options, folder.join("broker"));
        let _ = std::fs::remove_dir_all(&folder);
        measured
    }

    fn measure(options: &Options, socket: PathBuf) -> anyhow::Result<()> {
        let capacity = options.capacity;
        println!(
            "{}, capacity {} MiB in chunks of {} MiB, three services with peaks of {PEAK} %, holds of up to {:?}",
            options.device,
            capacity / MIB,
            options.chunk / MIB,
            options.hold
        );
        println!(
            "{:<28}{:>14}{:>12}{:>10}{:>12}{:>12}",
            "", "requests/s", "failures", "waits", "p99", "longest"
        );
        let runs = |name| options.only.as_deref().is_none_or(|only| only == name);
        let bind = |longest_hold| {
            let config = BrokerConfig {
                longest_hold,
                ..BrokerConfig::new(&socket, capacity)
            };
            anyhow::Ok(Broker::bind(config)?.spawn()?)
        };
        if runs("alone") {
            let mut alone = Handle::start(options, None, capacity)?;
            let free = alone.serve(options)?;
            drop(alone);
            println!("{:<28}{free}", "alone");
            let _broker = bind(options.hold)?;
            let mut services = start(options, Some(&socket), capacity)?;
            for service in &mut services[1..] {
                // These services were busy, and still hold the memory that they needed then.
                service.call("once", "served")?;
            }
            let with_broker = services[0].serve(options)?;
            println!("{:<28}{with_broker}", "alone with the broker");
            println!(
                "{:<28}{:>13.1}%",
                "  of the first",
                100.0 * with_broker.rate / free.rate
            );
        }
        if runs("split") {
            let mut services = start(options, None, capacity / 3)?;
            print_together("split, a third each", &mut services, options)?;
        }
        if runs("together") {
            let _broker = bind(options.hold)?;
            let mut services = start(options, Some(&socket), capacity)?;
            print_together("together with the broker", &mut services, options)?;
        }
        if runs("moves") {
            // A hold would delay the next turn, until the broker sees that the service is idle.
            let _broker = bind(Duration::ZERO)?;
            let mut services = start(options, Some(&socket), capacity)?;
            moves(&mut services, options)?;
        }
        Ok(())
    }

    fn start(
        options: &Options,
        socket: Option<&PathBuf>,
        capacity: u64,
    ) -> anyhow::Result<Vec<Handle>> {
        (0..3)
            .map(|_| Handle::start(options, socket, capacity))
            .collect()
    }

    fn print_together(
        name: &str,
        services: &mut [Handle],
        options: &Options,
    ) -> anyhow::Result<()> {
        for service in services.iter_mut() {
            service.send(&format!("serve {}", options.time.as_millis()))?;
        }
        println!("{name}");
        let mut sum = Served::default();
        for (at, service) in services.iter_mut().enumerate() {
            let served = Served::parse(&service.expect("served")?)?;
            println!("{:<28}{served}", format!("  service {at}"));
            sum.rate += served.rate;
            sum.failures += served.failures;
            sum.waits += served.waits;
            sum.p99 = sum.p99.max(served.p99);
            sum.longest = sum.longest.max(served.longest);
        }
        println!("{:<28}{sum}", "  all");
        Ok(())
    }

    /// Moves a lease between two services in turn. Prints medians.
    fn moves(services: &mut [Handle], options: &Options) -> anyhow::Result<()> {
        let (capacity, moved) = (options.capacity, options.moved);
        let [one, other, filler] = services else {
            unreachable!("there are three")
        };
        // The filler and the weights leave the moved bytes free, and less than the moved bytes more.
        let rest = capacity - moved - 3 * options.weights() - 4 * CHUNK;
        filler.call(&format!("hold {rest}"), "held")?;
        let mut figures: [Vec<f64>; 6] = Default::default();
        let mut turns = [one, other];
        turns[0].call(&format!("take {moved}"), "took")?;
        let times = |service: &mut Handle| -> anyhow::Result<(f64, f64)> {
            let times = service.call("times", "times")?;
            let (returning, granting) = times.split_once(' ').context("two times")?;
            Ok((returning.parse()?, granting.parse()?))
        };
        for _ in 0..MOVES {
            turns.swap(0, 1);
            let [taker, giver] = &mut turns;
            let before = (times(giver)?.0, times(taker)?.1);
            let took: f64 = taker.call(&format!("take {moved}"), "took")?.parse()?;
            let giving = times(giver)?.0 - before.0;
            let taking = times(taker)?.1 - before.1;
            // The process unmaps the same size by itself, and takes it again within its lease.
            let unmapped: f64 = taker.call(&format!("unmap {moved}"), "unmapped")?.parse()?;
            let mapped: f64 = taker.call(&format!("take {moved}"), "took")?.parse()?;
            let rest = took - giving - taking;
            let all = [took, giving, taking, rest, unmapped, mapped];
            figures
                .iter_mut()
                .zip(all)
                .for_each(|(figures, figure)| figures.push(figure));
        }
        let [took, giving, taking, rest, unmapped, mapped] = figures.map(median);
        println!("{} MiB moved, medians of {MOVES}, in us", moved / MIB);
        let row = |name: &str, time: f64| println!("{name:<44}{time:>9.0}");
        row("  request to memory", took);
        row("    returning, in one process", giving);
        row("    mapping and granting, in the other", taking);
        row("    messages and wake-ups", rest);
        row("  unmapping the same size alone", unmapped);
        row("  mapping the same size alone", mapped);
        row(
            "  moving the lease, without these two",
            took - unmapped - mapped,
        );
        Ok(())
    }

    fn median(mut values: Vec<f64>) -> f64 {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    }

    #[derive(Clone, Copy, Debug, Default)]
    struct Served {
        rate: f64,
        failures: u64,
        waits: u64,
        /// The time from a request to its memory, in milliseconds.
        p99: f64,
        longest: f64,
    }

    impl Served {
        fn parse(text: &str) -> anyhow::Result<Self> {
            let mut words = text.split_whitespace();
            let mut next = || words.next().context("five figures");
            Ok(Self {
                rate: next()?.parse()?,
                failures: next()?.parse()?,
                waits: next()?.parse()?,
                p99: next()?.parse()?,
                longest: next()?.parse()?,
            })
        }
    }

    impl std::fmt::Display for Served {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(
                f,
                "{:>14.1}{:>12}{:>10}{:>9.1} ms{:>9.1} ms",
                self.rate, self.failures, self.waits, self.p99, self.longest
            )
        }
    }

    /// A service in another process.
    struct Handle {
        child: Child,
        input: ChildStdin,
        output: BufReader<ChildStdout>,
    }

    impl Handle {
        fn start(
            options: &Options,
            socket: Option<&PathBuf>,
            capacity: u64,
        ) -> anyhow::Result<Self> {
            let mut command = Command::new(env::current_exe()?);
            command.args(["--device", &options.device]);
            command.args(["--capacity-mib", &(options.capacity / MIB).to_string()]);
            command.args(["--chunk-mib", &(options.chunk / MIB).to_string()]);
            command.env("WEIRPOOL_SERVICE", capacity.to_string());
            if let Some(socket) = socket {
                command.env("WEIRPOOL_SOCKET", socket);
            }
            let mut child = command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let input = child.stdin.take().context("piped")?;
            let output = BufReader::new(child.stdout.take().context("piped")?);
            let mut handle = Self {
                child,
                input,
                output,
            };
            handle.expect("ready")?;
            Ok(handle)
        }

        fn send(&mut self, command: &str) -> anyhow::Result<()> {
            Ok(writeln!(self.input, "{command}")?)
        }

        fn expect(&mut self, word: &str) -> anyhow::Result<String> {
            let mut line = String::new();
            self.output.read_line(&mut line)?;
            let rest = line.trim().strip_prefix(word);
            let rest =
                rest.with_context(|| format!("the service answered {line:?} instead of {word}"))?;
            Ok(rest.trim().to_owned())
        }

        fn call(&mut self, command: &str, word: &str) -> anyhow::Result<String> {
            self.send(command)?;
            self.expect(word)
        }

        fn serve(&mut self, options: &Options) -> anyhow::Result<Served> {
            let served = self.call(&format!("serve {}", options.time.as_millis()), "served")?;
            Served::parse(&served)
        }
    }

    impl Drop for Handle {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    /// The work of a request.
    enum Work {
        Sim(weirpool::device::sim::SimStream),
        #[cfg(feature = "cuda")]
        Cuda(Arc<cudarc::driver::CudaStream>),
    }

    struct Service {
        pool: Pool,
        stream: Stream,
        work: Work,
        capacity: u64,
        whole: u64,
        held: Vec<weirpool::Block>,
    }

    impl Service {
        fn new(options: &Options) -> anyhow::Result<Self> {
            let capacity: u64 = env::var("WEIRPOOL_SERVICE")?.parse()?;
            let (device, work): (Arc<dyn Device>, _) = match options.device.as_str() {
                "sim" => {
                    let device = SimDevice::builder()
                        .memory(options.capacity)
                        .clock(Clock::Wall)
                        .build();
                    (Arc::new(device.clone()), Work::Sim(device.create_stream()))
                }
                #[cfg(feature = "cuda")]
                "cuda" => {
                    let device = weirpool::device::cuda::CudaDevice::new(0)?;
                    let work = device.context().new_stream()?;
                    (Arc::new(device), Work::Cuda(work))
                }
                other => {
                    bail!("unknown device {other}; build with --features cuda for cuda")
                }
            };
            let mut builder = Pool::builder(device).capacity(capacity);
            builder = builder.chunk_bytes(options.chunk);
            // A request that waits for memory of its own service fails, since no broker can help it.
            builder = builder.fail_deadlocks_after(Duration::from_millis(20));
            if let Some(socket) = env::var_os("WEIRPOOL_SOCKET") {
                let guaranteed = options.weights();
                let options = BrokerOptions::new(PathBuf::from(socket)).guaranteed(guaranteed);
                builder = lease_capacity(builder, options);
            }
            let pool = builder.build()?;
            let stream = match &work {
                Work::Sim(work) => pool.register(work)?,
                #[cfg(feature = "cuda")]
                Work::Cuda(work) => pool.register(work)?,
            };
            let weights = pool.allocate(&stream, options.weights()).blocking()?;
            Ok(Self {
                pool,
                stream,
                work,
                capacity,
                whole: options.capacity,
                held: vec![weights],
            })
        }

        fn run_commands(mut self) -> anyhow::Result<()> {
            reply("ready")?;
            for line in std::io::stdin().lines() {
                let line = line?;
                let (command, rest) = line.split_once(' ').unwrap_or((&line, ""));
                match command {
                    "serve" => {
                        let served = self.serve(Duration::from_millis(rest.parse()?))?;
                        reply(&format!(
                            "served {} {} {} {} {}",
                            served.rate, served.failures, served.waits, served.p99, served.longest
                        ))?;
                    }
                    "once" => {
                        self.request(self.capacity * 30 / 100)?;
                        reply("served")?;
                    }
                    "hold" => {
                        self.held
                            .push(self.pool.allocate(&self.stream, rest.parse()?).blocking()?);
                        reply("held")?;
                    }
                    "take" => {
                        let start = Instant::now();
                        let block = self.pool.allocate(&self.stream, rest.parse()?).blocking()?;
                        let took = start.elapsed();
                        drop(block);
                        futures::executor::block_on(self.stream.synchronize())?;
                        reply(&format!("took {}", took.as_secs_f64() * 1e6))?;
                    }
                    "unmap" => {
                        self.pool.maintain().reap()?;
                        let start = Instant::now();
                        let keep = self
                            .pool
                            .inspect()
                            .statistics()
                            .reserved
                            .current
                            .saturating_sub(rest.parse()?);
                        let trimmed = self.pool.trim_to(keep)?;
                        let took = start.elapsed();
                        ensure!(trimmed.released > 0, "nothing was free: {trimmed}");
                        reply(&format!("unmapped {}", took.as_secs_f64() * 1e6))?;
                    }
                    "times" => {
                        let lease = lease_of(&self.pool).context("there is a broker")?;
                        let micros = |time: Duration| time.as_secs_f64() * 1e6;
                        let (returning, granting) =
                            (micros(lease.returning), micros(lease.granting));
                        reply(&format!("times {returning} {granting}"))?;
                    }
                    _ => bail!("unknown command {line}"),
                }
            }
            Ok(())
        }

        /// Serves requests of different sizes for a time.
        fn serve(&self, time: Duration) -> anyhow::Result<Served> {
            let (start, mut served) = (Instant::now(), Served::default());
            let mut count = 0_u64;
            let mut latencies = Vec::new();
            while start.elapsed() < time {
                count += 1;
                // A share of the whole GPU: a service does not know how it is shared.
                let percent = 1 + (count * 7919 + u64::from(std::process::id())) % PEAK;
                let waited = self.pool.inspect().statistics().waits.served;
                match self.request(self.whole * percent / 100) {
                    Ok(latency) => {
                        served.rate += 1.0;
                        latencies.push(latency.as_secs_f64() * 1e3);
                    }
                    Err(_) => served.failures += 1,
                }
                served.waits += self.pool.inspect().statistics().waits.served - waited;
            }
            served.rate /= start.elapsed().as_secs_f64();
            latencies.sort_by(f64::total_cmp);
            served.p99 = latencies
                .get(latencies.len() * 99 / 100)
                .copied()
                .unwrap_or(0.0);
            served.longest = latencies.last().copied().unwrap_or(0.0);
            Ok(served)
        }

        /// Serves a request. Returns the time that it waited for its memory.
        fn request(&self, bytes: u64) -> anyhow::Result<Duration> {
            let start = Instant::now();
            let block = match self
                .pool
                .allocate(&self.stream, bytes)
                .timeout(Duration::from_secs(30))
                .blocking()
            {
                Ok(block) => block,
                Err(error @ AllocError::TooLarge { .. }) => {
                    // A failure takes as long as the work, so that failing is not faster than serving.
                    std::thread::sleep(WORK);
                    return Err(error.into());
                }
                Err(error) => return Err(error.into()),
            };
            let latency = start.elapsed();
            match &self.work {
                Work::Sim(work) => {
                    work.submit(Operation::new(WORK).writes(block.address(), block.size()));
                }
                #[cfg(feature = "cuda")]
                Work::Cuda(work) => {
                    let start = Instant::now();
                    // Fills of the block stand for kernels.
                    while start.elapsed() < WORK {
                        // SAFETY: the block has this many bytes, and is used in the order of its stream.
                        unsafe {
                            cudarc::driver::result::memset_d8_async(
                                block.address().to_bits(),
                                0x55,
                                block.size() as usize,
                                work.cu_stream(),
                            )
                        }?;
                        work.synchronize()?;
                    }
                }
            }
            drop(block);
            futures::executor::block_on(self.stream.synchronize())?;
            Ok(latency)
        }
    }

    fn reply(words: &str) -> anyhow::Result<()> {
        println!("{words}");
        Ok(std::io::stdout().flush()?)
    }
}
