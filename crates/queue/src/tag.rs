//! Names of tenants, as numbers that are cheap to copy and compare.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The tenant, model or kind of use for which memory is allocated.
///
/// A tag is a number that stands for a name, the same in the whole process. Create it once and keep it: the creation
/// looks up the name under a lock, and each name stays in memory until the process ends. So use tags for a limited
/// number of names, not for each request.
///
/// Each pool counts tagged allocations per tag: see [`TagStatistics`](https://docs.rs/weirpool/latest/weirpool/struct.TagStatistics.html).
///
/// ```
/// # use weirpool::{Pool, Tag, device::sim::SimDevice};
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).build()?;
/// # let stream = pool.register(&device.create_stream())?;
/// let kv_cache = Tag::new("kv-cache");
/// # device.block_on(async {
/// let block = pool.allocate(&stream, 64 << 20).tag(kv_cache).await?;
/// assert_eq!(pool.tag(kv_cache).statistics().used.current, block.size());
/// # Ok::<(), weirpool::AllocError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(NonZeroU32);

static NAMES: Mutex<Names> = Mutex::new(Names {
    all: Vec::new(),
    by_name: BTreeMap::new(),
});

#[derive(Debug)]
struct Names {
    all: Vec<&'static str>,
    by_name: BTreeMap<&'static str, Tag>,
}

impl Names {
    fn intern(&mut self, name: &str) -> Tag {
        if let Some(tag) = self.by_name.get(name) {
            return *tag;
        }
        let name: &'static str = Box::leak(name.into());
        self.all.push(name);
        let tag = Tag::numbered(self.all.len() - 1);
        self.by_name.insert(name, tag);
        tag
    }
}

/// Locks the names, which are whole whatever a thread did that panicked.
fn names() -> MutexGuard<'static, Names> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tag {
    /// Returns the tag of a name.
    pub fn new(name: &str) -> Self {
        names().intern(name)
    }

    /// Returns the name of the tag.
    pub fn name(self) -> &'static str {
        names().all[self.index()]
    }

    /// Returns the number of tags that were made before it.
    #[doc(hidden)]
    #[inline]
    pub fn index(self) -> usize {
        self.0.get() as usize - 1
    }

    /// Returns the number of the tag; never zero.
    #[doc(hidden)]
    #[inline(always)]
    pub fn number(self) -> u32 {
        self.0.get()
    }

    /// Returns the tag with this number, or `None` for zero.
    #[doc(hidden)]
    #[inline(always)]
    pub fn of_number(number: u32) -> Option<Self> {
        NonZeroU32::new(number).map(Self)
    }

    /// Returns the tag with that many before it.
    #[doc(hidden)]
    pub fn numbered(index: usize) -> Self {
        let number = u32::try_from(index + 1).ok().and_then(NonZeroU32::new);
        Self(number.expect("fewer than 2^32 names"))
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tag").field(&self.name()).finish()
    }
}

/// Serializes the name, because the number has no meaning in another process.
#[cfg(feature = "serde")]
impl serde::Serialize for Tag {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Tag {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        Ok(Self::new(&name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_tag() {
        let [first, second] = ["decode", "prefill"].map(Tag::new);
        assert_ne!(first, second);
        assert_eq!(Tag::new(&String::from("decode")), first);
        assert_eq!(
            [first, second].map(|tag| tag.to_string()),
            ["decode", "prefill"]
        );
        assert_eq!(format!("{first:?}"), "Tag(\"decode\")");
    }
}
