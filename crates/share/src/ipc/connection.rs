//! A connection to another process: the state machine of `protocol`, with a socket and a pool.

use super::error::IpcError;
use super::memory::{Account, Exportable, Mapped, OwnChunk, Rights, expect_own, sharing_of};
use super::protocol::{Event, Exchange, Limits, MOST_LABEL, MOST_OUTSTANDING, Message};
use futures::StreamExt;
use futures::channel::{mpsc, oneshot};
use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};
use weirpool::device::{Device, MemoryKind};
use weirpool::{Block, Pool, Stream};
use weirpool_device::plain::{Arc, Mutex, catch, thread};
use weirpool_wire as wire;

/// A connection to a process that exports blocks, imports them, or both.
///
/// Dropping it closes it, once the peer is told of each imported block that it was released: until then the connection
/// stays open, and refuses new blocks. Blocks that were sent stay with the peer, and their [`Sent`] is an error from
/// the closing on.
pub struct Connection {
    inner: Arc<Inner>,
}

struct Inner {
    pool: Pool,
    socket: wire::Connection,
    state: Mutex<State>,
    arrived: futures::lock::Mutex<mpsc::UnboundedReceiver<Result<Arrived, IpcError>>>,
}

struct State {
    exchange: Exchange,
    /// Blocks that the peer holds.
    sent: HashMap<u64, Outstanding>,
    /// `None` once the connection has ended.
    arrivals: Option<mpsc::UnboundedSender<Result<Arrived, IpcError>>>,
    outgoing: Option<mpsc::UnboundedSender<Outgoing>>,
    ended: Option<Arc<str>>,
    /// The handle was dropped: the connection ends with the last block of the peer.
    is_closing: bool,
    /// Messages that the peer has not taken, and blocks that could not be imported and were not received. A peer that
    /// reads nothing while it sends makes no more of them than this.
    unsent: usize,
    failed: usize,
}

/// The most messages for a peer that keeps to the protocol: for each block of either side one, the greeting and the end.
const MOST_UNSENT: usize = 2 * MOST_OUTSTANDING + 2;

/// The most failed imports that wait to be received.
const MOST_FAILED: usize = MOST_OUTSTANDING;

/// A block that the peer holds.
struct Outstanding {
    /// Its bytes count as long as the peer holds it.
    account: Account,
    done: oneshot::Sender<Result<(), IpcError>>,
}

/// A block that the peer sent.
struct Arrived {
    memory: Mapped,
    length: u64,
    label: String,
}

enum Outgoing {
    Message(Message),
    Offer {
        id: u64,
        message: Message,
        chunk: Arc<OwnChunk>,
    },
    /// The end, behind the messages queued before.
    Close,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.inner.state.lock();
        f.debug_struct("Connection")
            .field("peer", &self.inner.socket.peer())
            .field("outstanding", &state.exchange.outstanding())
            .field("ended", &state.ended)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Opens a connection for a pool over a socket, and greets the peer. Starts two threads.
    ///
    /// # Errors
    /// Returns [`IpcError::Unsupported`] if the pool's device cannot share memory, the device's error, or
    /// [`IpcError::Thread`].
    pub fn open(pool: &Pool, socket: wire::Connection) -> Result<Self, IpcError> {
        let device = &**pool.device();
        sharing_of(device)?;
        let limits = Limits {
            device: name_of(device)?,
            granularity: device.capabilities().granularity,
            memory: device.memory_info(MemoryKind::Device)?.total,
        };
        let (arrivals, arrived) = mpsc::unbounded();
        let (outgoing, messages) = mpsc::unbounded();
        let inner = Arc::new(Inner {
            pool: pool.clone(),
            socket,
            state: Mutex::new(State {
                exchange: Exchange::new(limits),
                sent: HashMap::new(),
                arrivals: Some(arrivals),
                outgoing: Some(outgoing),
                ended: None,
                is_closing: false,
                unsent: 0,
                failed: 0,
            }),
            arrived: futures::lock::Mutex::new(arrived),
        });
        // From here on, an error ends the threads.
        let connection = Self {
            inner: inner.clone(),
        };
        inner.say(Outgoing::Message(Exchange::greeting()));
        let writer = inner.clone();
        start("weirpool-ipc-send", move || writer.write(messages))?;
        start("weirpool-ipc-receive", move || Inner::read(&inner))?;
        Ok(connection)
    }

    /// Returns the process at the other end, as the kernel reports it.
    pub fn peer(&self) -> wire::Peer {
        self.inner.socket.peer()
    }

    /// Returns how many blocks the peer holds of this process, and how many this process holds of the peer.
    pub fn outstanding(&self) -> (usize, usize) {
        self.inner.state.lock().exchange.outstanding()
    }

    /// Sends a block to the peer, once all writes that were submitted before this call are complete.
    ///
    /// These are the uses that a [use that reads](weirpool::Stream::record_use) comes after. The future is ready when the block is on its way; the
    /// [`Sent`] that it returns is ready when the peer has released it. Until then, the two processes share the memory:
    /// a later write here can be seen there at any time. A block can be sent to any number of peers, and again.
    ///
    /// `label` is for the importer, up to [`MOST_LABEL`] bytes.
    ///
    /// # Errors
    /// Returns [`IpcError::Outstanding`] if the peer holds too many blocks, [`IpcError::LongLabel`],
    /// [`IpcError::Ended`], an error if the block is of another pool, or the device's error. Nothing is sent then.
    ///
    /// # Cancel safety
    /// Dropped before it is ready, it sends nothing.
    pub async fn send(&self, block: &Exportable, label: &str) -> Result<Sent, IpcError> {
        if label.len() > MOST_LABEL {
            let bytes = label.len();
            return Err(IpcError::LongLabel { bytes });
        }
        expect_own(&self.inner.pool, &block.stream())?;
        block.writes()?.await?;
        let chunk = block.chunk.upgrade();
        let chunk = chunk.expect("the block keeps it");
        self.inner.offer(chunk, block.requested(), label)
    }

    /// Waits for a block of the peer, for use in the order of `stream` and of all others, like any block of the pool.
    ///
    /// # Errors
    /// Returns an error if the stream belongs to another pool: no block is taken then. Returns
    /// [`IpcError::WrongDevice`] or the device's error if a block that the peer sent could not be imported: the peer is
    /// told, and the next call waits for the next block. Returns [`IpcError::Ended`] once the connection has ended and
    /// all blocks that had arrived are taken.
    ///
    /// # Cancel safety
    /// Dropped early, it takes nothing.
    #[track_caller]
    pub fn receive(&self, stream: &Stream) -> impl Future<Output = Result<Imported, IpcError>> {
        let location = Location::caller();
        async move {
            expect_own(&self.inner.pool, stream)?;
            let next = self.inner.arrived.lock().await.next().await;
            let Arrived {
                memory,
                length,
                label,
            } = match next {
                Some(Ok(arrived)) => arrived,
                Some(Err(failed)) => {
                    self.inner.state.lock().failed -= 1;
                    return Err(failed);
                }
                None => return Err(self.inner.end_reason()),
            };
            Ok(Imported {
                block: memory.into_block(stream, length, location),
                label,
            })
        }
    }

    /// Ends the connection now. Imported blocks stay valid, and the exporter is not told when they are released.
    pub fn close(&self) {
        self.inner.end(CLOSED);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.inner.state.lock().is_closing = true;
        // A receive that was forgotten keeps the lock, and the blocks.
        if let Some(mut arrived) = self.inner.arrived.try_lock() {
            end_arrivals(&mut arrived);
        }
        self.inner.close_if_over();
    }
}

const CLOSED: &str = "this process closed it";

/// Drops the blocks that arrived and will not be received. Sending fails from then on.
fn end_arrivals<T>(arrived: &mut mpsc::UnboundedReceiver<T>) {
    arrived.close();
    loop {
        match arrived.try_recv() {
            Ok(block) => drop(block),
            Err(mpsc::TryRecvError::Closed) => return,
            // The reader is between the two steps of a send.
            Err(mpsc::TryRecvError::Empty) => thread::yield_now(),
        }
    }
}

fn start(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), IpcError> {
    let thread = thread::Builder::new().name(name.into());
    let started = thread.spawn(run).map(drop);
    started.map_err(|error| IpcError::Thread {
        reason: error.to_string(),
    })
}

/// Returns the id of the physical device, in hexadecimal digits.
pub(super) fn name_of(device: &dyn Device) -> Result<String, IpcError> {
    let id = device.uuid().ok_or_else(|| IpcError::Unsupported {
        device: device.describe(),
    })?;
    Ok(id.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Inner {
    /// Queues something for the writer, unless the connection has ended.
    fn say(&self, outgoing: Outgoing) {
        let mut state = self.state.lock();
        state.unsent += 1;
        if let Some(queue) = &state.outgoing {
            let _ = queue.unbounded_send(outgoing);
        }
    }

    /// Ends a connection whose handle was dropped, behind all messages, if no block of the peer is held.
    fn close_if_over(&self) {
        let is_over = {
            let state = self.state.lock();
            state.is_closing && state.exchange.outstanding().1 == 0
        };
        if is_over {
            self.say(Outgoing::Close);
        }
    }

    fn end_reason(&self) -> IpcError {
        let reason = self.state.lock().ended.clone();
        IpcError::Ended {
            reason: reason.unwrap_or_else(|| CLOSED.into()),
        }
    }

    /// Ends the connection. The first reason stays.
    fn end(&self, reason: impl fmt::Display) {
        let (sent, arrivals, outgoing) = {
            let mut state = self.state.lock();
            if state.ended.is_none() {
                state.ended = Some(reason.to_string().into());
            }
            let sent = std::mem::take(&mut state.sent);
            (sent, state.arrivals.take(), state.outgoing.take())
        };
        self.socket.shutdown();
        // Outside the lock: these wake futures, and end charges.
        catch(|| drop(arrivals));
        drop(outgoing);
        let error = self.end_reason();
        for outstanding in sent.into_values() {
            drop(outstanding.account);
            catch(|| drop(outstanding.done.send(Err(error.clone()))));
        }
    }

    fn offer(&self, chunk: Arc<OwnChunk>, length: u64, label: &str) -> Result<Sent, IpcError> {
        let (done, ended) = oneshot::channel();
        let mut state = self.state.lock();
        let state = &mut *state;
        let Some(queue) = &state.outgoing else {
            let reason = state.ended.clone();
            let reason = reason.unwrap_or_else(|| CLOSED.into());
            return Err(IpcError::Ended { reason });
        };
        let offer = state.exchange.offer(chunk.bytes, length, label);
        let (id, message) = offer.ok_or(IpcError::Outstanding)?;
        let account = chunk.account();
        state.sent.insert(id, Outstanding { account, done });
        state.unsent += 1;
        let _ = queue.unbounded_send(Outgoing::Offer { id, message, chunk });
        Ok(Sent(ended))
    }

    /// Sends until the connection ends. A peer that does not read holds this thread and no other.
    fn write(&self, mut messages: mpsc::UnboundedReceiver<Outgoing>) {
        while let Some(outgoing) = futures::executor::block_on(messages.next()) {
            let sent = match outgoing {
                Outgoing::Close => return self.end(CLOSED),
                Outgoing::Message(message) => self.socket.send(&message, &[]),
                Outgoing::Offer { id, message, chunk } => {
                    let exported = chunk.export();
                    drop(chunk);
                    match exported {
                        Ok(descriptor) => self.socket.send(&message, &[descriptor.as_fd()]),
                        Err(error) => {
                            self.withdraw(id, error);
                            Ok(())
                        }
                    }
                }
            };
            if let Err(error) = sent {
                return self.end(error);
            }
            self.state.lock().unsent -= 1;
        }
    }

    /// Takes an offer back that could not be sent.
    fn withdraw(&self, id: u64, error: IpcError) {
        let outstanding = {
            let mut state = self.state.lock();
            state.exchange.withdraw(id);
            state.sent.remove(&id)
        };
        if let Some(Outstanding { account, done }) = outstanding {
            drop(account);
            catch(|| drop(done.send(Err(error))));
        }
    }

    /// Receives until the connection ends.
    fn read(this: &Arc<Self>) {
        loop {
            let taken = match this.socket.receive::<Message>() {
                Ok((message, descriptors)) => Self::take(this, message, descriptors),
                Err(error) => Err(error.to_string()),
            };
            let taken = taken.and_then(|()| this.check_bounds());
            if let Err(reason) = taken {
                return this.end(reason);
            }
        }
    }

    /// Takes a message of the peer.
    fn take(this: &Arc<Self>, message: Message, descriptors: Vec<OwnedFd>) -> Result<(), String> {
        let event = {
            let mut state = this.state.lock();
            state.exchange.receive(message, descriptors.len())
        };
        match event.map_err(|violation| violation.to_string())? {
            Event::Greeted => {}
            Event::Offered {
                id,
                bytes,
                length,
                label,
            } => {
                let descriptor = descriptors.into_iter().next();
                let descriptor = descriptor.expect("the state machine counted it");
                this.import(id, (bytes, length), label, descriptor);
            }
            Event::Misplaced { device, answer } => {
                let own = name_of(&**this.pool.device()).unwrap_or_default();
                this.say(Outgoing::Message(answer));
                this.arrive(Err(IpcError::WrongDevice {
                    theirs: device,
                    own,
                }));
            }
            Event::Ended { id, refused } => {
                let outstanding = this.state.lock().sent.remove(&id);
                if let Some(Outstanding { account, done }) = outstanding {
                    drop(account);
                    let result = match refused {
                        Some(reason) => Err(IpcError::Refused { reason }),
                        None => Ok(()),
                    };
                    catch(|| drop(done.send(result)));
                }
            }
        }
        Ok(())
    }

    /// # Errors
    /// Returns why the connection ends: the peer sends, and does not take the answers, or this process does not receive
    /// what could not be imported.
    fn check_bounds(&self) -> Result<(), String> {
        let state = self.state.lock();
        if state.unsent > MOST_UNSENT {
            return Err(format!("the peer has not read {MOST_UNSENT} messages"));
        }
        if state.failed > MOST_FAILED {
            return Err(format!(
                "the peer sent more than {MOST_FAILED} blocks that could not be imported and were not received"
            ));
        }
        Ok(())
    }

    fn import(
        self: &Arc<Self>,
        id: u64,
        (bytes, length): (u64, u64),
        label: String,
        descriptor: OwnedFd,
    ) {
        let connection = Arc::downgrade(self);
        let then = move || {
            if let Some(connection) = connection.upgrade() {
                let release = connection.state.lock().exchange.release(id);
                let _ = release.map(|message| connection.say(Outgoing::Message(message)));
                connection.close_if_over();
            }
        };
        if self.state.lock().is_closing {
            let reason = "the importer is closing the connection".to_owned();
            let refusal = self.state.lock().exchange.refuse(id, reason);
            let _ = refusal.map(|message| self.say(Outgoing::Message(message)));
            return self.close_if_over();
        }
        let origin = (Rights::ReadWrite, None);
        match Mapped::import(&self.pool, descriptor, bytes, origin, Box::new(then)) {
            Ok(memory) => self.arrive(Ok(Arrived {
                memory,
                length,
                label,
            })),
            Err(error) => {
                let refusal = {
                    let mut state = self.state.lock();
                    state.exchange.refuse(id, error.to_string())
                };
                let _ = refusal.map(|message| self.say(Outgoing::Message(message)));
                self.arrive(Err(error));
            }
        }
    }

    fn arrive(&self, arrived: Result<Arrived, IpcError>) {
        let queue = {
            let mut state = self.state.lock();
            state.failed += usize::from(arrived.is_err());
            state.arrivals.clone()
        };
        if let Some(queue) = queue {
            // It is released at once if the handle has been dropped since the offer was taken.
            catch(|| drop(queue.unbounded_send(arrived)));
        }
    }
}

/// A block on its way: the future of its release. Ready when the importer has released the block and its work is
/// complete.
///
/// Dropping it does not take the block back.
///
/// # Errors
/// Returns [`IpcError::Refused`] if the peer did not import the block, [`IpcError::Ended`] if the connection has ended
/// (a peer that lives may still use the block), or the device's error if the block could not be exported.
///
/// # Cancel safety
/// Dropping it stops waiting and has no other effect.
#[derive(Debug)]
#[must_use = "awaiting it tells when the peer has released the block"]
pub struct Sent(oneshot::Receiver<Result<(), IpcError>>);

impl Future for Sent {
    type Output = Result<(), IpcError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|result| {
            let ended = || IpcError::Ended {
                reason: CLOSED.into(),
            };
            result.unwrap_or_else(|_| Err(ended()))
        })
    }
}

/// A block of another process: a [`Block`] over its memory, for all uses that a block has. It gives out no `&mut Block`,
/// so that the [label](Self::label) always names its own memory.
///
/// Dropping it unmaps the memory here, once its work is complete, and tells the exporter. [`Block::size`] is the whole
/// chunk, [`Block::requested`] what the exporter asked for.
#[derive(Debug)]
#[must_use = "a block is released when it is dropped"]
pub struct Imported {
    block: Block,
    label: String,
}

impl Imported {
    /// Returns the exporter's label.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns the block.
    pub fn into_block(self) -> Block {
        self.block
    }
}

impl Deref for Imported {
    type Target = Block;

    fn deref(&self) -> &Block {
        &self.block
    }
}

super::writes::writes!(Imported);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_that_arrives_while_the_handle_is_dropped_is_not_queued() {
        let (arrivals, mut arrived) = mpsc::unbounded();
        let block = Arc::new(());
        arrivals.unbounded_send(block.clone()).unwrap();
        end_arrivals(&mut arrived);
        // The handle has seen that there is no more, and still has the lock.
        assert!(arrivals.unbounded_send(block.clone()).is_err());
        assert_eq!(Arc::strong_count(&block), 1);
    }

    #[test]
    fn end_of_arrivals_beside_a_sender_leaves_none() {
        for _ in 0..1000 {
            let (arrivals, mut arrived) = mpsc::unbounded();
            let block = Arc::new(());
            let sent = block.clone();
            let send = move || while arrivals.unbounded_send(sent.clone()).is_ok() {};
            let sender = std::thread::spawn(send);
            while arrived.try_recv().is_err() {}
            end_arrivals(&mut arrived);
            sender.join().unwrap();
            assert_eq!(Arc::strong_count(&block), 1);
        }
    }
}
