//! Memory that has a name and outlives its process: which versions there are, and which clients have them mapped. It does
//! no I/O and has no clock; the broker keeps the descriptors.
//!
//! # Rules
//!
//! - A **version** is the memory of one publication: some allocations of a device, with one descriptor for each. A name
//!   leads to one version, the *listed* one, until it is withdrawn or replaced.
//! - A client **holds** a version as long as it has its memory mapped. The publisher does from the beginning. A connection
//!   that ends changes nothing of that, because the process may go on to use the memory.
//! - A version counts, with its bytes, while it is listed or a client holds it. The bytes come from the lease of the
//!   publisher, so that no byte counts twice or never.
//! - The descriptors of a version are kept while it is listed. A broker that starts again has none: the version is *lost*
//!   until a client that holds it brings them. If no client holds it, its memory was freed with the broker.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;

/// The most blocks of a version: their descriptors fit into one frame, which arrives as a whole or not at all.
pub const MOST_BLOCKS: usize = 64;

/// The longest name, in bytes.
pub const LONGEST_NAME: usize = 64;

/// The longest id of a device, in bytes.
const LONGEST_DEVICE: usize = 64;

/// The highest number of a version that a client can bring back.
const HIGHEST: u64 = 1 << 53;

/// How much memory may have a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameLimits {
    /// The most versions, including those that were replaced or withdrawn and that clients still hold. The figures of as
    /// many as the default fit into a frame.
    pub versions: usize,
    /// The most descriptors that are kept.
    pub descriptors: usize,
    /// The most bytes.
    pub bytes: u64,
}

impl Default for NameLimits {
    /// 64 versions and 512 descriptors, of any size.
    fn default() -> Self {
        Self {
            versions: 64,
            descriptors: 512,
            bytes: u64::MAX,
        }
    }
}

/// A block of a version: one allocation of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extent {
    /// The size of the allocation in bytes.
    pub bytes: u64,
    /// The part of it that is the block.
    pub length: u64,
}

/// The memory of a version, without its descriptors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// The id of the device, in hexadecimal digits.
    pub device: String,
    /// Whether clients may attach it for writing.
    pub is_writable: bool,
    /// The blocks, in the order of the descriptors.
    pub blocks: Vec<Extent>,
}

impl Memory {
    /// Returns the size of the allocations in bytes; `None` if no device has as much.
    pub fn bytes(&self) -> Option<u64> {
        let mut sizes = self.blocks.iter().map(|block| block.bytes);
        sizes.try_fold(0_u64, u64::checked_add)
    }

    pub(crate) fn check(&self, descriptors: usize) -> Result<u64, NameError> {
        let invalid = |reason: String| Err(NameError::Invalid { reason });
        let blocks = self.blocks.len();
        if blocks == 0 || blocks > MOST_BLOCKS {
            return invalid(format!(
                "{blocks} blocks; publish 1 to {MOST_BLOCKS}, and put small tensors together into one"
            ));
        }
        if blocks != descriptors {
            return invalid(format!("{descriptors} descriptors for {blocks} blocks"));
        }
        let is_possible = |block: &&Extent| block.length > 0 && block.length <= block.bytes;
        if self.blocks.iter().any(|block| !is_possible(&block)) {
            return invalid("a block is empty, or larger than its allocation".to_owned());
        }
        if self.device.len() > LONGEST_DEVICE {
            return invalid(format!(
                "the id of the device exceeds {LONGEST_DEVICE} bytes"
            ));
        }
        match self.bytes() {
            Some(bytes) => Ok(bytes),
            None => invalid("the sizes together exceed 2^64 bytes".to_owned()),
        }
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), NameError> {
    let is_valid = !name.is_empty()
        && name.len() <= LONGEST_NAME
        && name.chars().all(|each| !each.is_control());
    is_valid.then_some(()).ok_or_else(|| NameError::Invalid {
        reason: format!("a name has 1 to {LONGEST_NAME} bytes, and no control characters"),
    })
}

/// Why memory was not published, attached or withdrawn.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NameError {
    /// The name is in use.
    #[error(
        "{name:?} is published, as version {version}; attach it, replace it, or withdraw it with `weirpool broker drop`"
    )]
    Taken {
        /// The name.
        name: String,
        /// The version that it leads to.
        version: u64,
    },
    /// There is no memory of that name.
    #[error("nothing is published as {name:?}")]
    NotPublished {
        /// The name.
        name: String,
    },
    /// The name leads to another version.
    #[error("{name:?} is version {version}, not {wanted}")]
    WrongVersion {
        /// The name.
        name: String,
        /// The version that it leads to.
        version: u64,
        /// The version that was asked for.
        wanted: u64,
    },
    /// The memory may only be read.
    #[error(
        "{name:?} was published for reading; attach it without `writing`, or publish it with `writable`"
    )]
    ReadOnly {
        /// The name.
        name: String,
    },
    /// The broker was started again, and no client has brought the descriptors yet.
    #[error(
        "the broker was started again, and has not got {name:?} back from its {clients} clients yet; retry, or withdraw it"
    )]
    Lost {
        /// The name.
        name: String,
        /// The clients that hold it.
        clients: usize,
    },
    /// A limit of the broker is reached.
    #[error(
        "{used} of {limit} {what} have a name, and {more} more were published; withdraw a name, or raise the broker's limit"
    )]
    Full {
        /// What the limit counts: versions, descriptors or bytes.
        what: String,
        /// How many there are.
        used: u64,
        /// How many were to be published.
        more: u64,
        /// The limit.
        limit: u64,
    },
    /// The publisher's lease does not cover the memory.
    #[error(
        "{bytes} bytes were published within a lease of {lease} bytes; publish memory of the pool that is leased"
    )]
    NotLeased {
        /// The bytes of the memory.
        bytes: u64,
        /// The lease.
        lease: u64,
    },
    /// The guarantees of clients would not be covered any more.
    #[error(
        "{bytes} bytes cannot have a name beside guarantees of {promised} bytes: the broker has {capacity} bytes, of which {named} have names; lower a guarantee"
    )]
    Guaranteed {
        /// The bytes of the memory.
        bytes: u64,
        /// The guarantees of all clients together.
        promised: u64,
        /// The bytes that have names.
        named: u64,
        /// The capacity.
        capacity: u64,
    },
    /// A descriptor is a socket, a pipe or a directory.
    #[error("a descriptor is not that of device memory")]
    NotMemory,
    /// The message contradicts itself.
    #[error("the memory is not valid: {reason}")]
    Invalid {
        /// The problem.
        reason: String,
    },
    /// The broker ended the connection again and again instead of an answer.
    #[error(
        "the broker ended the connection in place of an answer; look at its limit of open files, `ulimit -n`"
    )]
    Unanswered,
}

/// How a version stands, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NameStanding {
    /// Its name leads to it.
    Listed,
    /// Its name leads to it, and the broker waits for a client to bring the descriptors.
    Lost,
    /// It was replaced or withdrawn, and clients hold it.
    Withdrawn,
}

/// The figures of one version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NameFigures {
    /// Its name.
    pub name: String,
    /// Its number, which no other version of any name has.
    pub version: u64,
    /// The size of its allocations in bytes.
    pub bytes: u64,
    /// The number of its blocks.
    pub blocks: usize,
    /// Whether clients may attach it for writing.
    pub is_writable: bool,
    /// The clients that hold it.
    pub clients: usize,
    /// How it stands.
    pub standing: NameStanding,
}

/// A version, as the next broker needs to know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Version {
    name: String,
    memory: Memory,
    /// The client that published it, by its key, and the number of its request.
    maker: (u64, u64),
    /// How often each client has it mapped, by the key of the client.
    holders: BTreeMap<u64, u32>,
    is_listed: bool,
    /// The broker has its descriptors.
    #[serde(skip)]
    is_kept: bool,
}

impl Version {
    fn bytes(&self) -> u64 {
        self.memory.bytes().expect("it was checked")
    }

    fn descriptors(&self) -> usize {
        if self.is_kept {
            self.memory.blocks.len()
        } else {
            0
        }
    }
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Names {
    versions: BTreeMap<u64, Version>,
    /// The number of the next version, unless one has it.
    next: u64,
    limits: NameLimits,
}

impl Names {
    pub(crate) fn new(limits: NameLimits) -> Self {
        Self {
            versions: BTreeMap::new(),
            next: 1,
            limits,
        }
    }

    /// Has the next version get at least this number.
    pub(crate) fn number_from(&mut self, first: u64) {
        self.next = self.next.max(first.min(HIGHEST));
    }

    /// Returns the bytes that count.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = self.versions.values().map(Version::bytes);
        bytes.fold(0, u64::saturating_add)
    }

    pub(crate) fn figures(&self) -> Vec<NameFigures> {
        let figures = |(number, version): (&u64, &Version)| NameFigures {
            name: version.name.clone(),
            version: *number,
            bytes: version.bytes(),
            blocks: version.memory.blocks.len(),
            is_writable: version.memory.is_writable,
            clients: version.holders.len(),
            standing: match (version.is_listed, version.is_kept) {
                (false, _) => NameStanding::Withdrawn,
                (true, false) => NameStanding::Lost,
                (true, true) => NameStanding::Listed,
            },
        };
        self.versions.iter().map(figures).collect()
    }

    /// Returns the version that a name leads to.
    fn listed(&self, name: &str) -> Option<u64> {
        let mut versions = self.versions.iter();
        let found = versions.find(|(_, version)| version.is_listed && version.name == name);
        found.map(|(number, _)| *number)
    }

    /// Returns the version that a request of a client made: the request was sent again.
    pub(crate) fn made_by(&self, maker: (u64, u64)) -> Option<u64> {
        let mut versions = self.versions.iter();
        let found = versions.find(|(_, version)| version.maker == maker);
        found.map(|(number, _)| *number)
    }

    /// Notes that a client sent a request again, whose version was published before. Returns whether to keep the
    /// descriptors.
    pub(crate) fn publish_again(&mut self, number: u64, key: u64) -> bool {
        let version = self.versions.get_mut(&number).expect("it was found");
        version.holders.entry(key).or_insert(1);
        let is_new = version.is_listed && !version.is_kept;
        version.is_kept |= is_new;
        is_new
    }

    /// Checks a publication. Returns its bytes.
    pub(crate) fn check(
        &self,
        name: &str,
        replaces: bool,
        memory: &Memory,
        descriptors: usize,
    ) -> Result<u64, NameError> {
        check_name(name)?;
        let bytes = memory.check(descriptors)?;
        let replaced = self.listed(name);
        if let Some(version) = replaced.filter(|_| !replaces) {
            let name = name.to_owned();
            return Err(NameError::Taken { name, version });
        }
        let leaves = replaced.map(|number| &self.versions[&number]);
        self.check_room(leaves, bytes, descriptors)?;
        Ok(bytes)
    }

    /// Checks the limits for one more version, for which another may leave.
    fn check_room(
        &self,
        leaves: Option<&Version>,
        bytes: u64,
        descriptors: usize,
    ) -> Result<(), NameError> {
        let is_freed = leaves.is_some_and(|version| version.holders.is_empty());
        let full = |what: &str, used: u64, more: u64, limit: u64| match used
            .checked_add(more)
            .is_some_and(|sum| sum <= limit)
        {
            true => Ok(()),
            false => Err(NameError::Full {
                what: what.to_owned(),
                used,
                more,
                limit,
            }),
        };
        let versions = self.versions.len() - usize::from(is_freed);
        full("versions", versions as u64, 1, self.limits.versions as u64)?;
        let kept: usize = self.versions.values().map(Version::descriptors).sum();
        let kept = kept - leaves.map_or(0, Version::descriptors);
        let most = self.limits.descriptors as u64;
        full("descriptors", kept as u64, descriptors as u64, most)?;
        let freed = leaves.filter(|_| is_freed).map_or(0, Version::bytes);
        full("bytes", self.bytes() - freed, bytes, self.limits.bytes)
    }

    /// Adds a version that was [checked](Self::check), which its publisher holds. An earlier one of the name is withdrawn.
    pub(crate) fn publish(&mut self, maker: (u64, u64), name: String, memory: Memory) -> u64 {
        if let Some(replaced) = self.listed(&name) {
            self.unlist(replaced);
        }
        // One that a client brought back, perhaps wrongly, may have the next number.
        let mut numbers = self.next..;
        let number = numbers.find(|number| !self.counts(*number));
        let number = number.expect("there are few versions");
        self.next = number + 1;
        let version = Version {
            name,
            memory,
            maker,
            holders: BTreeMap::from([(maker.0, 1)]),
            is_listed: true,
            is_kept: true,
        };
        self.versions.insert(number, version);
        number
    }

    /// Has a client hold the version that a name leads to.
    pub(crate) fn attach(
        &mut self,
        key: u64,
        name: &str,
        wanted: Option<u64>,
        writes: bool,
    ) -> Result<(u64, Memory), NameError> {
        let shown = || name.to_owned();
        let number = self.listed(name);
        let number = number.ok_or_else(|| NameError::NotPublished { name: shown() })?;
        if let Some(wanted) = wanted.filter(|wanted| *wanted != number) {
            return Err(NameError::WrongVersion {
                name: shown(),
                version: number,
                wanted,
            });
        }
        let version = self.versions.get_mut(&number).expect("it was found");
        if writes && !version.memory.is_writable {
            return Err(NameError::ReadOnly { name: shown() });
        }
        if !version.is_kept {
            let clients = version.holders.len();
            let name = shown();
            return Err(NameError::Lost { name, clients });
        }
        let count = version.holders.entry(key).or_default();
        *count = count.saturating_add(1);
        Ok((number, version.memory.clone()))
    }

    /// Notes that a client has unmapped a version once, if it held it.
    pub(crate) fn detach(&mut self, key: u64, number: u64) {
        let version = self.versions.get_mut(&number);
        if let Some(holders) = version.map(|version| &mut version.holders)
            && let Some(count) = holders.get_mut(&key)
        {
            *count -= 1;
            if *count == 0 {
                holders.remove(&key);
            }
        }
        self.clean();
    }

    /// Notes which versions a client that came back holds: these, and those of its unanswered publications.
    pub(crate) fn restate(&mut self, key: u64, held: &[(u64, u32)], unanswered: &[u64]) {
        for (number, version) in &mut self.versions {
            let stated = held.iter().find(|(held, _)| held == number);
            let stated = stated.map_or(0, |(_, count)| *count);
            let (maker, request) = version.maker;
            let is_unanswered = maker == key && unanswered.contains(&request);
            match stated.saturating_add(u32::from(is_unanswered)) {
                0 => version.holders.remove(&key),
                count => version.holders.insert(key, count),
            };
        }
        self.clean();
    }

    /// Takes a version back from a client that holds it, after the broker was started again. `free` bytes are available
    /// for one that the broker does not know. Returns whether to keep the descriptors.
    pub(crate) fn restore(
        &mut self,
        key: u64,
        held: Restored,
        descriptors: usize,
        free: u64,
    ) -> bool {
        let Restored {
            version: number,
            count,
            name,
            memory,
        } = held;
        if count == 0 {
            return false;
        }
        if let Some(version) = self.versions.get_mut(&number) {
            if version.name != name || version.memory != memory {
                return false;
            }
            // Another client may have brought it since this one stated what it holds.
            version.holders.entry(key).or_insert(count);
            let brings = descriptors == memory.blocks.len();
            let is_new = brings && version.is_listed && !version.is_kept;
            version.is_kept |= is_new;
            return is_new;
        }
        let is_taken = self.listed(&name).is_some();
        let kept = if is_taken { 0 } else { descriptors };
        let checked = check_name(&name).and_then(|()| memory.check(descriptors));
        let checked = checked.and_then(|bytes| self.check_room(None, bytes, kept).map(|()| bytes));
        if number > HIGHEST || !checked.is_ok_and(|bytes| bytes <= free) {
            return false;
        }
        // The next number stays: that of a client that lies would leave none for others.
        let version = Version {
            name,
            memory,
            maker: (key, u64::MAX),
            holders: BTreeMap::from([(key, count)]),
            is_listed: !is_taken,
            is_kept: !is_taken,
        };
        self.versions.insert(number, version);
        !is_taken
    }

    /// Notes that a client holds nothing any more.
    pub(crate) fn forget(&mut self, key: u64) {
        for version in self.versions.values_mut() {
            version.holders.remove(&key);
        }
        self.clean();
    }

    /// Makes a name lead to nothing. Returns the figures of its version, whose clients keep it.
    pub(crate) fn withdraw(&mut self, name: &str) -> Result<NameFigures, NameError> {
        let number = self.listed(name).ok_or_else(|| NameError::NotPublished {
            name: name.chars().take(LONGEST_NAME).collect(),
        })?;
        let mut figures = self.figures().into_iter();
        let figures = figures.find(|figures| figures.version == number);
        self.unlist(number);
        Ok(figures.expect("it is listed"))
    }

    fn unlist(&mut self, number: u64) {
        if let Some(version) = self.versions.get_mut(&number) {
            version.is_listed = false;
            version.is_kept = false;
        }
        self.clean();
    }

    /// Removes versions that no name leads to and no client holds, and those whose memory no process has.
    fn clean(&mut self) {
        self.versions
            .retain(|_, version| version.is_kept || !version.holders.is_empty());
    }

    /// Returns whether a client holds a version.
    pub(crate) fn is_holder(&self, key: u64) -> bool {
        let mut versions = self.versions.values();
        versions.any(|version| version.holders.contains_key(&key))
    }

    /// Returns whether a version counts: it is listed, or a client holds it.
    pub(crate) fn counts(&self, number: u64) -> bool {
        self.versions.contains_key(&number)
    }

    /// Returns whether the descriptors of a version are kept.
    pub(crate) fn is_kept(&self, number: u64) -> bool {
        let version = self.versions.get(&number);
        version.is_some_and(|version| version.is_kept)
    }

    /// Returns what to record for the next broker.
    pub(crate) fn record(&self) -> (u64, Vec<(u64, Version)>) {
        let versions = self.versions.iter();
        let versions = versions.map(|(number, version)| (*number, version.clone()));
        (self.next, versions.collect())
    }

    /// Takes what an earlier broker recorded. Versions that no client of `lives` holds are gone.
    pub(crate) fn take_record(
        &mut self,
        (next, versions): (u64, Vec<(u64, Version)>),
        lives: impl Fn(u64) -> bool,
    ) {
        if next > 0 {
            self.next = next.min(HIGHEST);
        }
        for (number, mut version) in versions {
            version.holders.retain(|key, _| lives(*key));
            if version.memory.bytes().is_some() {
                self.versions.insert(number, version);
            }
        }
        self.clean();
    }

    /// Checks the invariants.
    pub(crate) fn check_invariants(&self) -> Result<(), String> {
        for (number, version) in &self.versions {
            if version.is_kept && !version.is_listed {
                return Err(format!(
                    "descriptors of version {number} are kept without a name"
                ));
            }
            if !version.is_kept && version.holders.is_empty() {
                return Err(format!("version {number} counts, and no process has it"));
            }
            if version.is_listed && self.listed(&version.name) != Some(*number) {
                return Err(format!("{:?} leads to two versions", version.name));
            }
            if version.holders.values().any(|count| *count == 0) {
                return Err(format!("a client holds version {number} zero times"));
            }
        }
        let kept: usize = self.versions.values().map(Version::descriptors).sum();
        if kept > self.limits.descriptors || self.versions.len() > self.limits.versions {
            return Err(format!(
                "{kept} descriptors of {} versions",
                self.versions.len()
            ));
        }
        Ok(())
    }
}

/// A version that a client brings back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restored {
    /// Its number.
    pub version: u64,
    /// How often the client has it mapped.
    pub count: u32,
    /// Its name.
    pub name: String,
    /// Its memory.
    pub memory: Memory,
}

#[cfg(test)]
mod tests;
