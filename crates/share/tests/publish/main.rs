//! Memory under a name: in one process, and in several, which are this binary executed again.
#![cfg(target_os = "linux")]

mod behaviour;
mod hostile;
mod processes;

use futures::executor::block_on;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weirpool::device::sim::{Clock, SimDevice};
use weirpool::{Pool, Stream};
use weirpool_broker::ledger::Figures;
use weirpool_broker::names::NameLimits;
use weirpool_broker::{Broker, BrokerConfig, BrokerOptions, Running, Watch, lease_capacity};
use weirpool_share::ipc::{AllocateExportable, Exportable, Publish, PublishError};

pub(crate) const MIB: u64 = 1 << 20;

/// A folder of a test's own, removed at its end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("weirpool-publish-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .unwrap();
        Self(path)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.join("broker")
    }

    pub(crate) fn broker(&self, capacity: u64) -> Running {
        self.broker_with(capacity, NameLimits::default())
    }

    pub(crate) fn broker_with(&self, capacity: u64, names: NameLimits) -> Running {
        let config = BrokerConfig {
            names,
            ..BrokerConfig::new(self.socket(), capacity)
        };
        Broker::bind(config).unwrap().spawn().unwrap()
    }

    /// Waits until the figures are as they should be. The broker says when they change.
    pub(crate) fn until(&self, mut is_right: impl FnMut(&Figures) -> bool) -> Figures {
        let mut watch = Watch::connect(&self.socket()).unwrap();
        loop {
            let figures = watch.next_figures().unwrap().expect("the broker runs");
            let leased: u64 = figures.clients.iter().map(|client| client.lease).sum();
            let named: u64 = figures.names.iter().map(|name| name.bytes).sum();
            assert!(leased + named <= figures.capacity, "{figures:?}");
            if is_right(&figures) {
                return figures;
            }
        }
    }

    pub(crate) fn figures(&self) -> Figures {
        self.until(|_| true)
    }

    /// Waits until nothing is leased or has a name.
    pub(crate) fn until_free(&self) {
        self.until(|figures| figures.free == figures.capacity);
    }

    pub(crate) fn side(&self) -> Side {
        Side::new(&self.socket(), 0)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a process has: a device, and a pool whose capacity the broker leases.
pub(crate) struct Side {
    pub(crate) device: SimDevice,
    pub(crate) pool: Pool,
    pub(crate) stream: Stream,
}

impl Side {
    pub(crate) fn new(socket: &Path, guaranteed: u64) -> Self {
        let device = SimDevice::builder()
            .memory(1 << 30)
            .clock(Clock::Wall)
            .build();
        let options = BrokerOptions::new(socket)
            .guaranteed(guaranteed)
            .headroom(0);
        let builder = Pool::builder(device.clone()).chunk_bytes(2 * MIB);
        let pool = lease_capacity(builder, options).build().unwrap();
        let stream = pool.create_stream().unwrap();
        Self {
            device,
            pool,
            stream,
        }
    }

    /// Allocates a block that begins with a text.
    pub(crate) fn exportable(&self, bytes: u64, text: &str) -> Exportable {
        let block = self.pool.allocate_exportable(&self.stream, bytes);
        let mut block = block_on(block).unwrap();
        drop(block.upload(&self.stream, 0, text.as_bytes()).unwrap());
        block
    }

    /// Publishes one block.
    pub(crate) fn publish(&self, name: &str, block: &Exportable) -> Result<u64, PublishError> {
        block_on(self.pool.publish(name, [block]).into_future())
    }

    /// Attaches a name for reading. Returns its version and the text of its first block.
    pub(crate) fn read(&self, name: &str, length: usize) -> Result<(u64, String), PublishError> {
        let attached = block_on(self.pool.attach(name, &self.stream).into_future())?;
        let range = 0..length as u64;
        let bytes = attached.blocks()[0].download(&self.stream, range).unwrap();
        let bytes = block_on(bytes).unwrap().to_vec();
        Ok((attached.version(), String::from_utf8(bytes).unwrap()))
    }
}

/// Waits until something that no event tells of is so.
pub(crate) fn eventually(mut is_so: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("it does not come to be so");
}
