//! A broker moves memory between two processes on one GPU: each finds the words that it wrote, and the lease of a
//! killed process goes to the other one.

use crate::bench::Bench;
use crate::children::Neighbour;
use crate::cuda::{Cuda, Mapped};
use crate::gpu::{Gpu, settle};
use cudarc::driver::CudaStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::Device;
use weirpool::device::cuda::CudaDevice;
use weirpool::{Block, Pool, Stream};
use weirpool_broker::{Broker, BrokerConfig, Watch, lease_capacity};

pub(crate) const TENANT: &str = "use memory that a broker leases";

const MIB: u64 = 1 << 20;
const CAPACITY: u64 = 2048 * MIB;
/// Two thirds of the capacity: no two processes hold as much.
const BYTES: u64 = 1344 * MIB;
const PATIENCE: Duration = Duration::from_secs(20);

struct Tenant {
    gpu: Arc<Gpu>,
    pool: Pool,
    work: Arc<CudaStream>,
    stream: Stream,
}

impl Tenant {
    fn new(gpu: Arc<Gpu>, device: Arc<dyn Device>, socket: PathBuf) -> Self {
        let work = gpu.context().new_stream().unwrap();
        let builder = Pool::builder(device)
            .capacity(CAPACITY)
            .chunk_bytes(64 * MIB);
        let pool = lease_capacity(builder, socket).build().unwrap();
        let stream = pool.register(&work).unwrap();
        Self {
            gpu,
            pool,
            work,
            stream,
        }
    }

    fn take(&self) -> Block {
        let request = self.pool.allocate(&self.stream, BYTES).timeout(PATIENCE);
        request.blocking().unwrap()
    }

    /// Takes the memory, writes words, finds them again, and frees it.
    fn use_memory(&self, word: u32) {
        let block = self.take();
        let (address, bytes) = (block.address().to_bits(), block.size());
        self.gpu.fill(&self.work, address, bytes, word);
        let (sender, results) = std::sync::mpsc::channel();
        let report = move |is_right| {
            let _ = sender.send(is_right);
        };
        self.gpu.compare(&self.work, address, bytes, word, report);
        settle(&self.work);
        assert!(results.recv().unwrap(), "word {word}");
    }
}

/// Runs in the child: takes the memory once for each line.
pub(crate) fn tenant() {
    let mut lines = std::io::stdin().lines().map_while(Result::ok);
    let socket = lines.next().unwrap();
    let device = CudaDevice::new(0).unwrap();
    let gpu = Arc::new(Gpu::load(device.context()).unwrap());
    let tenant = Tenant::new(gpu, Arc::new(device), socket.into());
    for (round, line) in lines.enumerate() {
        if line == "hold" {
            let _block = tenant.take();
            println!("holds");
            let _ = std::io::stdin().read_line(&mut String::new());
            return;
        }
        tenant.use_memory(1000 + round as u32);
        println!("used");
    }
}

pub(crate) fn broker_moves_memory_between_processes() {
    use std::os::unix::fs::DirBuilderExt;
    let folder = std::env::temp_dir().join(format!("weirpool-gpu-broker-{}", std::process::id()));
    let _ = std::fs::DirBuilder::new().mode(0o700).create(&folder);
    let socket = folder.join("broker");
    let running = Broker::bind(BrokerConfig::new(&socket, CAPACITY)).unwrap();
    let running = running.spawn().unwrap();
    let bench = Cuda::<Mapped>::new();
    let here = Tenant::new(bench.gpu.clone(), bench.device(), socket.clone());
    let mut there = Neighbour::start(TENANT);
    there.say(socket.to_str().unwrap());
    let left = || bench.gpu.context().mem_get_info().unwrap().0 as u64;
    for word in 1..6 {
        here.use_memory(word);
        assert_eq!(here.pool.inspect().statistics().reserved.current, BYTES);
        there.say("use");
        assert_eq!(there.hear(), "used");
        // What the other process took was given back here, without a task that was polled.
        assert!(here.pool.inspect().statistics().reserved.current + BYTES <= CAPACITY);
    }
    there.say("hold");
    assert_eq!(there.hear(), "holds");
    let held = left();
    drop(there); // killed
    here.use_memory(7);
    assert!(
        left() + CAPACITY >= held,
        "the driver has the memory of the killed process back"
    );
    here.pool.inspect().check_conserved().unwrap();
    // The broker ends last: it hears that the pool is gone, and no lease is left.
    drop(here);
    let mut watch = Watch::connect(&socket).unwrap();
    while let Some(figures) = watch.next_figures().unwrap()
        && !figures.clients.is_empty()
    {}
    drop(running);
    let _ = std::fs::remove_dir_all(folder);
}
