//! Pools that share one GPU: in one process, and in several, which are this binary executed again.
#![cfg(target_os = "linux")]

#[path = "../../../../tests/common/mod.rs"]
#[macro_use]
mod common;
mod clients;
mod hostile;
mod joint;
mod leases;
mod mixed;
mod processes;
mod puppet;

use std::path::{Path, PathBuf};
use std::time::Duration;
use weirpool_broker::{Broker, BrokerConfig, Running};

/// A folder of a test's own, removed at its end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weirpool-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.join("broker")
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn broker(socket: &Path, capacity: u64) -> Running {
    broker_with(socket, capacity, Duration::from_secs(60))
}

/// Starts a broker that leases to as many clients of one process as it serves.
pub(crate) fn broker_for_this_process(socket: &Path, capacity: u64) -> Running {
    let config = BrokerConfig {
        grace: Duration::from_secs(60),
        most_of_a_process: usize::MAX,
        ..BrokerConfig::new(socket, capacity)
    };
    Broker::bind(config).unwrap().spawn().unwrap()
}

pub(crate) fn broker_with(socket: &Path, capacity: u64, grace: Duration) -> Running {
    let config = BrokerConfig {
        grace,
        ..BrokerConfig::new(socket, capacity)
    };
    Broker::bind(config).unwrap().spawn().unwrap()
}
