//! Two processes share memory of one device, in the ways that HIP documents for stream-ordered allocators, and in this
//! crate's own way: an exportable block over a connection.
//!
//! ```text
//! cargo run --release --example processes
//! cargo run --release --example processes -- --device cuda
//! ```
//!
//! The program starts itself again as the importer. Both print each step and its cost. With `--costs` it prints how
//! long each call on a chunk takes on the host instead: the simulated device's cost model takes its figures from such a
//! run on a GPU.
//!
//! | step | exporter | importer |
//! |---|---|---|
//! | 1 | `DriverPool::export`, HIP's `hipMemPoolExportToShareableHandle` | `DriverPool::import`, `hipMemPoolImportFromShareableHandle` |
//! | 2 | `PointerData::export`, `hipMemPoolExportPointer` | `PointerData::import`, `hipMemPoolImportPointer` |
//! | 3 | `Connection::send` of an exportable block | `Connection::receive` |

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    processes::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("sharing memory between processes needs Linux");
}

#[cfg(target_os = "linux")]
mod processes {
    use futures::executor::block_on;
    use serde::{Deserialize, Serialize};
    use std::error::Error;
    use std::os::fd::AsFd;
    use std::os::unix::fs::DirBuilderExt;
    use std::process::Command;
    use std::sync::Arc;
    use std::time::Instant;
    use weirpool::device::sim::SimDevice;
    use weirpool::device::{Device, HandleTypes};
    use weirpool::{Pool, Stream};
    use weirpool_driver_pool::{DriverPool, DriverPoolUse};
    use weirpool_share::ipc::wire::{self, Allowed, Listener};
    use weirpool_share::ipc::{AllocateExportable, Connection, PointerData};

    type Outcome<T = ()> = Result<T, Box<dyn Error>>;

    const MIB: u64 = 1 << 20;
    const ROUNDS: usize = 50;

    /// A message between the processes in steps 1 and 2.
    #[derive(Debug, Serialize, Deserialize)]
    enum Message {
        /// The pool, sent with a descriptor.
        Pool,
        Pointer(PointerData),
        Done,
    }

    pub(super) fn main() -> Outcome {
        let arguments: Vec<_> = std::env::args().skip(1).collect();
        let after = |name: &str| {
            let at = arguments.iter().position(|argument| argument == name)?;
            arguments.get(at + 1).map(String::as_str)
        };
        let kind = after("--device").unwrap_or("sim");
        let device = open(kind)?;
        if arguments.iter().any(|argument| argument == "--costs") {
            return costs(&*device);
        }
        match after("--import-from") {
            None => export(kind, device),
            Some(path) => import(device, wire::Connection::connect(path, &Allowed::own())?),
        }
    }

    fn open(kind: &str) -> Outcome<Arc<dyn Device>> {
        match kind {
            "sim" => Ok(Arc::new(SimDevice::new())),
            "cuda" => Ok(Arc::new(weirpool::device::cuda::CudaDevice::new(0)?)),
            _ => Err(format!("there is no device {kind:?}; use cuda or sim").into()),
        }
    }

    /// Prints the shortest of 20 times for each call.
    fn costs(device: &dyn Device) -> Outcome {
        let sharing = device.sharing().ok_or("the device shares no memory")?;
        println!("  MiB   create   export   import      map    unmap  destroy   in us");
        for bytes in [2, 8, 32, 64, 128, 512].map(|size| size * MIB) {
            let mut best = [f64::MAX; 6];
            for _ in 0..20 {
                let range = device.reserve(bytes)?;
                let mut times = vec![Instant::now()];
                let mut lap = || times.push(Instant::now());
                let chunk = sharing.create_shareable(bytes)?;
                lap();
                // SAFETY: the chunk was just created. The imported one is mapped in a range that was just reserved, and
                // unmapped and destroyed before the range ends. No work touches either.
                unsafe {
                    let descriptor = sharing.export(chunk)?;
                    lap();
                    let imported = sharing.import(descriptor, bytes)?;
                    lap();
                    device.map(range, imported, bytes)?;
                    lap();
                    device.unmap(range, bytes)?;
                    lap();
                    device.destroy(imported)?;
                    lap();
                    device.destroy(chunk)?;
                    device.unreserve(range, bytes)?;
                }
                let laps = times
                    .windows(2)
                    .map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e6);
                best.iter_mut()
                    .zip(laps)
                    .for_each(|(best, lap)| *best = best.min(lap));
            }
            let [create, export, import, map, unmap, destroy] = best;
            println!(
                "{:5} {create:8.1} {export:8.1} {import:8.1} {map:8.1} {unmap:8.1} {destroy:8.1}",
                bytes / MIB
            );
        }
        Ok(())
    }

    fn pool(device: &Arc<dyn Device>) -> Outcome<(Pool, Stream)> {
        let pool = Pool::builder(device.clone()).capacity(2 << 30).build()?;
        let stream = pool.create_stream()?;
        Ok((pool, stream))
    }

    fn export(kind: &str, device: Arc<dyn Device>) -> Outcome {
        let folder = std::env::temp_dir().join(format!("weirpool-{}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
        let listener = Listener::bind(folder.join("socket"), Allowed::own())?;
        let mut importer = Command::new(std::env::current_exe()?)
            .args(["--device", kind, "--import-from"])
            .arg(listener.path())
            .spawn()?;
        let socket = listener.accept()?;
        println!("exporter: the importer is process {}", socket.peer().pid);
        drop(listener);
        std::fs::remove_dir(&folder)?;

        // 1. A pool of the driver, as a file descriptor.
        let driver_pool = DriverPool::builder(&device)
            .handle_types(HandleTypes::POSIX_FD)
            .build()?;
        let passed = Pool::builder(device.clone())
            .segment_source(driver_pool.segments(DriverPoolUse::PassedThrough))
            .capacity(1 << 30)
            .build()?;
        let stream = passed.create_stream()?;
        let descriptor = driver_pool.export()?;
        socket.send(&Message::Pool, &[descriptor.as_fd()])?;

        // 2. A block of that pool, as pointer data, which is sent once the bytes are written.
        let mut block = passed.try_allocate(&stream, 4 * MIB)?;
        block_on(block.upload(&stream, 0, b"by pointer")?)?;
        socket.send(&Message::Pointer(PointerData::export(&block)?), &[])?;
        let (Message::Done, _) = socket.receive()? else {
            return Err("the importer did not report the end of step 2".into());
        };
        let answer = block_on(block.download(&stream, 0..10)?)?;
        println!(
            "exporter: the importer wrote {:?}",
            String::from_utf8_lossy(&answer)
        );
        drop((block, stream, passed, driver_pool));

        // 3. Blocks over a connection, which keeps the order and the lifetime of each.
        let (pool, stream) = pool(&device)?;
        let connection = Connection::open(&pool, socket)?;
        for bytes in [2 * MIB, 64 * MIB, 512 * MIB] {
            let (mut allocated, mut shared) = (Vec::new(), Vec::new());
            for round in 0..ROUNDS {
                let start = Instant::now();
                let mut block = block_on(pool.allocate_exportable(&stream, bytes))?;
                allocated.push(start.elapsed());
                block_on(block.upload(&stream, 0, format!("round {round:02}").as_bytes())?)?;
                let start = Instant::now();
                let sent = block_on(connection.send(&block, "a round"))?;
                block_on(sent)?;
                shared.push(start.elapsed());
                drop(block);
            }
            allocated.sort();
            shared.sort();
            println!(
                "exporter: {:4} MiB: allocation {:?}; sent, imported, read and released {:?} (medians of {ROUNDS})",
                bytes / MIB,
                allocated[ROUNDS / 2],
                shared[ROUNDS / 2]
            );
        }
        drop(connection);
        let status = importer.wait()?;
        assert!(status.success(), "the importer ended with {status}");
        Ok(())
    }

    fn import(device: Arc<dyn Device>, socket: wire::Connection) -> Outcome {
        let (pool, stream) = pool(&device)?;
        let (Message::Pool, descriptors) = socket.receive()? else {
            return Err("the first message is not the pool".into());
        };
        let descriptor = descriptors
            .into_iter()
            .next()
            .ok_or("the pool came without a descriptor")?;
        let imported = DriverPool::import(&device, descriptor)?;
        let (Message::Pointer(data), _) = socket.receive()? else {
            return Err("the second message is not a block".into());
        };
        let (mut block, freed) = data.import(&pool, &stream, &imported)?;
        let bytes = block_on(block.download(&stream, 0..10)?)?;
        println!(
            "importer: the exporter wrote {:?}",
            String::from_utf8_lossy(&bytes)
        );
        block_on(block.upload(&stream, 0, b"and back! ")?)?;
        // The importer frees its pointer first: CUDA requires this order.
        drop(block);
        block_on(freed);
        socket.send(&Message::Done, &[])?;

        let connection = Connection::open(&pool, socket)?;
        let mut received = 0;
        while let Ok(block) = block_on(connection.receive(&stream)) {
            let text = block_on(block.download(&stream, 0..8)?)?;
            assert!(text.starts_with(b"round "), "{text:?}");
            received += 1;
        }
        println!("importer: {received} blocks were received and released");
        Ok(())
    }
}
