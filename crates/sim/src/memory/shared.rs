//! Files behind memory that several processes share: how they are created, exported, found and imported.

use super::bytes::Bytes;
use super::shared_bytes::SharedBytes;
use super::space::{Refusable, Space, check_size, exhausted, invalid};
use rustix::fs::{FileType, MemfdFlags, SealFlags};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use weirpool_device::MemoryKind;
use weirpool_device::plain::{Arc, Mutex};

/// The size of a pool's file, most of which is a hole: more than any pool gives out.
const POOL: u64 = 1 << 46;

/// Creates a file without a name, whose size can never change.
fn create_file(bytes: u64) -> Result<File, rustix::io::Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("weirpool", flags)?;
    rustix::fs::ftruncate(&file, bytes)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(file.into())
}

fn with_file(file: File) -> Bytes {
    let shared = SharedBytes {
        file: Arc::new(file),
        begin: 0,
    };
    let mut bytes = Bytes::default();
    bytes.shared = Some(shared);
    bytes
}

/// The file in which a pool's blocks lie, and how much of it was given out.
#[derive(Clone, Debug)]
pub(crate) struct PoolFile {
    file: Arc<File>,
    end: u64,
}

/// The beginning of the description of a block.
const MARK: [u8; 8] = *b"simblock";

/// How often the devices of this process have imported each part of a pool's file, by the file's number and the
/// beginning of the part.
static IMPORTS: Mutex<BTreeMap<(u64, u64), usize>> = Mutex::new(BTreeMap::new());

/// A part of a pool's file that a device has imported, until it is freed there.
#[derive(Debug)]
pub(crate) struct Imported {
    part: (u64, u64),
    /// Keeps the number of the file from being given to another one.
    _file: Arc<File>,
}

impl Drop for Imported {
    fn drop(&mut self) {
        let mut imports = IMPORTS.lock();
        if let Some(count) = imports.get_mut(&self.part) {
            *count -= 1;
            if *count == 0 {
                imports.remove(&self.part);
            }
        }
    }
}

impl PoolFile {
    pub(crate) fn create() -> Refusable<Self> {
        match create_file(POOL) {
            Ok(file) => Ok(Self {
                file: Arc::new(file),
                end: 0,
            }),
            Err(error) => exhausted(format!("the host has no file for shared memory: {error}")),
        }
    }

    pub(crate) fn import(descriptor: OwnedFd) -> Refusable<Self> {
        match rustix::fs::fstat(&descriptor) {
            Ok(state)
                if FileType::from_raw_mode(state.st_mode) == FileType::RegularFile
                    && state.st_size as u64 == POOL =>
            {
                Ok(Self {
                    file: Arc::new(descriptor.into()),
                    end: POOL,
                })
            }
            _ => invalid("the descriptor is no memory pool of a simulated device".to_owned()),
        }
    }

    pub(crate) fn export(&self) -> Refusable<OwnedFd> {
        match self.file.as_fd().try_clone_to_owned() {
            Ok(descriptor) => Ok(descriptor),
            Err(error) => exhausted(format!("the process has no free descriptor: {error}")),
        }
    }

    /// Returns a part that was not given out.
    pub(crate) fn take(&mut self, bytes: u64) -> SharedBytes {
        let begin = self.end;
        self.end += bytes;
        SharedBytes {
            file: self.file.clone(),
            begin,
        }
    }

    /// The number of the file, which is the same in each process.
    fn number(&self) -> u64 {
        rustix::fs::fstat(&self.file).map_or(0, |state| state.st_ino)
    }

    pub(crate) fn record_import(&self, part: &SharedBytes) -> Imported {
        let part = (self.number(), part.begin);
        *IMPORTS.lock().entry(part).or_default() += 1;
        Imported {
            part,
            _file: self.file.clone(),
        }
    }

    /// Returns whether a device of this process has imported a part.
    pub(crate) fn is_imported(&self, part: &SharedBytes) -> bool {
        IMPORTS.lock().contains_key(&(self.number(), part.begin))
    }

    /// Describes a part.
    pub(crate) fn describe(&self, part: &SharedBytes, bytes: u64) -> [u8; 64] {
        let mut data = [0; 64];
        data[..8].copy_from_slice(&MARK);
        for (at, number) in [self.number(), part.begin, bytes].into_iter().enumerate() {
            data[8 + 8 * at..16 + 8 * at].copy_from_slice(&number.to_le_bytes());
        }
        data
    }

    /// Returns the part that was described, and its bytes.
    pub(crate) fn find(&self, data: &[u8; 64]) -> Refusable<(SharedBytes, u64)> {
        let number = |at: usize| {
            let bytes = &data[8 + 8 * at..16 + 8 * at];
            u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
        };
        let (file, begin, bytes) = (number(0), number(1), number(2));
        let is_inside = begin.checked_add(bytes).is_some_and(|end| end <= POOL);
        if data[..8] != MARK || file != self.number() || !is_inside {
            return invalid("this is no block of the pool".to_owned());
        }
        let file = self.file.clone();
        Ok((SharedBytes { file, begin }, bytes))
    }
}

impl Space {
    /// Takes plain memory whose bytes are a part of a pool's file, or maps such a part of another process.
    pub(crate) fn allocate_shared(
        &mut self,
        device: u32,
        kind: MemoryKind,
        bytes: u64,
        part: SharedBytes,
        is_imported: bool,
    ) -> Refusable<u64> {
        check_size(bytes)?;
        let handle = match is_imported {
            true => self.add_physical(device, kind, bytes, Bytes::default(), true),
            false => self.create(device, kind, bytes)?,
        };
        self.known(handle)?.store.shared = Some(part);
        self.place_plain(device, handle, (bytes, bytes))
    }

    /// Returns the part of a file behind the memory at an address.
    pub(crate) fn part_at(&self, address: u64) -> Option<SharedBytes> {
        let handle = self.mappings.get(&address)?.handle;
        self.physical.get(&handle)?.store.shared.clone()
    }

    /// Takes a chunk of the device's memory that can be exported.
    pub(crate) fn create_shareable(&mut self, device: u32, bytes: u64) -> Refusable<u64> {
        let handle = self.create(device, MemoryKind::Device, bytes)?;
        match create_file(bytes) {
            Ok(file) => {
                self.known(handle)?.store = with_file(file);
                Ok(handle)
            }
            Err(error) => {
                self.destroy(handle)?;
                exhausted(format!("the host has no file for shared memory: {error}"))
            }
        }
    }

    pub(crate) fn export(&mut self, handle: u64) -> Refusable<OwnedFd> {
        match &self.known(handle)?.store.shared {
            Some(SharedBytes { file, .. }) => match file.as_fd().try_clone_to_owned() {
                Ok(descriptor) => Ok(descriptor),
                Err(error) => exhausted(format!("the process has no free descriptor: {error}")),
            },
            None => invalid(format!(
                "chunk {handle} was not created to be shared; create it with `create_shareable`"
            )),
        }
    }

    pub(crate) fn import(
        &mut self,
        device: u32,
        descriptor: OwnedFd,
        bytes: u64,
    ) -> Refusable<u64> {
        check_size(bytes)?;
        let size = match rustix::fs::fstat(&descriptor) {
            Ok(state) if FileType::from_raw_mode(state.st_mode) == FileType::RegularFile => {
                state.st_size as u64
            }
            _ => return invalid("the descriptor is no chunk of a simulated device".to_owned()),
        };
        let seals = rustix::fs::fcntl_get_seals(&descriptor);
        if !seals.is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
            return invalid("the descriptor is no chunk of a simulated device".to_owned());
        }
        if size != bytes {
            return invalid(format!("the chunk has {size} bytes, not {bytes}"));
        }
        let store = with_file(descriptor.into());
        Ok(self.add_physical(device, MemoryKind::Device, bytes, store, true))
    }
}
