//! From the completion of device work to the task that awaits it: `cargo bench --bench wake`.
//!
//! Beside each wake-up an observer spins on the same event, in a thread of its own: what is reported is how
//! much later than the observer the task ran again. Then, how much launches of other threads are slowed
//! while somebody waits; and what the process costs while nobody does.
//!
//! On the simulated device (wall clock) anywhere; with `--features cuda` and a GPU, there as well.

use futures::executor::block_on;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};
use weirpool::device::Device;
use weirpool::{Pool, Stream};

/// A device with work that takes as long as it is told.
trait Bench: Sync {
    type Work: Send + Sync;

    fn device(&self) -> Arc<dyn Device>;

    fn name(&self) -> String;

    /// A stream, as the pool knows it.
    fn stream(&self, pool: &Pool) -> (Self::Work, Stream);

    /// Submits work that keeps the stream busy.
    fn spend(&self, work: &Self::Work, time: Duration);
}

mod sim {
    use super::*;
    use weirpool::device::sim::{Clock, Operation, SimDevice, SimStream};

    pub(crate) struct Sim(pub(crate) SimDevice);

    impl Sim {
        pub(crate) fn new() -> Self {
            Self(SimDevice::builder().clock(Clock::Wall).build())
        }
    }

    impl Bench for Sim {
        type Work = SimStream;

        fn device(&self) -> Arc<dyn Device> {
            Arc::new(self.0.clone())
        }

        fn name(&self) -> String {
            "the simulated device, on the wall clock".to_owned()
        }

        fn stream(&self, pool: &Pool) -> (SimStream, Stream) {
            let work = self.0.create_stream();
            let stream = pool.register(&work).expect("a stream of the device");
            (work, stream)
        }

        fn spend(&self, work: &SimStream, time: Duration) {
            work.submit(Operation::new(time));
        }
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::*;
    use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
    use weirpool::device::cuda::CudaDevice;

    const SOURCE: &str = r#"
    extern "C" __global__ void spend(unsigned long long nanoseconds) {
        unsigned long long start, now;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
        do {
            asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        } while (now - start < nanoseconds);
    }
    "#;

    pub(crate) struct Cuda {
        device: CudaDevice,
        spend: CudaFunction,
    }

    impl Cuda {
        pub(crate) fn new() -> Option<Self> {
            let device = CudaDevice::new(0)
                .inspect_err(|error| println!("skipped on CUDA: {error}"))
                .ok()?;
            let code = cudarc::nvrtc::compile_ptx(SOURCE).expect("a kernel that compiles");
            let module = device.context().load_module(code).expect("a module");
            let spend = module.load_function("spend").expect("the kernel");
            Some(Self { device, spend })
        }
    }

    impl Bench for Cuda {
        type Work = Arc<CudaStream>;

        fn device(&self) -> Arc<dyn Device> {
            Arc::new(self.device.clone())
        }

        fn name(&self) -> String {
            self.device.description()
        }

        fn stream(&self, pool: &Pool) -> (Self::Work, Stream) {
            let work = self.device.create_stream().expect("a stream");
            let stream = pool.register(&work).expect("a stream of the device");
            (work, stream)
        }

        fn spend(&self, work: &Self::Work, time: Duration) {
            let nanoseconds = time.as_nanos() as u64;
            let shape = LaunchConfig {
                grid_dim: (1, 1, 1),
                block_dim: (1, 1, 1),
                shared_mem_bytes: 0,
            };
            let mut launch = work.launch_builder(&self.spend);
            launch.arg(&nanoseconds);
            // SAFETY: the kernel touches no memory.
            unsafe { launch.launch(shape) }.expect("a launch");
        }
    }
}

fn quantile(times: &mut [Duration], share: f64) -> Duration {
    times.sort_unstable();
    times[((times.len() - 1) as f64 * share) as usize]
}

/// How much later than the observer the task ran again, for work of that length.
fn lateness<B: Bench>(bench: &B, pool: &Pool, work: Duration, rounds: usize) -> Vec<Duration> {
    let (queue, stream) = bench.stream(pool);
    let device = bench.device();
    let start = Barrier::new(2);
    let mut late = Vec::new();
    for _ in 0..rounds {
        let (raw, event) = (stream.raw(), device.create_event().expect("an event"));
        bench.spend(&queue, work);
        let awaited = stream.event().expect("an event");
        device.record(event, raw).expect("a record");
        let (seen, ran) = thread::scope(|scope| {
            let observer = scope.spawn(|| {
                start.wait();
                while !device.query(event).expect("an answer") {
                    std::hint::spin_loop();
                }
                Instant::now()
            });
            start.wait();
            block_on(awaited.into_future()).expect("work that does not fail");
            let ran = Instant::now();
            (observer.join().expect("an observer"), ran)
        });
        device.destroy_event(event).expect("an event");
        late.push(ran.saturating_duration_since(seen));
    }
    late
}

/// What a launch takes on each of several threads, while somebody waits or nobody does.
fn launches<B: Bench>(bench: &B, pool: &Pool, threads: usize, is_awaited: bool) -> Vec<Duration> {
    const ROUNDS: usize = 4000;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let waiter = is_awaited.then(|| {
            scope.spawn(|| {
                let (queue, stream) = bench.stream(pool);
                while !is_over.load(Ordering::Relaxed) {
                    bench.spend(&queue, Duration::from_millis(1));
                    block_on(stream.synchronize()).expect("work");
                }
            })
        });
        let launching: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let (queue, stream) = bench.stream(pool);
                    let mut took = Vec::new();
                    for round in 0..ROUNDS {
                        let start = Instant::now();
                        bench.spend(&queue, Duration::ZERO);
                        took.push(start.elapsed());
                        if round % 200 == 199 {
                            block_on(stream.synchronize()).expect("work");
                        }
                    }
                    took
                })
            })
            .collect();
        let took = launching
            .into_iter()
            .flat_map(|thread| thread.join().expect("a thread"));
        let took = took.collect();
        is_over.store(true, Ordering::Relaxed);
        drop(waiter);
        took
    })
}

fn run<B: Bench>(bench: &B) {
    println!("{}", bench.name());
    let pool = Pool::builder_shared(bench.device())
        .capacity(1 << 30)
        .build()
        .expect("a pool");
    println!(
        "{:<28} {:>12} {:>12} {:>12}",
        "task later than observer", "p50", "p99", "max"
    );
    for micros in [0, 20, 100, 300, 1000, 5000] {
        let work = Duration::from_micros(micros);
        let mut late = lateness(bench, &pool, work, 400);
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| quantile(&mut late, share));
        println!(
            "{:<28} {p50:>12.1?} {p99:>12.1?} {max:>12.1?}",
            format!("after {work:?}")
        );
    }
    println!(
        "{:<28} {:>12} {:>12} {:>12}",
        "a launch, p50", "nobody waits", "one waits", "ratio"
    );
    for threads in [1, 4, 8] {
        let mut times = [false, true].map(|is_awaited| {
            let mut took = launches(bench, &pool, threads, is_awaited);
            quantile(&mut took, 0.5)
        });
        let ratio = times[1].as_secs_f64() / times[0].as_secs_f64();
        let [without, with] = &mut times;
        println!(
            "{:<28} {without:>12.1?} {with:>12.1?} {ratio:>12.2}",
            format!("{threads} threads")
        );
    }
}

fn main() {
    run(&sim::Sim::new());
    #[cfg(feature = "cuda")]
    if let Some(cuda) = cuda::Cuda::new() {
        run(&cuda);
    }
}
