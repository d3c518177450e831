//! Memory that outlives its process on a GPU: a killed process's memory is attached by the next one, for reading only, and
//! is back with the driver once it has no name and no process.

use crate::bench::Bench;
use crate::children::Neighbour;
use crate::cuda::{Cuda, Mapped};
use crate::gpu::{Gpu, settle};
use crate::site::eventually;
use cudarc::driver::CudaStream;
use futures::executor::block_on;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weirpool::device::cuda::CudaDevice;
use weirpool::{Pool, Stream};
use weirpool_broker::{Broker, BrokerConfig, lease_capacity, withdraw};
use weirpool_share::ipc::{AllocateExportable, Attached, Publish};

pub(crate) const PUBLISHER: &str = "publish memory";
pub(crate) const READER: &str = "attach memory";

const MIB: u64 = 1 << 20;
const CAPACITY: u64 = 4096 * MIB;
/// The size of each of the two blocks.
const BYTES: u64 = 1024 * MIB;
const NAME: &str = "weights";

struct Side {
    gpu: Arc<Gpu>,
    pool: Pool,
    work: Arc<CudaStream>,
    stream: Stream,
}

impl Side {
    /// Joins the broker of the socket that the parent says.
    fn in_a_child() -> Self {
        let mut socket = String::new();
        std::io::stdin().read_line(&mut socket).unwrap();
        let device = CudaDevice::new(0).unwrap();
        let gpu = Arc::new(Gpu::load(device.context()).unwrap());
        let work = gpu.context().new_stream().unwrap();
        let builder = Pool::builder(device).capacity(CAPACITY);
        let pool = lease_capacity(builder, PathBuf::from(socket.trim()));
        let pool = pool.build().unwrap();
        let stream = pool.register(&work).unwrap();
        Self {
            gpu,
            pool,
            work,
            stream,
        }
    }

    fn holds(&self, address: u64, bytes: u64, word: u32) -> bool {
        let (sender, results) = std::sync::mpsc::channel();
        let report = move |is_right| {
            let _ = sender.send(is_right);
        };
        self.gpu.compare(&self.work, address, bytes, word, report);
        settle(&self.work);
        results.recv().unwrap()
    }

    fn attach(&self) -> Attached {
        let begun = Instant::now();
        let attached = block_on(self.pool.attach(NAME, &self.stream).into_future()).unwrap();
        eprintln!(
            "attached {} MiB in {:.3?}",
            2 * BYTES / MIB,
            begun.elapsed()
        );
        attached
    }
}

/// Runs in the child: publishes two blocks of words, and waits to be killed.
pub(crate) fn publisher() {
    let side = Side::in_a_child();
    let blocks = [1, 2].map(|word| {
        let block = block_on(side.pool.allocate_exportable(&side.stream, BYTES)).unwrap();
        let address = block.address().to_bits();
        side.gpu.fill(&side.work, address, BYTES, word);
        block
    });
    settle(&side.work);
    let begun = Instant::now();
    block_on(side.pool.publish(NAME, &blocks).into_future()).unwrap();
    eprintln!(
        "published {} MiB in {:.3?}",
        2 * BYTES / MIB,
        begun.elapsed()
    );
    assert_eq!(side.pool.inspect().statistics().charged, 0);
    println!("published");
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Runs in the child: finds the words twice, and then writes one, which its context does not survive.
pub(crate) fn reader() {
    let side = Side::in_a_child();
    for _ in 0..2 {
        let attached = side.attach();
        for (block, word) in attached.blocks().iter().zip(1..) {
            let (address, bytes) = (block.address().to_bits(), block.size());
            assert!(side.holds(address, bytes, word), "what the publisher wrote");
        }
        drop(attached);
        eventually(|| side.pool.inspect().statistics().foreign == 0);
    }
    println!("read");
    let attached = side.attach();
    let address = attached.blocks()[0].address().to_bits();
    side.gpu.fill(&side.work, address, 4, 3);
    assert!(side.work.synchronize().is_err(), "it is mapped for reading");
    println!("refused");
    let _ = std::io::stdin().read_line(&mut String::new());
}

fn start(task: &str, socket: &Path) -> Neighbour {
    let mut child = Neighbour::start(task);
    child.say(socket.to_str().unwrap());
    child
}

pub(crate) fn memory_outlives_the_process_that_published_it() {
    use std::os::unix::fs::DirBuilderExt;
    let folder = std::env::temp_dir().join(format!("weirpool-gpu-named-{}", std::process::id()));
    let _ = std::fs::DirBuilder::new().mode(0o700).create(&folder);
    let socket = folder.join("broker");
    let running = Broker::bind(BrokerConfig::new(&socket, CAPACITY)).unwrap();
    let running = running.spawn().unwrap();
    let bench = Cuda::<Mapped>::new();
    let left = || bench.gpu.context().mem_get_info().unwrap().0 as u64;
    let before = left();
    let mut publisher = start(PUBLISHER, &socket);
    assert_eq!(publisher.hear(), "published");
    drop(publisher); // killed
    // Its context is gone, and its memory is not.
    eventually(|| (2 * BYTES..2 * BYTES + 256 * MIB).contains(&before.saturating_sub(left())));
    for _ in 0..2 {
        let mut reader = start(READER, &socket);
        assert_eq!(reader.hear(), "read");
        assert_eq!(reader.hear(), "refused");
        drop(reader);
    }
    // The writes of readers had no effect.
    let mut reader = start(READER, &socket);
    assert_eq!(reader.hear(), "read");
    let withdrawn = withdraw(&socket, NAME, Duration::from_secs(5));
    assert_eq!(withdrawn.unwrap().unwrap().bytes, 2 * BYTES);
    drop(reader);
    eventually(|| left() + 256 * MIB >= before);
    drop(running);
    let _ = std::fs::remove_dir_all(folder);
}
