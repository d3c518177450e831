//! Sums over all GPUs by NCCL, in memory of pools: `cargo run --release --features cuda --example all_reduce`. NCCL
//! (`libnccl.so`) is loaded at run time.
//!
//! Each GPU has a thread, a pool and a stream. A collective is work that is submitted with its buffer, so that it comes
//! after the earlier uses and is awaited like any other. The buffer is registered with the communicator once
//! (`ncclCommRegister`), and the registration owns it: memory of a live block is never mapped elsewhere. A chunk of the
//! pool holds a whole buffer, because NCCL registers one physical allocation at a time.
//!
//! The bus bandwidth, as NCCL's own tests define it, is printed next to that of memory from `cuMemAlloc` in the same
//! run.

use anyhow::{Result, anyhow, ensure};
use cudarc::driver::CudaStream;
use cudarc::driver::result::{free_sync, malloc_sync};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::nccl::result as nccl;
use cudarc::nccl::sys;
use futures::executor::block_on;
use std::ffi::c_void;
use std::sync::{Arc, Barrier};
use std::time::Instant;
use weirpool::device::cuda::CudaDevice;
use weirpool::{Buffer, Pool, Stream};

const COUNT: usize = 64 << 20;
const BYTES: u64 = 4 * COUNT as u64;
const ROUNDS: u32 = 20;

/// One GPU's part in the communicator.
struct Communicator(sys::ncclComm_t);

impl Communicator {
    /// Joins the communicator, and waits until all ranks have joined.
    fn new(id: sys::ncclUniqueId, ranks: usize, rank: usize) -> Result<Self> {
        let mut communicator = std::ptr::null_mut();
        // SAFETY: the call writes to `communicator`.
        let made =
            unsafe { nccl::comm_init_rank(&mut communicator, ranks as i32, id, rank as i32) };
        made.map_err(nccl_error)?;
        Ok(Self(communicator))
    }

    /// Sums the floats at an address over all ranks, in stream order.
    ///
    /// # Safety
    /// There are `COUNT` floats, whose uses are ordered with the stream.
    unsafe fn sum(&self, address: u64, work: &CudaStream) -> Result<()> {
        let (float, sum) = (sys::ncclDataType_t::ncclFloat32, sys::ncclRedOp_t::ncclSum);
        let memory = address as *mut c_void;
        let stream = work.cu_stream().cast();
        // SAFETY: the caller's guarantee.
        let summed = unsafe { nccl::all_reduce(memory, memory, COUNT, float, sum, self.0, stream) };
        summed.map(drop).map_err(nccl_error)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // SAFETY: no collective of the communicator is under way: each was awaited.
        let _ = unsafe { nccl::comm_destroy(self.0) };
    }
}

fn nccl_error(error: nccl::NcclError) -> anyhow::Error {
    anyhow!("NCCL: {:?}", error.0)
}

/// A buffer that is registered with a communicator. The registration owns the buffer, and so pins its memory.
struct Registered<'a> {
    communicator: &'a Communicator,
    buffer: Buffer<f32>,
    handle: *mut c_void,
}

impl<'a> Registered<'a> {
    fn new(communicator: &'a Communicator, buffer: Buffer<f32>) -> Result<Self> {
        let memory = buffer.address().to_bits() as *mut c_void;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the buffer has these bytes, and lives until it is deregistered.
        let made =
            unsafe { sys::ncclCommRegister(communicator.0, memory, BYTES as usize, &mut handle) };
        made.result().map_err(nccl_error)?;
        Ok(Self {
            communicator,
            buffer,
            handle,
        })
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        // SAFETY: the buffer was registered here, and the collectives with it were awaited.
        let _ = unsafe { sys::ncclCommDeregister(self.communicator.0, self.handle) };
    }
}

/// State that all ranks share.
struct Group {
    id: sys::ncclUniqueId,
    ranks: usize,
    barrier: Barrier,
}

impl Group {
    /// Returns the bus bandwidth in GB/s of repeated sums, which all ranks begin together.
    fn time(
        &self,
        mut sum: impl FnMut() -> Result<()>,
        end: impl Fn() -> Result<()>,
    ) -> Result<f64> {
        sum()?; // connects the ranks
        end()?;
        self.barrier.wait();
        let start = Instant::now();
        for _ in 0..ROUNDS {
            sum()?;
        }
        end()?;
        let seconds = start.elapsed().as_secs_f64() / f64::from(ROUNDS);
        let share = 2.0 * (self.ranks as f64 - 1.0) / self.ranks as f64;
        Ok(share * BYTES as f64 / seconds / 1e9)
    }
}

fn rank(group: &Group, rank: usize) -> Result<[f64; 3]> {
    let device = CudaDevice::new(rank)?;
    device.context().bind_to_thread()?;
    let pool = Pool::builder(device.clone())
        .capacity(4 * BYTES)
        .chunk_bytes(BYTES)
        .build()?;
    let work = device.create_stream()?;
    let stream = pool.register(&work)?;
    let communicator = Communicator::new(group.id, group.ranks, rank)?;

    let mut numbers = block_on(pool.buffer::<f32>(&stream, COUNT))?;
    check(group, rank, &communicator, &mut numbers, &stream)?;
    let pooled = time(group, &communicator, &mut numbers, &stream)?;
    // Whether NCCL can register memory is the same on all ranks.
    let registered_rate = match Registered::new(&communicator, numbers) {
        Ok(mut registered) => {
            let numbers = &mut registered.buffer;
            check(group, rank, &communicator, numbers, &stream)?;
            time(group, &communicator, numbers, &stream)?
        }
        Err(error) => {
            println!("rank {rank}: not registered: {error}");
            f64::NAN
        }
    };

    // SAFETY: the context is current on this thread.
    let plain: CUdeviceptr = unsafe { malloc_sync(BYTES as usize) }?;
    let plain_rate = group.time(
        // SAFETY: the memory has `COUNT` floats, which only this stream uses.
        || unsafe { communicator.sum(plain, &work) },
        || Ok(work.synchronize()?),
    )?;
    // SAFETY: it was allocated above, and its work is complete.
    unsafe { free_sync(plain) }?;
    Ok([pooled, registered_rate, plain_rate])
}

/// Submits a sum to the stream, after the earlier uses of the buffer.
fn submit(
    communicator: &Communicator,
    numbers: &mut Buffer<f32>,
    stream: &Stream,
) -> Result<weirpool::Task<()>> {
    let name = stream.task("all_reduce");
    let task = name.try_submit(numbers, |work: &Arc<CudaStream>, numbers| {
        // SAFETY: the buffer has `COUNT` floats, and the submission ordered the stream.
        unsafe { communicator.sum(numbers.address().to_bits(), work) }
    })?;
    Ok(task)
}

fn check(
    group: &Group,
    rank: usize,
    communicator: &Communicator,
    numbers: &mut Buffer<f32>,
    stream: &Stream,
) -> Result<()> {
    let own: Vec<f32> = (0..COUNT)
        .map(|at| (rank + 1) as f32 * (at % 1000) as f32)
        .collect();
    drop(numbers.write(stream, &own));
    block_on(submit(communicator, numbers, stream)?)?;
    let sums = block_on(numbers.read(stream))?;
    let of_ranks = (group.ranks * (group.ranks + 1) / 2) as f32;
    let is_right = |(at, sum): (usize, &f32)| *sum == of_ranks * (at % 1000) as f32;
    ensure!(
        sums.iter().enumerate().all(is_right),
        "rank {rank} has a wrong sum"
    );
    Ok(())
}

fn time(
    group: &Group,
    communicator: &Communicator,
    numbers: &mut Buffer<f32>,
    stream: &Stream,
) -> Result<f64> {
    let sum = || submit(communicator, numbers, stream).map(drop);
    group.time(sum, || Ok(block_on(stream.synchronize())?))
}

fn main() -> Result<()> {
    let ranks = match CudaDevice::all() {
        Ok(all) if !all.is_empty() => all.len(),
        Ok(_) => return skipped("there is no GPU"),
        Err(error) => return skipped(&error.to_string()),
    };
    // SAFETY: it only looks for the library.
    if !unsafe { sys::is_culib_present() } {
        return skipped("NCCL (libnccl.so) is not installed, or not on LD_LIBRARY_PATH");
    }
    let group = Group {
        id: nccl::get_uniqueid().map_err(nccl_error)?,
        ranks,
        barrier: Barrier::new(ranks),
    };
    let rates = std::thread::scope(|scope| {
        let group = &group;
        let threads: Vec<_> = (0..ranks)
            .map(|number| scope.spawn(move || rank(group, number)))
            .collect();
        let ended = threads
            .into_iter()
            .map(|thread| thread.join().expect("a rank"));
        ended.collect::<Result<Vec<_>>>()
    })?;
    println!("sums over {ranks} GPU(s) are right, before and after registration");
    if ranks == 1 {
        println!("no bandwidth: one GPU has no bus");
        return Ok(());
    }
    let mib = BYTES >> 20;
    println!("bus bandwidth of sums of {mib} MiB in GB/s, by rank:");
    for (number, [pooled, registered, plain]) in rates.into_iter().enumerate() {
        println!(
            "  {number}: pool {pooled:.1}, pool and registered {registered:.1}, cuMemAlloc {plain:.1}"
        );
    }
    Ok(())
}

fn skipped(reason: &str) -> Result<()> {
    println!("skipped: {reason}");
    Ok(())
}
