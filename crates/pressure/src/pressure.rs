//! A hook, shared by the requests that may ask it.

use crate::PressureHook;
use crate::asked::Asked;
use crate::turn::Turns;
use std::fmt;
use std::sync::Arc;
use weirpool::Shortfall;

/// A hook that is asked for one request at a time. Clones share it. Requests of several pools may share it as well: the
/// hook does not work for two of them at once then.
///
/// A request that stalls while the hook works for another one asks it afterwards, if the request has not ended before.
#[derive(Clone)]
pub struct Pressure {
    hook: Arc<dyn PressureHook>,
    turns: Arc<Turns>,
}

impl Pressure {
    /// Shares a hook.
    pub fn new(hook: impl PressureHook + 'static) -> Self {
        Self {
            hook: Arc::new(hook),
            turns: Arc::default(),
        }
    }

    /// Asks the hook, once it works for no other request.
    pub(crate) fn ask(&self, shortfall: Shortfall) -> Asked {
        let Self { hook, turns } = self.clone();
        Asked::new(async move {
            let _turn = turns.take().await;
            hook.relieve(shortfall).await
        })
    }
}

impl fmt::Debug for Pressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pressure").finish_non_exhaustive()
    }
}
