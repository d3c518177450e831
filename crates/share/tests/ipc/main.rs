//! Memory between processes, and between libraries, on the simulated device.
//!
//! | file | about |
//! |---|---|
//! | `blocks` | exportable and imported blocks: order, life, accounts, faults; both ends in this process |
//! | `dlpack` | blocks as tensors of other libraries, and their tensors as blocks; with the feature `dlpack` |
//! | `dropped` | futures that are dropped or forgotten after every number of polls |
//! | `fuzz` | the protocol as a state machine, with random actions and frames |
//! | `hostile` | peers that break the protocol, and descriptors that are no chunks |
//! | `pointers` | pools of the driver, and blocks by pointer data |
//! | `processes` | real processes: this program again, which may be killed or stopped |

#![cfg(target_os = "linux")]

#[path = "../../../../tests/common/mod.rs"]
mod common;

mod blocks;
#[cfg(feature = "dlpack")]
mod dlpack;
mod dropped;
mod fuzz;
mod hostile;
mod pointers;
mod processes;

use common::{MIB, builder, eventually, manual, stream, us, use_block};
use futures::executor::block_on;
use weirpool::device::sim::{Call, SimDevice, SimStream};
use weirpool::{Pool, Stream};
use weirpool_share::ipc::{AllocateExportable, Connection, Exportable, Imported, IpcError, wire};

/// The size of an exportable block in these tests: the device's granularity.
const CHUNK: u64 = 2 * MIB;

/// A device with a pool and a stream, as one process has them.
struct Side {
    device: SimDevice,
    pool: Pool,
    work: SimStream,
    stream: Stream,
}

impl Side {
    fn new(device: SimDevice) -> Self {
        let pool = builder(&device, 16 * MIB).build().unwrap();
        let (work, stream) = stream(&device, &pool);
        Self {
            device,
            pool,
            work,
            stream,
        }
    }

    fn exportable(&self, bytes: u64) -> Exportable {
        let block = self.pool.try_allocate_exportable(&self.stream, bytes);
        // The device fills it with zeros.
        self.device.advance_to_end();
        block.unwrap()
    }

    fn open(&self, socket: wire::Connection) -> Connection {
        Connection::open(&self.pool, socket).unwrap()
    }

    fn receive(&self, connection: &Connection) -> Result<Imported, IpcError> {
        block_on(connection.receive(&self.stream))
    }

    /// Bytes that are charged for exportable blocks, and bytes of blocks of either kind.
    fn shared(&self) -> (u64, u64) {
        let figures = self.pool.inspect().statistics();
        (figures.charged, figures.foreign)
    }

    /// Waits until no chunk of its own or of others is left.
    fn settle(&self) {
        eventually(|| self.shared() == (0, 0));
        let reserved = self.pool.inspect().statistics().reserved.current;
        eventually(|| self.device.counters().physical_in_use == reserved);
        self.pool.inspect().check_conserved().unwrap();
    }
}

/// Two sides in this process, with devices of their own on a clock that tests move, and a connection between them.
struct Pair {
    exporter: Side,
    importer: Side,
    out: Connection,
    into: Connection,
}

impl Pair {
    fn new() -> Self {
        let (exporter, importer) = (Side::new(manual()), Side::new(manual()));
        let (out, into) = wire::Connection::pair().unwrap();
        let (out, into) = (exporter.open(out), importer.open(into));
        Self {
            exporter,
            importer,
            out,
            into,
        }
    }

    /// Returns once the importer has taken all messages that the exporter sent: a block goes the other way and back,
    /// behind them.
    fn hear(&self) {
        let block = self.importer.exportable(CHUNK);
        let sent = block_on(self.into.send(&block, "")).unwrap();
        drop(self.exporter.receive(&self.out).unwrap());
        block_on(sent).unwrap();
    }
}

fn calls(device: &SimDevice, call: Call) -> u64 {
    device.counters().calls(call)
}
