//! A pool whose capacity a broker leases: the builder's options, and the two interfaces between pool and client.

use crate::device::MemoryKind;
use crate::engine::{BrokerLease, LeaseBounds, Lender, Settings};
use crate::error::{BrokerFailure, BuildError};
use crate::measure::Bytes;
use crate::queue::{Service, Tenant};
use crate::sync::{Arc, plain};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use weirpool_broker::{Bounds, Client, ClientConfig, ClientError, Held, Reader, Share};

/// How long a request that does not wait in the queue waits for memory that the broker takes back from others. Long
/// against the exchange of two messages, and against the time in which another process releases some chunks.
const PATIENCE: Duration = Duration::from_millis(2);

/// The bytes asked for beyond a need by default: so that a pool that grows in small steps rarely asks.
const HEADROOM: u64 = 64 << 20;

/// How a pool takes part in the capacity that a broker leases, for [`PoolBuilder::broker`](crate::PoolBuilder::broker).
/// A path is one with the defaults.
///
/// ```no_run
/// use weirpool::{BrokerOptions, Pool, device::sim::SimDevice};
///
/// let options = BrokerOptions::new("/run/user/1000/gpu0.sock")
///     .guaranteed(8 << 30) // never taken back
///     .limit(40 << 30)
///     .weight(2)
///     .or_alone();
/// let pool = Pool::builder(SimDevice::new()).broker(options).build()?;
/// # Ok::<(), weirpool::BuildError>(())
/// ```
#[derive(Clone)]
#[must_use = "options do nothing until they are given to a builder"]
pub struct BrokerOptions {
    socket: PathBuf,
    name: Option<String>,
    share: Share,
    headroom: u64,
    is_optional: bool,
}

/// Prints sizes in binary units. Written by hand, because the type of `share` belongs to another crate.
impl fmt::Debug for BrokerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            socket,
            name,
            share:
                Share {
                    guaranteed,
                    limit,
                    weight,
                },
            headroom,
            is_optional,
        } = self;
        f.debug_struct("BrokerOptions")
            .field("socket", socket)
            .field("name", name)
            .field("guaranteed", &Bytes(*guaranteed))
            .field("limit", &(*limit < u64::MAX).then_some(Bytes(*limit)))
            .field("weight", weight)
            .field("headroom", &Bytes(*headroom))
            .field("is_optional", is_optional)
            .finish()
    }
}

impl BrokerOptions {
    /// Creates options with the defaults: no guarantee, no limit but the capacities of pool and broker, a weight of 1.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            name: None,
            share: Share::default(),
            headroom: HEADROOM,
            is_optional: false,
        }
    }

    /// Sets the name under which the broker shows the pool, of up to 64 bytes. Default: the pool's name, or "pool".
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the bytes that are never taken back from the pool, and that it obtains before other needs are met.
    pub fn guaranteed(mut self, bytes: u64) -> Self {
        self.share.guaranteed = bytes;
        self
    }

    /// Sets the most bytes that the pool may hold. A request for more fails at once, as one above the capacity does.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.share.limit = bytes;
        self
    }

    /// Sets the weight, at least 1: where several pools can give memory back, one of weight 2 keeps twice as much above
    /// its guarantee as one of weight 1.
    pub fn weight(mut self, weight: u32) -> Self {
        self.share.weight = weight;
        self
    }

    /// Sets the bytes that are asked for beyond a need while no pool waits. They are given back when the broker asks.
    /// Default: 64 MiB.
    pub fn headroom(mut self, bytes: u64) -> Self {
        self.headroom = bytes;
        self
    }

    /// Runs without a broker if none listens when the pool is built. By default the build fails. A broker that refuses
    /// the pool, or that does not answer, is an error either way.
    pub fn or_alone(mut self) -> Self {
        self.is_optional = true;
        self
    }

    /// Joins the broker, and bounds the settings by the bytes that it can lease. Returns `None` if the pool runs alone.
    ///
    /// # Errors
    /// Returns an error if the broker is not there or refuses, or a setting excludes a lease.
    pub(super) fn join(
        self,
        settings: &mut Settings,
        name: Option<&str>,
    ) -> Result<Option<Joined>, BuildError> {
        let conflict = |other| {
            Err(BuildError::Conflict {
                one: "broker",
                other,
            })
        };
        if settings.driver_pool.is_some() {
            // The driver keeps memory that the pool has returned to it.
            return conflict("driver_pool");
        }
        if settings.kind != MemoryKind::Device {
            return conflict("upstream");
        }
        if settings.initial > 0 {
            return conflict("initial_size");
        }
        let geometry = &mut settings.geometry;
        let mut share = self.share;
        share.limit = share.limit.min(geometry.capacity);
        let config = ClientConfig {
            socket: self.socket,
            name: self
                .name
                .or(name.map(Into::into))
                .unwrap_or_else(|| "pool".into()),
            share,
            headroom: self.headroom,
        };
        let (client, reader) = match Client::join(config) {
            Ok(joined) => joined,
            Err(ClientError::Unreachable { .. }) if self.is_optional => return Ok(None),
            Err(error) => return Err(BuildError::Broker(failure(&error))),
        };
        let limit = client.limit();
        geometry.capacity = limit / geometry.chunk_bytes * geometry.chunk_bytes;
        let lender = plain::Arc::new(Leased(client));
        let joined = Joined {
            lender: lender.clone(),
            reader,
        };
        if geometry.capacity == 0 {
            let granularity = geometry.chunk_bytes;
            joined.abandon();
            return Err(BuildError::CapacityTooSmall {
                capacity: limit,
                granularity,
            });
        }
        settings.lender = Some(lender);
        Ok(Some(joined))
    }
}

impl<P: Into<PathBuf>> From<P> for BrokerOptions {
    fn from(socket: P) -> Self {
        Self::new(socket)
    }
}

fn failure(error: &ClientError) -> BrokerFailure {
    let reason = error.to_string();
    match error {
        ClientError::Unreachable { .. } => BrokerFailure::Unreachable {
            reason: format!(
                "{reason}, or let the pool run without one (`BrokerOptions::or_alone`)"
            ),
        },
        ClientError::Silent { .. } => BrokerFailure::Unreachable { reason },
        _ => BrokerFailure::Refused { reason },
    }
}

/// A lease before its pool exists.
pub(super) struct Joined {
    lender: plain::Arc<Leased>,
    reader: Reader,
}

impl Joined {
    /// Ends the lease: the pool could not be built.
    pub(super) fn abandon(self) {
        self.reader.abandon();
    }

    /// Starts the thread that applies the broker's terms to the pool.
    ///
    /// # Errors
    /// Returns an error if no thread can be started.
    pub(super) fn start(self, service: &Arc<Service>) -> Result<(), BuildError> {
        let tenant = Tenant::new(service, self.lender);
        let started = self.reader.start(plain::Arc::new(PoolTenant(tenant)));
        started.map_err(|error| {
            let reason = format!("no thread for the broker's client: {error}");
            BuildError::Broker(BrokerFailure::Unreachable { reason })
        })
    }
}

/// The pool, for the client.
struct PoolTenant(Tenant);

impl weirpool_broker::Tenant for PoolTenant {
    fn apply(&self, bounds: Bounds) -> Option<Held> {
        let holding = self.0.apply(LeaseBounds {
            granted: bounds.granted,
            first: bounds.first,
            bound: bounds.bound,
            is_binding: bounds.is_binding,
        })?;
        let (used, blocks) = self.0.use_so_far();
        Some(Held {
            held: holding.held,
            used,
            waiting: holding.waiting as u64,
            blocks,
        })
    }
}

/// The client, for the pool.
#[derive(Debug)]
struct Leased(Client);

impl Lender for Leased {
    fn ask(&self, turn: u64, wanted: u64) {
        self.0.ask(turn, wanted);
    }

    fn ask_and_wait(&self, wanted: u64) -> bool {
        self.0.ask_and_wait(wanted, PATIENCE)
    }

    fn withdraw(&self) {
        self.0.withdraw();
    }

    fn is_asking(&self) -> bool {
        self.0.is_waiting()
    }

    fn look_again(&self) {
        self.0.look_again();
    }

    fn end(&self) {
        self.0.close();
    }

    fn figures(&self) -> BrokerLease {
        let Share { guaranteed, .. } = self.0.share();
        let (returning, granting) = self.0.times();
        BrokerLease {
            leased: self.0.lease(),
            guaranteed,
            limit: self.0.limit(),
            recalled: self.0.owes(),
            is_waiting: self.0.is_waiting(),
            is_connected: self.0.is_connected(),
            refused: self.0.refused().map(|refused| refused.to_string()),
            returning,
            granting,
        }
    }
}
