//! Blocks shared with another process: kernels of both see the same bytes, and memory comes back when a process dies.

use crate::bench::Bench;
use crate::children::Neighbour;
use crate::cuda::{Cuda, Mapped};
use crate::gpu::{Gpu, settle};
use crate::site::eventually;
use cudarc::driver::CudaStream;
use futures::executor::block_on;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weirpool::device::cuda::CudaDevice;
use weirpool::{Pool, Stream};
use weirpool_share::ipc::wire::{self, Allowed, Listener};
use weirpool_share::ipc::{AllocateExportable, Connection, IpcError};

pub(crate) const READER: &str = "import a block";

const MIB: u64 = 1 << 20;
const BYTES: u64 = 64 * MIB;

struct Side {
    gpu: Arc<Gpu>,
    pool: Pool,
    work: Arc<CudaStream>,
    stream: Stream,
}

impl Side {
    fn new(gpu: Arc<Gpu>, device: Arc<dyn weirpool::device::Device>) -> Self {
        let work = gpu.context().new_stream().unwrap();
        let pool = Pool::builder(device).capacity(1 << 30).build().unwrap();
        let stream = pool.register(&work).unwrap();
        Self {
            gpu,
            pool,
            work,
            stream,
        }
    }

    fn here() -> Self {
        let bench = Cuda::<Mapped>::new();
        Self::new(bench.gpu.clone(), bench.device())
    }

    fn holds(&self, address: u64, bytes: u64, word: u32) -> bool {
        let (sender, results) = std::sync::mpsc::channel();
        self.gpu
            .compare(&self.work, address, bytes, word, move |is_right| {
                let _ = sender.send(is_right);
            });
        settle(&self.work);
        results.recv().unwrap()
    }
}

/// A socket in a directory of its own.
fn listen() -> Listener {
    use std::os::unix::fs::DirBuilderExt;
    let name = format!("weirpool-gpu-{}-{}", std::process::id(), fastrand::u64(..));
    let folder = std::env::temp_dir().join(name);
    let _ = std::fs::DirBuilder::new().mode(0o700).create(&folder);
    Listener::bind(folder.join("socket"), Allowed::own()).unwrap()
}

fn with_reader(side: &Side) -> (Neighbour, Connection) {
    let listener = listen();
    let mut reader = Neighbour::start(READER);
    reader.say(listener.path().to_str().unwrap());
    let socket = listener.accept().unwrap();
    (reader, Connection::open(&side.pool, socket).unwrap())
}

/// Runs in the child: imports blocks until the connection ends, checks the words of each, and writes others.
pub(crate) fn reader() {
    let mut path = String::new();
    std::io::stdin().read_line(&mut path).unwrap();
    let device = CudaDevice::new(0).unwrap();
    let gpu = Arc::new(Gpu::load(device.context()).unwrap());
    let side = Side::new(gpu, Arc::new(device));
    let socket = wire::Connection::connect(path.trim(), &Allowed::own()).unwrap();
    let connection = Connection::open(&side.pool, socket).unwrap();
    loop {
        let block = match block_on(connection.receive(&side.stream)) {
            Ok(block) => block,
            Err(IpcError::Ended { .. }) => break,
            Err(error) => panic!("{error}"),
        };
        if block.label() == "hold" {
            println!("holds");
            let _ = std::io::stdin().read_line(&mut path);
            break;
        }
        let (address, bytes) = (block.address().to_bits(), block.size());
        assert!(side.holds(address, bytes, 1), "what the exporter wrote");
        side.gpu.fill(&side.work, address, bytes, 2);
        drop(block); // released once the kernel is complete
    }
    eventually(|| side.pool.inspect().statistics().foreign == 0);
    side.pool.inspect().check_conserved().unwrap();
}

pub(crate) fn kernels_of_two_processes_share_a_block() {
    let side = Side::here();
    let (reader, connection) = with_reader(&side);
    let block = side
        .pool
        .try_allocate_exportable(&side.stream, BYTES)
        .unwrap();
    let (address, bytes) = (block.address().to_bits(), block.size());
    assert!(side.holds(address, bytes, 0), "it is filled with zeros");
    let mut times = Vec::new();
    for _ in 0..20 {
        side.gpu.fill(&side.work, address, bytes, 1);
        let start = Instant::now();
        let sent = block_on(connection.send(&block, "words")).unwrap();
        block_on(sent).unwrap();
        times.push(start.elapsed());
        assert!(side.holds(address, bytes, 2), "what the importer wrote");
    }
    times.sort();
    println!(
        "64 MiB sent, read, written and released: {:?} at the median, {:?} at most",
        times[times.len() / 2],
        times.last().unwrap()
    );
    drop((block, connection));
    reader.end();
    eventually(|| side.pool.inspect().statistics().charged == 0);
    side.pool.inspect().check_conserved().unwrap();
}

pub(crate) fn memory_of_a_killed_importer_comes_back() {
    let side = Side::here();
    let context = side.gpu.context().clone();
    let left = || context.mem_get_info().unwrap().0 as u64;
    let (reader, connection) = with_reader(&side);
    let block = side
        .pool
        .try_allocate_exportable(&side.stream, 8 * BYTES)
        .unwrap();
    let held = left();
    let sent = block_on(connection.send(&block, "hold")).unwrap();
    let mut reader = reader;
    assert_eq!(reader.hear(), "holds");
    drop(block);
    // One thread unmaps, in order: this block is unmapped here once another one is.
    drop(
        side.pool
            .try_allocate_exportable(&side.stream, BYTES)
            .unwrap(),
    );
    eventually(|| side.pool.inspect().statistics().charged == 8 * BYTES);
    assert_eq!(side.pool.inspect().statistics().charged, 8 * BYTES);
    assert!(left() < held + 4 * BYTES, "the importer holds it");
    drop(reader);
    assert!(matches!(block_on(sent), Err(IpcError::Ended { .. })));
    eventually(|| side.pool.inspect().statistics().charged == 0);
    eventually(|| left() >= held + 8 * BYTES);
    side.pool.inspect().check_conserved().unwrap();
}

/// Prints what each step costs.
pub(crate) fn costs_of_sharing_are_measured() {
    let side = Side::here();
    let other = Side::here();
    for bytes in [2 * MIB, 64 * MIB, 512 * MIB] {
        let (out, into) = wire::Connection::pair().unwrap();
        let out = Connection::open(&side.pool, out).unwrap();
        let into = Connection::open(&other.pool, into).unwrap();
        let mut figures = [const { Vec::new() }; 4];
        for _ in 0..30 {
            let mut at = Instant::now();
            let mut lap = |figure: usize| {
                figures[figure].push(at.elapsed());
                at = Instant::now();
            };
            let block = side
                .pool
                .try_allocate_exportable(&side.stream, bytes)
                .unwrap();
            lap(0);
            settle(&side.work);
            lap(3);
            let sent = block_on(out.send(&block, "")).unwrap();
            let imported = block_on(into.receive(&other.stream)).unwrap();
            lap(1);
            drop(imported);
            block_on(sent).unwrap();
            lap(2);
            drop(block);
            eventually(|| side.pool.inspect().statistics().charged == 0);
        }
        let median = |mut times: Vec<Duration>| {
            times.sort();
            times[times.len() / 2]
        };
        let [allocate, share, release, _] = figures.map(median);
        println!(
            "{} MiB: allocation {allocate:?}, export to import {share:?}, release {release:?} (medians of 30)",
            bytes / MIB
        );
    }
}
