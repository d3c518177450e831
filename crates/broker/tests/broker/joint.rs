//! A GPU that several processes take memory from: a simulated device in each, and one file with what each of them
//! holds. It notes when all of them together hold more than the GPU has. It shares no code with the broker.

use crate::common::{MIB, pass_on};
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use weirpool::device::sim::{Clock, SimDevice};
use weirpool::device::*;

const SLOTS: u64 = 32;

static THREADS: Mutex<()> = Mutex::new(());

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Joint {
    sim: SimDevice,
    file: Arc<File>,
    path: PathBuf,
    memory: u64,
}

impl Joint {
    pub(crate) fn new(path: &Path, memory: u64) -> Self {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .unwrap();
        let sim = SimDevice::builder()
            .memory(1 << 30)
            .clock(Clock::Wall)
            .build();
        Self {
            sim,
            file: Arc::new(file),
            path: path.to_owned(),
            memory,
        }
    }

    pub(crate) fn sim(&self) -> &SimDevice {
        &self.sim
    }

    /// Changes what this process holds, and notes if all together hold too much.
    fn change(&self, bytes: i64) {
        // Each process has one slot, found by its id. The lock of the file keeps other processes out, and not threads that
        // use one descriptor.
        let _threads = THREADS.lock().unwrap();
        flock(&*self.file, FlockOperation::LockExclusive).unwrap();
        let own = std::process::id() as u64;
        let mut total = 0;
        let mut free = None;
        let mut mine = None;
        for slot in 0..SLOTS {
            let mut words = [0; 16];
            let read = self.file.read_at(&mut words, slot * 16).unwrap();
            let word = |at: usize| u64::from_le_bytes(words[at..at + 8].try_into().unwrap());
            let (process, held) = if read == 16 {
                (word(0), word(8))
            } else {
                (0, 0)
            };
            match process {
                0 => free = free.or(Some(slot)),
                _ if process == own => mine = Some((slot, held)),
                // The driver has the memory of an ended process.
                _ if lives(process) => total += held,
                _ => {}
            }
        }
        let (slot, held) = mine.unwrap_or_else(|| (free.expect("a free slot"), 0));
        let held = held.checked_add_signed(bytes).unwrap();
        total += held;
        self.file.write_at(&own.to_le_bytes(), slot * 16).unwrap();
        self.file
            .write_at(&held.to_le_bytes(), slot * 16 + 8)
            .unwrap();
        if total > self.memory {
            let note = format!("{} MiB of {} MiB\n", total / MIB, self.memory / MIB);
            std::fs::write(self.path.with_extension("exceeded"), note).unwrap();
        }
        flock(&*self.file, FlockOperation::Unlock).unwrap();
    }

    /// Asserts that the processes never held more than there is.
    #[track_caller]
    pub(crate) fn assert_never_exceeded(path: &Path) {
        let note = std::fs::read_to_string(path.with_extension("exceeded"));
        assert!(note.is_err(), "the processes held {note:?}");
    }
}

/// Returns whether a process has not ended. A process that was not reaped has.
fn lives(process: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
    let state = stat.ok().and_then(|stat| {
        stat.rsplit_once(')')
            .map(|(_, rest)| rest.trim().chars().next())
    });
    !matches!(state.flatten(), None | Some('Z' | 'X'))
}

// SAFETY: a simulated device, with the memory counted.
unsafe impl Device for Joint {
    pass_on! {
        |joint| &joint.sim =>
        id, describe, capabilities, block_observer, memory_info, now, set_alarm, cancel_alarm, reserve, unreserve, map,
        unmap, allocate, free, host_pointer, create_stream, destroy_stream, is_abandoned, create_event, destroy_event,
        record, query, wait, watch, unwatch, upload, download, fill,
    }

    fn create(&self, bytes: u64) -> Result<Chunk, DeviceError> {
        // Counted while it exists: before it is created, and after it is destroyed.
        self.change(bytes as i64);
        self.sim.create(bytes)
    }

    unsafe fn destroy(&self, chunk: Chunk) -> Result<(), DeviceError> {
        self.sim.destroy(chunk)?;
        self.change(-(crate::common::CHUNK as i64));
        Ok(())
    }
}
