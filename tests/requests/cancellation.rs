//! Every future of the pool, ended in every way after every number of polls: dropped, forgotten, moved to another task
//! or runtime, woken by wakers that panic or call back, and dropped inside the drop of its own waker.
//!
//! Whatever happens to the subject, a second request, which is polled only when it is woken, is served; every byte
//! comes back, except what a forgotten future was granted; and the ordering checker finds no violation.

use crate::common::*;
use http_body::{Body, Frame};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use weirpool::device::sim::{Operation, SimDevice, SimStream};
use weirpool::{AllocError, Block, Pool, Stream, Tag, Upstream};
use weirpool_compat::Scope;
use weirpool_tower::{HttpReserveLayer, Need, RefusalLayer, ReserveLayer};

const CAPACITY: u64 = 16 * MIB;
/// The bytes that keep others waiting.
const OBSTACLE: u64 = 14 * MIB;
/// The most bytes that a subject is granted.
const SUBJECT: u64 = 8 * MIB;
/// The bytes of the request that is served whatever happens to the subject.
const BYSTANDER: u64 = 6 * MIB;
/// More than any subject takes until it is ready.
const ROUNDS: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Memory {
    Virtual,
    Plain,
    Managed,
}

#[derive(Clone, Copy, Debug)]
struct Setting {
    memory: Memory,
    has_reclaimer: bool,
}

impl Setting {
    fn all() -> impl Iterator<Item = Self> {
        let kinds = [Memory::Virtual, Memory::Plain, Memory::Managed];
        kinds.into_iter().flat_map(|memory| {
            [false, true].map(|has_reclaimer| Self {
                memory,
                has_reclaimer,
            })
        })
    }
}

type Subject = Pin<Box<dyn Future<Output = ()> + Send>>;
type Start = fn(&mut World) -> Subject;

/// A body whose only frame is computed by a future.
struct OneFrame(Option<Subject>);

impl Body for OneFrame {
    type Data = &'static [u8];
    type Error = AllocError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<&'static [u8]>, AllocError>>> {
        let Some(frame) = &mut self.0 else {
            return Poll::Ready(None);
        };
        std::task::ready!(frame.as_mut().poll(context));
        self.0 = None;
        Poll::Ready(Some(Ok(Frame::data(b"frame"))))
    }
}

/// A pool in which an obstacle keeps requests waiting until the second round.
struct World {
    device: SimDevice,
    pool: Pool,
    work: SimStream,
    stream: Stream,
    other: Stream,
    obstacle: Option<Block>,
    /// Freed by a subject, behind work.
    spare: Option<Block>,
    reclaimer: Option<Woken<'static, ()>>,
    bystander: Option<Woken<'static, Block>>,
    round: usize,
}

impl World {
    fn new(setting: Setting) -> Self {
        let device = sized(64 * MIB, setting.memory == Memory::Virtual);
        let builder = builder(&device, CAPACITY).tuning(|tuning| tuning.reuse = only_host_waits());
        let pool = match setting.memory {
            Memory::Managed => builder.upstream(Upstream::Managed).build(),
            Memory::Virtual | Memory::Plain => builder.build(),
        };
        let pool = pool.unwrap();
        let (work, stream) = stream(&device, &pool);
        let (_, other) = crate::common::stream(&device, &pool);
        let obstacle = pool.try_allocate(&stream, OBSTACLE).unwrap();
        let spare = pool.try_allocate(&stream, MIB).unwrap();
        let for_pool = pool.clone();
        let reclaimer = async move { for_pool.maintain().reclaimer().await };
        Self {
            reclaimer: setting.has_reclaimer.then(|| Woken::new(reclaimer)),
            obstacle: Some(obstacle),
            spare: Some(spare),
            bystander: None,
            round: 0,
            device,
            pool,
            work,
            stream,
            other,
        }
    }

    /// Joins the queue behind the subject.
    fn start_bystander(&mut self) {
        let request = self.pool.allocate_owned(&self.other, BYSTANDER);
        self.bystander = Some(Woken::new(async { request.await.unwrap() }));
        assert!(self.bystander.as_ref().unwrap().is_waiting());
    }

    /// Lets the device move on, and then the tasks that were woken.
    fn next_round(&mut self) {
        self.round += 1;
        if self.round == 2 {
            let obstacle = self.obstacle.take().unwrap();
            use_block(&self.work, &obstacle, us(30));
            drop(obstacle);
        }
        self.advance(us(10));
    }

    fn advance(&mut self, time: Duration) {
        self.device.advance(time);
        self.settle();
    }

    fn settle(&mut self) {
        loop {
            let mut polls = 0;
            polls += settle(self.reclaimer.as_mut_slice());
            polls += settle(self.bystander.as_mut_slice());
            if polls == 0 {
                return;
            }
        }
    }

    /// Lets the remaining rounds pass, and checks that all is well. `lost` is the most that a forgotten future kept.
    #[track_caller]
    fn end(mut self, lost: u64) {
        while self.round < ROUNDS {
            self.next_round();
        }
        // An alarm goes past a head that does not answer.
        for _ in 0..20 {
            self.advance(us(1000));
        }
        let bystander = self.bystander.take().unwrap();
        assert!(!bystander.is_waiting(), "the other request is not served");
        drop(bystander.output);
        drop(self.spare.take());
        self.advance(us(1000));
        self.pool.inspect().check().unwrap();
        let used = self.pool.inspect().statistics().used.current;
        assert!(used <= lost, "{used} of {lost} bytes are lost");
        if lost == 0 {
            self.pool.inspect().check_conserved().unwrap();
            let whole = self.pool.try_allocate(&self.stream, CAPACITY);
            drop(whole.expect("all of the pool is granted again"));
        }
        drop(self.reclaimer.take());
        drop(self.pool);
        self.device.assert_ordered();
    }
}

/// The futures of the public surface. Each is pending at first, if there is a case in which it is.
const SUBJECTS: &[(&str, Start)] = &[
    ("allocate", |world| {
        let (pool, stream) = (world.pool.clone(), world.stream.clone());
        Box::pin(async move {
            let request = pool.allocate(&stream, SUBJECT).zeroed().priority(1);
            drop(request.await);
        })
    }),
    ("allocate_owned", |world| {
        let request = world.pool.allocate_owned(&world.other, SUBJECT);
        let request = request.tag(Tag::new("cancelled")).timeout(us(100_000));
        Box::pin(async { drop(request.await) })
    }),
    ("allocate with a timeout that ends", |world| {
        let request = world.pool.allocate_owned(&world.other, SUBJECT);
        let request = request.timeout(us(15));
        Box::pin(async { drop(request.await) })
    }),
    ("allocate_many", |world| {
        let (pool, stream) = (world.pool.clone(), world.other.clone());
        Box::pin(async move {
            drop(
                pool.allocate_many(&stream, [SUBJECT / 2, SUBJECT / 2])
                    .await,
            )
        })
    }),
    ("reserve", |world| {
        let pool = world.pool.clone();
        Box::pin(async move { drop(pool.reserve(SUBJECT).await) })
    }),
    ("reserve_many", |world| {
        let pool = world.pool.clone();
        Box::pin(async move { drop(pool.reserve_many([SUBJECT / 2, SUBJECT / 2]).await) })
    }),
    ("allocate in a reservation's scope", |world| {
        let (pool, stream) = (world.pool.clone(), world.stream.clone());
        Box::pin(async move {
            let reservation = pool.reserve(SUBJECT / 2).await.unwrap();
            let first = reservation.allocate(&stream, SUBJECT / 2).unwrap();
            let second = reservation.scope(async {
                let freed = async { drop(first) };
                let waiting = pool.allocate(&stream, SUBJECT / 2);
                futures::future::join(waiting, freed).await.0
            });
            drop(second.await);
        })
    }),
    ("grow a reservation", |world| {
        let pool = world.pool.clone();
        Box::pin(async move {
            let mut reservation = pool.reserve(512).await.unwrap();
            let _ = reservation.grow(SUBJECT - MIB).await;
        })
    }),
    ("grow a block", |world| {
        let (pool, stream) = (world.pool.clone(), world.stream.clone());
        Box::pin(async move {
            let room = SUBJECT - MIB;
            if let Ok(mut block) = pool.allocate(&stream, 512).room(room).await {
                let _ = block.grow(room - MIB).await;
            }
        })
    }),
    ("deallocate", |world| {
        let block = world.spare.take().unwrap();
        use_block(&world.work, &block, us(25));
        let deallocation = block.deallocate();
        Box::pin(async { deallocation.await.unwrap() })
    }),
    ("event", |world| {
        run(&world.work, us(25));
        let event = world.stream.event().unwrap();
        Box::pin(async { event.await.unwrap() })
    }),
    ("synchronize", |world| {
        run(&world.work, us(25));
        let synchronized = world.stream.synchronize();
        Box::pin(async { synchronized.await.unwrap() })
    }),
    ("task", |world| {
        let work = Operation::new(us(25));
        let submit = |stream: &SimStream, ()| stream.submit(work);
        let task = world.stream.submit((), submit).unwrap();
        Box::pin(async { task.await.unwrap() })
    }),
    ("host function", |world| {
        run(&world.work, us(25));
        let value = world.spare.take();
        let task = world.stream.run(|| 7).unwrap();
        Box::pin(async move {
            assert_eq!(task.await, Ok(7));
            drop(value);
        })
    }),
    // On a stream of its own: a forgotten one holds it for ever.
    ("host task", |world| {
        let stream = world.pool.create_stream().unwrap();
        let work = Operation::new(us(25));
        let submit = |stream: &SimStream, ()| stream.submit(work);
        drop(stream.submit((), submit).unwrap());
        let request = world.pool.allocate_owned(&world.other, SUBJECT);
        let task = stream.spawn(async { drop(request.await) }).unwrap();
        Box::pin(async move {
            task.await.unwrap();
            stream.synchronize().await.unwrap();
        })
    }),
    ("write and read", |world| {
        let (pool, stream) = (world.pool.clone(), world.stream.clone());
        Box::pin(async move {
            let numbers: Vec<u32> = (0..1 << 14).collect();
            let buffer = pool.buffer::<u32>(&stream, numbers.len()).await;
            let mut buffer = buffer.unwrap();
            buffer.write(&stream, &numbers).await.unwrap();
            let mut read = vec![0; numbers.len()];
            buffer.read_into(&stream, &mut read).await.unwrap();
            assert_eq!(read, numbers);
            assert_eq!(buffer.read(&stream).await.unwrap(), numbers);
        })
    }),
    ("allocate where it evicts", |world| {
        let block = world.spare.take().unwrap();
        use_block(&world.work, &block, us(25));
        let cache = block.into_evictable();
        // Twice the free bytes beside the evictable block.
        let request = world.pool.allocate_owned(&world.other, 2 * MIB);
        Box::pin(async move {
            drop(request.await);
            drop(cache);
        })
    }),
    ("copy to another block", |world| {
        let from = world.spare.take().unwrap();
        let (pool, stream) = (world.pool.clone(), world.stream.clone());
        use_block(&world.work, &from, us(25));
        Box::pin(async move {
            let mut to = pool.allocate(&stream, MIB).await.unwrap();
            let copied = from.copy_to(0..MIB, &mut to, 0, &stream).unwrap();
            copied.await.unwrap();
        })
    }),
    ("copy to the host", |world| {
        let block = world.spare.take().unwrap();
        use_block(&world.work, &block, us(25));
        let bytes = block.download(&world.stream, 0..MIB).unwrap();
        Box::pin(async { drop(bytes.await.unwrap()) })
    }),
    // On a stream of its own: others must not be captured.
    ("launch of a graph", |world| {
        let stream = world.pool.create_stream().unwrap();
        let pool = world.pool.clone();
        Box::pin(async move {
            let memory = pool.graph_memory();
            memory
                .give(pool.reserve(SUBJECT / 2).await.unwrap())
                .unwrap();
            let capture = memory.capture(&stream).unwrap();
            let block = pool.allocate(&stream, SUBJECT / 2).await.unwrap();
            let work = Operation::new(us(25)).writes(block.address(), block.size());
            let submit = |stream: &SimStream, ()| stream.submit(work);
            drop(stream.submit((), submit).unwrap());
            let graph = capture.end().unwrap();
            graph.launch(&stream).unwrap();
            drop(graph);
            stream.synchronize().await.unwrap();
        })
    }),
    ("host access", |world| {
        let (work, stream) = (world.work.clone(), world.stream.clone());
        let mut block = world.spare.take().unwrap();
        Box::pin(async move {
            use_block(&work, &block, us(25));
            drop(block.host().await); // refused unless the host sees the memory
            drop(stream);
        })
    }),
    ("allocate in the scope of a current pool", |world| {
        let (pool, stream) = (world.pool.clone(), world.stream.clone());
        let scope = Scope::pool(&pool);
        Box::pin(scope.run(async move { drop(pool.allocate(&stream, SUBJECT).await) }))
    }),
    ("request of a service that reserves", |world| {
        use tower::{ServiceBuilder, ServiceExt, service_fn};
        let (pool, stream) = (world.pool.clone(), world.stream.clone());
        let service = ServiceBuilder::new()
            .layer(RefusalLayer::new(|_: AllocError| 0))
            .layer(ReserveLayer::new(&pool, |bytes: &u64| *bytes))
            .service(service_fn(move |bytes: u64| {
                let (pool, stream) = (pool.clone(), stream.clone());
                async move { Ok::<_, AllocError>(pool.allocate(&stream, bytes).await?.size()) }
            }));
        Box::pin(async move { drop(service.oneshot(SUBJECT).await) })
    }),
    ("request over HTTP, to the end of its body", |world| {
        use http::{Request, Response};
        use tower::{Layer, ServiceExt, service_fn};
        let (pool, stream) = (world.pool.clone(), world.stream.clone());
        let need = async |request: Request<()>| Ok::<_, AllocError>((Need::new(SUBJECT), request));
        let service = HttpReserveLayer::new(&pool, need).layer(service_fn(move |_| {
            let (pool, stream) = (pool.clone(), stream.clone());
            let frame = async move {
                let block = pool.allocate(&stream, SUBJECT).await.unwrap();
                stream.synchronize().await.unwrap();
                drop(block);
            };
            let body = OneFrame(Some(Box::pin(frame)));
            std::future::ready(Ok::<_, AllocError>(Response::new(body)))
        }));
        Box::pin(async move {
            if let Ok(response) = service.oneshot(Request::new(())).await {
                let mut body = Box::pin(response.into_body());
                let mut frame = std::future::poll_fn(|context| body.as_mut().poll_frame(context));
                assert!((&mut frame).await.is_some() && frame.await.is_none());
            }
        })
    }),
    ("sleep on the device's clock", |world| {
        Box::pin(world.device.sleep(us(25)))
    }),
    ("drain", |world| {
        let drain = world.pool.drain();
        world.spare = None;
        Box::pin(async { drop(drain.await) })
    }),
    ("reclaimer", |world| {
        Box::pin(world.pool.maintain().reclaimer())
    }),
];

/// Runs the check for every future in every setting, and names those that fail.
fn for_each_subject(check: impl Fn(&str, Setting, Start)) {
    let mut failed = Vec::new();
    for setting in Setting::all() {
        for &(name, start) in SUBJECTS {
            let check = AssertUnwindSafe(|| check(name, setting, start));
            if catch_unwind(check).is_err() {
                failed.push(format!("{name} in {setting:?}"));
            }
        }
    }
    assert!(failed.is_empty(), "failed: {failed:#?}");
}

/// Polls the subject `polls` times, one poll in a round, and returns it if it is still pending. The other request joins
/// the queue after the first poll.
fn polled(world: &mut World, start: Start, polls: usize) -> Option<Subject> {
    let mut subject = Some(start(world));
    for poll in 0..polls {
        if let Some(pending) = &mut subject
            && poll_with(pending, Waker::noop()).is_ready()
        {
            subject = None;
        }
        if poll == 0 {
            world.start_bystander();
        }
        world.next_round();
    }
    if polls == 0 {
        world.start_bystander();
    }
    subject
}

#[test]
fn future_dropped_after_any_number_of_polls_changes_nothing_for_others() {
    for_each_subject(|_, setting, start| {
        for polls in 0..ROUNDS {
            let mut world = World::new(setting);
            drop(polled(&mut world, start, polls));
            world.end(0);
        }
    });
}

#[test]
fn forgotten_future_keeps_at_most_what_it_was_granted() {
    for_each_subject(|_, setting, start| {
        for polls in 0..ROUNDS {
            let mut world = World::new(setting);
            std::mem::forget(polled(&mut world, start, polls));
            world.end(SUBJECT + MIB);
        }
    });
}

#[test]
fn future_moved_to_another_task_is_woken_there() {
    for_each_subject(|name, setting, start| {
        for polls in 0..ROUNDS {
            let mut world = World::new(setting);
            let Some(subject) = polled(&mut world, start, polls) else {
                break;
            };
            let mut moved = [Woken::new(subject)];
            for _ in 0..2 * ROUNDS {
                world.next_round();
                settle(&mut moved);
            }
            let never_ends = name == "reclaimer" || name == "drain";
            assert!(never_ends || !moved[0].is_waiting(), "{name} is not woken");
            drop(moved);
            world.end(0);
        }
    });
}

#[test]
fn panicking_waker_of_a_future_harms_no_other() {
    for_each_subject(|_, setting, start| {
        for polls in 1..4 {
            let mut world = World::new(setting);
            let Some(subject) = polled(&mut world, start, polls) else {
                break;
            };
            let panicking = Woken::panicking(subject);
            for _ in 0..ROUNDS {
                world.next_round();
            }
            drop(panicking);
            world.end(0);
        }
    });
}

/// A waker that uses the pool, drops one waiting request and polls another.
struct CallsBack {
    pool: Pool,
    stream: Stream,
    requests: Mutex<Vec<Subject>>,
    count: AtomicUsize,
}

impl Wake for CallsBack {
    fn wake(self: Arc<Self>) {
        self.count.fetch_add(1, Ordering::SeqCst);
        drop(self.pool.try_allocate(&self.stream, 512));
        let _ = self.stream.seal();
        let _ = self.pool.maintain().reap();
        let _ = self.pool.inspect().statistics();
        let request = self.requests.lock().unwrap().pop();
        drop(request);
        let request = self.requests.lock().unwrap().pop();
        if let Some(mut request) = request
            && poll(&mut request).is_pending()
        {
            self.requests.lock().unwrap().push(request);
        }
    }
}

#[test]
fn waker_may_call_the_pool_and_end_other_requests() {
    let woken = AtomicUsize::new(0);
    for_each_subject(|_, setting, start| {
        let mut world = World::new(setting);
        let mut subject = start(&mut world);
        let request = || {
            let request = world.pool.allocate_owned(&world.other, MIB);
            let mut request: Subject = Box::pin(async { drop(request.await) });
            let _ = poll(&mut request);
            request
        };
        let calls_back = Arc::new(CallsBack {
            requests: Mutex::new((0..4).map(|_| request()).collect()),
            pool: world.pool.clone(),
            stream: world.stream.clone(),
            count: AtomicUsize::new(0),
        });
        let waker = Waker::from(calls_back.clone());
        let mut is_pending = poll_with(&mut subject, &waker).is_pending();
        world.start_bystander();
        for _ in 0..ROUNDS {
            world.next_round();
            if is_pending && calls_back.count.swap(0, Ordering::SeqCst) > 0 {
                woken.fetch_add(1, Ordering::SeqCst);
                is_pending = poll_with(&mut subject, &waker).is_pending();
            }
        }
        drop(subject);
        calls_back.requests.lock().unwrap().clear();
        world.end(0);
    });
    assert!(woken.into_inner() > 50, "the wakers are called");
}

/// Holds a future, which the last clone of a waker drops or polls when it is dropped.
struct DropsItsFuture {
    future: Arc<Mutex<Option<Subject>>>,
    polls_first: bool,
    drops: Arc<AtomicUsize>,
}

impl Wake for DropsItsFuture {
    fn wake(self: Arc<Self>) {}
}

impl Drop for DropsItsFuture {
    fn drop(&mut self) {
        // The slot is empty while the future itself is polled.
        let future = self.future.lock().unwrap().take();
        let Some(mut future) = future else {
            return;
        };
        self.drops.fetch_add(1, Ordering::SeqCst);
        if self.polls_first {
            let _ = poll(&mut future);
        }
    }
}

#[test]
fn future_may_be_dropped_inside_the_drop_of_its_own_waker() {
    let drops = Arc::new(AtomicUsize::new(0));
    for_each_subject(|_, setting, start| {
        for polls in 0..4 {
            for polls_first in [false, true] {
                let mut world = World::new(setting);
                let Some(mut subject) = polled(&mut world, start, polls) else {
                    break;
                };
                let slot = Arc::new(Mutex::new(None));
                let waker = Waker::from(Arc::new(DropsItsFuture {
                    future: slot.clone(),
                    polls_first,
                    drops: drops.clone(),
                }));
                let polled = subject.as_mut().poll(&mut Context::from_waker(&waker));
                if polled == Poll::Ready(()) {
                    drop(subject);
                } else {
                    *slot.lock().unwrap() = Some(subject);
                }
                // From here on only the pool holds the waker.
                drop(waker);
                for _ in 0..ROUNDS {
                    world.next_round();
                }
                let kept = slot.lock().unwrap().take();
                drop(kept);
                world.end(0);
            }
        }
    });
    assert!(drops.load(Ordering::SeqCst) > 200, "the wakers are dropped");
}

/// A future that is first polled by a runtime that then ends is served on another.
#[test]
fn future_moves_to_another_runtime_when_its_own_ends() {
    use tokio::runtime::Builder;
    type StartHere = fn(&Pool, &Stream) -> Subject;
    let subjects: [StartHere; 3] = [
        |pool, stream| {
            let request = pool.allocate_owned(stream, SUBJECT);
            Box::pin(async { drop(request.await.unwrap()) })
        },
        |pool, stream| {
            let (pool, stream) = (pool.clone(), stream.clone());
            Box::pin(async move {
                drop(pool.allocate_many(&stream, [MIB, MIB]).await.unwrap());
            })
        },
        |pool, _| {
            let pool = pool.clone();
            Box::pin(async move { drop(pool.reserve(SUBJECT).await.unwrap()) })
        },
    ];
    for start in subjects {
        for polls in 1..4 {
            let device = SimDevice::builder().memory(64 * MIB).build();
            let pool = pool(&device, CAPACITY);
            let (work, stream) = stream(&device, &pool);
            let (_, other) = crate::common::stream(&device, &pool);
            let obstacle = pool.try_allocate(&stream, CAPACITY).unwrap();
            let mut subject = start(&pool, &other);
            let first = Builder::new_current_thread().enable_all().build().unwrap();
            first.block_on(async {
                for _ in 0..polls {
                    let poll_once =
                        |context: &mut Context<'_>| Poll::Ready(subject.as_mut().poll(context));
                    assert!(std::future::poll_fn(poll_once).await.is_pending());
                    tokio::task::yield_now().await;
                }
            });
            drop(first);
            let mut second = Builder::new_multi_thread();
            let second = second.worker_threads(2).enable_all().build().unwrap();
            let moved = second.spawn(subject);
            use_block(&work, &obstacle, us(500));
            drop(obstacle);
            second.block_on(moved).unwrap();
        }
    }
}
