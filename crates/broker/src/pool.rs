//! A pool whose capacity a broker leases: the options, and the client as the pool's source of capacity.

use crate::client::{Client, ClientConfig, ClientError, Names, Reader, Tenant};
use crate::share::Share;
use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use weirpool::extend::{BoundedPool, Bounds, CapacitySource, Holding, Joining};
use weirpool::{Pool, PoolBuilder};
use weirpool_heap::debug_in_units;
use weirpool_heap::units::Bytes;

/// How long a request that does not wait in the queue waits for memory that the broker takes back from others. Long
/// against the exchange of two messages, and against the time in which another process releases some chunks.
const PATIENCE: Duration = Duration::from_millis(2);

/// The bytes asked for beyond a need by default: so that a pool that grows in small steps rarely asks.
const HEADROOM: u64 = 64 << 20;

/// Shares the device with pools of other processes: a broker leases the capacity of the pool. The option is the path of
/// its socket, or [`BrokerOptions`].
///
/// `build` joins the broker. A request that is short of the lease asks the broker, and waits in the queue as for any
/// memory. [`try_allocate`](Pool::try_allocate) waits for the broker's answer, and up to 2 ms for memory of others. A
/// request above the limit fails at once.
///
/// When the broker asks for memory, a thread of the pool's own gives back free memory. Allocations from the caches of
/// streams know nothing of it, unless the broker needs memory that is in use.
///
/// Each chunk costs two calls of the driver when its memory moves to another process, whatever its size. Where services
/// compete for many GiB, choose [chunks](PoolBuilder::chunk_bytes) of 64 MiB. See
/// [the guide](weirpool::guide::services#several-processes).
///
/// ```no_run
/// use weirpool::{Pool, device::sim::SimDevice};
/// use weirpool_broker::{BrokerOptions, lease_capacity};
///
/// let options = BrokerOptions::new("/run/user/1000/gpu0.sock")
///     .guaranteed(8 << 30) // never taken back
///     .limit(40 << 30)
///     .weight(2)
///     .or_alone();
/// let pool = lease_capacity(Pool::builder(SimDevice::new()), options).build()?;
/// # Ok::<(), weirpool::BuildError>(())
/// ```
pub fn lease_capacity(builder: PoolBuilder, options: impl Into<BrokerOptions>) -> PoolBuilder {
    builder.capacity_source(Arc::new(Leased {
        options: options.into(),
        client: OnceLock::new(),
        reader: Mutex::new(None),
    }))
}

/// Returns how a pool's lease stands, if a broker leases its capacity.
pub fn lease_of(pool: &Pool) -> Option<BrokerLease> {
    let source: &dyn std::any::Any = pool.inspect().capacity_source()?;
    Some(source.downcast_ref::<Leased>()?.figures())
}

/// Returns the names of the broker that leases the capacity of a pool, if one does: for memory that outlives its process.
pub fn names_of(pool: &Pool) -> Option<Names> {
    let source: &dyn std::any::Any = pool.inspect().capacity_source()?;
    Some(source.downcast_ref::<Leased>()?.client().names())
}

/// How a pool takes part in the capacity that a broker leases, for [`lease_capacity`]. A path is one with the defaults.
#[derive(Clone)]
#[must_use = "options do nothing until they are given to a builder"]
pub struct BrokerOptions {
    socket: PathBuf,
    name: Option<String>,
    share: Share,
    headroom: u64,
    is_optional: bool,
}

/// Prints sizes in binary units.
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
}

impl<P: Into<PathBuf>> From<P> for BrokerOptions {
    fn from(socket: P) -> Self {
        Self::new(socket)
    }
}

/// Why a broker leases nothing to a pool: the error of [`BuildError::CapacitySource`](weirpool::BuildError).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerFailure {
    /// No broker listens at the socket, or it does not answer.
    #[error("{reason}")]
    Unreachable {
        /// The reason, with the socket and the remedy.
        reason: String,
    },
    /// The broker refuses the pool: its guarantee does not fit, or its share contradicts itself.
    #[error("{reason}")]
    Refused {
        /// The broker's reason, with its figures.
        reason: String,
    },
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

/// The lease of a pool whose capacity a broker leases; sizes are in bytes.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct BrokerLease {
    /// The bytes that the pool may hold, including those that the broker has asked for and the pool has not given back.
    pub leased: u64,
    /// The bytes that are never taken back.
    pub guaranteed: u64,
    /// The maximum number of bytes that the pool may hold.
    pub limit: u64,
    /// The bytes that the broker has asked for and the pool has not given back.
    pub recalled: u64,
    /// Whether the pool has asked the broker for more bytes, and waits for the grant.
    pub is_waiting: bool,
    /// Whether the broker is connected. Without it the pool goes on within its lease, and requests beyond it wait.
    pub is_connected: bool,
    /// Why a restarted broker does not take the pool back, if it said so.
    pub refused: Option<String>,
    /// The total time that the pool has spent giving memory back, unmapping included.
    pub returning: Duration,
    /// The total time that the pool has spent serving the queue with granted bytes, mapping included.
    pub granting: Duration,
}

debug_in_units!(struct BrokerLease { leased as bytes, guaranteed as bytes, limit as bytes, recalled as bytes, is_waiting, is_connected, refused, returning, granting });

/// The client of one pool.
#[derive(Debug)]
struct Leased {
    options: BrokerOptions,
    client: OnceLock<Client>,
    /// From when the client has joined until it starts.
    reader: Mutex<Option<Reader>>,
}

impl Leased {
    fn take_reader(&self) -> Option<Reader> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        reader.take()
    }

    fn figures(&self) -> BrokerLease {
        let client = self.client();
        let (returning, granting) = client.times();
        BrokerLease {
            leased: client.lease(),
            guaranteed: client.share().guaranteed,
            limit: client.limit(),
            recalled: client.owes(),
            is_waiting: client.is_waiting(),
            is_connected: client.is_connected(),
            refused: client.refused().map(|refused| refused.to_string()),
            returning,
            granting,
        }
    }

    fn client(&self) -> &Client {
        self.client.get().expect("the source has joined")
    }
}

impl CapacitySource for Leased {
    fn join(&self, pool: &Joining<'_>) -> Result<Option<u64>, Box<dyn Error + Send + Sync>> {
        let options = self.options.clone();
        let mut share = options.share;
        share.limit = share.limit.min(pool.capacity);
        let name = options.name.or(pool.name.map(Into::into));
        let config = ClientConfig {
            socket: options.socket,
            name: name.unwrap_or_else(|| "pool".into()),
            share,
            headroom: options.headroom,
        };
        let (client, reader) = match Client::join(config) {
            Ok(joined) => joined,
            Err(ClientError::Unreachable { .. }) if options.is_optional => return Ok(None),
            Err(error) => return Err(failure(&error).into()),
        };
        let limit = client.limit();
        *self.reader.lock().unwrap_or_else(PoisonError::into_inner) = Some(reader);
        self.client.set(client).expect("a source joins once");
        Ok(Some(limit))
    }

    fn start(&self, pool: BoundedPool) -> Result<(), Box<dyn Error + Send + Sync>> {
        let reader = self
            .take_reader()
            .expect("a source starts once, after it joined");
        let started = reader.start(Arc::new(PoolTenant(Mutex::new(pool))));
        Ok(started.map_err(|error| BrokerFailure::Unreachable {
            reason: format!("no thread for the broker's client: {error}"),
        })?)
    }

    fn need(&self, bytes: u64) {
        self.client().ask(bytes);
    }

    fn need_now(&self, bytes: u64) -> bool {
        self.client().ask_and_wait(bytes, PATIENCE)
    }

    fn satisfied(&self) {
        self.client().withdraw();
    }

    fn memory_returned(&self) {
        self.client().look_again();
    }

    fn ended(&self) {
        match self.take_reader() {
            Some(reader) => reader.abandon(),
            None => self.client().close(),
        }
    }

    fn trouble(&self) -> Option<String> {
        let is_connected = self.client().is_connected();
        (!is_connected).then(|| "without its broker".into())
    }
}

/// The pool, for the client, whose threads apply one at a time.
struct PoolTenant(Mutex<BoundedPool>);

impl Tenant for PoolTenant {
    fn apply(&self, bounds: Bounds) -> Option<Holding> {
        let mut pool = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pool.apply(bounds)
    }
}
