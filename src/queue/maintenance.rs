//! The keeper: does the pool's maintenance when the device's alarm calls it.
//!
//! It needs no runtime and no reclaimer. Where memory calls block it does the maintenance on a thread of its own, and
//! elsewhere in the alarm's call. It holds the pool only while that has handles.

use super::Service;
use super::link::Link;
use crate::sync::{Arc, plain};
use std::task::Wake;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Keeper(pub(super) Link);

/// A failure is noted: a sticky one ends the pool, and after another one the next maintenance tries again.
fn keep_up(service: &Arc<Service>) {
    let _ = service.driver.keep_up();
}

impl Wake for Keeper {
    fn wake(self: plain::Arc<Self>) {
        let Some(service) = self.0.service() else {
            return;
        };
        if !service.driver.capabilities.memory_calls_block {
            return keep_up(&service);
        }
        let thread = plain::thread::Builder::new().name("weirpool-maintenance".into());
        let kept = service.clone();
        if thread.spawn(move || keep_up(&kept)).is_err() {
            // Late for the others that share this thread, rather than never.
            keep_up(&service);
        }
    }
}
