//! The living pools of the process, and their names.
//!
//! Pools are held weakly: one ends when its last handle goes, and its name is free from that moment on. What
//! is left of its entry goes when another pool is built or looked for. Nothing here is met by an allocation
//! or a free.

use crate::error::BuildError;
use crate::sync::plain::{Arc, Mutex, Weak};
use crate::wait::Presence;

static POOLS: Mutex<Vec<Weak<Presence>>> = Mutex::new(Vec::new());

/// Makes a pool known.
///
/// # Errors
/// When another has its name.
pub(crate) fn enter(pool: &Arc<Presence>) -> Result<(), BuildError> {
    let mut pools = POOLS.lock();
    let living = living_of(&mut pools);
    let entered = match &pool.name {
        Some(name) => refuse_taken(name, &living),
        None => Ok(()),
    };
    if entered.is_ok() {
        pools.push(Arc::downgrade(pool));
    }
    drop(pools);
    // Only now: any of these may be the last handle of its pool by now, and end it.
    drop(living);
    entered
}

/// # Errors
/// When a pool has the name, or it is none.
pub(crate) fn check_name(name: &str) -> Result<(), BuildError> {
    refuse_taken(name, &all())
}

/// The pool of that name.
pub(crate) fn find(name: &str) -> Option<Arc<Presence>> {
    let mut pools = all().into_iter();
    pools.find(|pool| pool.name.as_deref() == Some(name))
}

/// All that live, in the order in which they were built.
pub(crate) fn all() -> Vec<Arc<Presence>> {
    living_of(&mut POOLS.lock())
}

/// Forgets those that are gone.
fn living_of(pools: &mut Vec<Weak<Presence>>) -> Vec<Arc<Presence>> {
    let mut living = Vec::with_capacity(pools.len());
    pools.retain(|pool| {
        let presence = pool.upgrade();
        let lives = presence.is_some();
        living.extend(presence);
        lives
    });
    living
}

fn refuse_taken(name: &str, living: &[Arc<Presence>]) -> Result<(), BuildError> {
    let is_taken = |pool: &Arc<Presence>| pool.name.as_deref() == Some(name);
    if name.is_empty() || living.iter().any(is_taken) {
        let name = name.to_owned();
        return Err(BuildError::NameTaken { name });
    }
    Ok(())
}
