//! The users of accesses that a driver has once for all of them.

use crate::plain::Mutex;
use std::collections::BTreeMap;

/// How often an access was given and not taken back, for each access by its key. One is changed at a time: a thread that
/// gives or takes one back waits for the driver's calls of the others.
#[derive(Debug)]
pub struct AccessUsers<K>(Mutex<BTreeMap<K, Users>>);

#[derive(Debug)]
struct Users {
    times: u64,
    /// Other code of the process had given it before, and may rely on it.
    is_of_others: bool,
}

impl<K: Ord> AccessUsers<K> {
    /// Knows no access yet.
    #[expect(clippy::new_without_default, reason = "made for statics")]
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// Gives an access. The driver is called each time, since other code may have taken it back; `give` returns whether
    /// it was there before.
    ///
    /// # Errors
    /// Returns the error of `give`.
    pub fn allow<E>(&self, key: K, give: impl FnOnce() -> Result<bool, E>) -> Result<(), E> {
        crate::assert_unlocked("allow_access");
        let mut all = self.0.lock();
        let was_there = give()?;
        let users = all.entry(key).or_insert(Users {
            times: 0,
            is_of_others: was_there,
        });
        users.times += 1;
        users.is_of_others &= was_there;
        Ok(())
    }

    /// Takes one [`allow`](Self::allow) back. The last one calls `take`, unless other code had given the access.
    ///
    /// # Errors
    /// Returns the error of `take`. The access stays given then.
    pub fn forbid<E>(&self, key: &K, take: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        crate::assert_unlocked("forbid_access");
        let mut all = self.0.lock();
        let Some(users) = all.get_mut(key) else {
            return Ok(());
        };
        if users.times > 1 {
            users.times -= 1;
            return Ok(());
        }
        if !users.is_of_others {
            take()?;
        }
        all.remove(key);
        Ok(())
    }

    /// Forgets the accesses to something that is about to end: another one may have its name afterwards.
    pub fn forget(&self, is_gone: impl Fn(&K) -> bool) {
        self.0.lock().retain(|key, _| !is_gone(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn access_ends_with_its_last_user_and_stays_if_other_code_had_given_it() {
        for was_there in [false, true] {
            let (users, is_given) = (AccessUsers::new(), Cell::new(was_there));
            let allow = || users.allow(1, || Ok::<_, ()>(is_given.replace(true)));
            let take = || {
                is_given.set(false);
                Ok::<_, ()>(())
            };
            let forbid = || users.forbid(&1, take);
            allow().unwrap();
            allow().unwrap();
            forbid().unwrap();
            assert!(is_given.get());
            users.forbid(&2, || Err("not given")).unwrap();
            let refused = users.forbid(&1, || Err("refused"));
            assert_eq!(refused.is_err(), !was_there);
            forbid().unwrap();
            assert_eq!(is_given.get(), was_there);
            users.allow(1, || Err("refused")).unwrap_err();
            users.forbid(&1, || Err("not given")).unwrap();
        }
    }
}
