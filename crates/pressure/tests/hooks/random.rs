//! Random requests with hooks and without, against an oracle: the list of the requests that wait, in their order.
//!
//! Tasks are polled only when they are woken, as executors do, and now and then besides. At each moment of rest, the
//! head of the queue and the first request at each limit have been told that they stall, once; no other one is told.

use super::*;
use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;

/// Small enough for every tag to be throttled, and for the queue to be blocked.
const CAPACITY: u64 = 8 * MIB;
const TASKS: usize = 10;

/// Memory that a task was granted. Its owner only drops it.
type Held = Box<dyn Send>;

/// The queue in which a request stalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Queue,
    Limit,
}

#[derive(Clone, Debug)]
enum Kind {
    /// Asks for its stall, which was told there.
    Watching(Rc<RefCell<Vec<Place>>>),
    /// Asks the hook.
    Hooked,
    /// Does not ask.
    Plain,
    /// Is polled once.
    Dead,
}

struct Task<'a> {
    kind: Kind,
    /// Its size is its name.
    bytes: u64,
    future: Woken<'a, Result<Held, AllocError>>,
}

/// Moves cached blocks away, more or less well.
#[derive(Clone)]
struct Evicting {
    device: SimDevice,
    cache: Arc<Mutex<Vec<Held>>>,
    asked: Arc<Mutex<Vec<u64>>>,
    at_work: Arc<AtomicUsize>,
}

#[async_trait]
impl PressureHook for Evicting {
    async fn relieve(&self, shortfall: Shortfall) -> Answer {
        assert_eq!(
            self.at_work.fetch_add(1, Ordering::SeqCst),
            0,
            "one at a time"
        );
        let _at_work = AtWork(self.at_work.clone());
        self.asked.lock().unwrap().push(shortfall.requested);
        for times in 0..shortfall.requested / 512 % 4 {
            self.device.sleep(us(40 * times)).await;
            let evicted = self.cache.lock().unwrap().pop();
            drop(evicted);
        }
        match shortfall.requested / 512 % 7 {
            0 => std::panic::resume_unwind(Box::new("a hook of a test")),
            1 => std::future::pending().await,
            2 => Err("nothing to evict".into()),
            _ => Ok(()),
        }
    }
}

/// Returns where a request stands that was told that it stalls.
///
/// # Panics
/// When it is not the first there.
fn place_of_first(pool: &Pool, bytes: u64) -> Place {
    let waiting = pool.inspect().waiting_requests(usize::MAX);
    let own = waiting.iter().find(|waiting| waiting.requested == bytes);
    let own = own.expect("it was told while it waits");
    let is_beside = |other: &&WaitingRequest| match own.is_over_limit {
        true => other.is_over_limit && other.tag == own.tag,
        false => !other.is_over_limit,
    };
    let first = waiting.iter().find(is_beside).unwrap();
    assert_eq!(first.requested, bytes, "it is not the first: {waiting:?}");
    match own.is_over_limit {
        true => Place::Limit,
        false => Place::Queue,
    }
}

/// Polls a request, and notes where it was told that it stalls.
macro_rules! watched {
    ($request:expr, $pool:expr, $bytes:expr, $told:expr, $stall_first:expr) => {{
        let (mut request, pool, told) = ($request, $pool, $told);
        let (bytes, stall_first) = ($bytes, $stall_first);
        Woken::new(async move {
            let granted = poll_fn(|context| {
                for is_stall in [stall_first, !stall_first] {
                    if !is_stall {
                        if let Poll::Ready(granted) = Pin::new(&mut request).poll(context) {
                            return Poll::Ready(granted);
                        }
                    } else if let Poll::Ready(shortfall) =
                        Pin::new(&mut request).poll_stalled(context)
                    {
                        assert_eq!(shortfall.requested, bytes);
                        told.borrow_mut().push(place_of_first(pool, bytes));
                    }
                }
                Poll::Pending
            });
            granted.await.map(|granted| Box::new(granted) as Held)
        })
    }};
}

struct Run<'a> {
    random: fastrand::Rng,
    device: &'a SimDevice,
    pool: &'a Pool,
    streams: &'a [(weirpool::device::sim::SimStream, Stream); 3],
    tags: [Tag; 2],
    hook: Evicting,
    pressure: Pressure,
    tasks: Vec<Task<'a>>,
    held: Vec<Held>,
    number: u64,
    /// Whether the tasks of some requests never run again.
    dies: bool,
    tellings: usize,
}

impl<'a> Run<'a> {
    fn start(&mut self) {
        self.number += 1;
        let tag = match self.random.u8(..4) {
            0 => Some(self.tags[0]),
            1 => Some(self.tags[1]),
            _ => None,
        };
        let units = if tag.is_some() { 1..8 } else { 1..16 };
        let bytes = self.random.u64(units) * (MIB / 4) + self.number % 500 * 512;
        let kind = match self.random.u8(..8) {
            0 if self.dies => Kind::Dead,
            0 | 1 => Kind::Plain,
            2..5 => Kind::Hooked,
            _ => Kind::Watching(Rc::default()),
        };
        let priority = i32::from(self.random.u8(..4) == 0);
        let stall_first = self.random.bool();
        let pool = self.pool;
        macro_rules! task {
            ($request:expr) => {{
                let mut request = $request.priority(priority);
                if let Some(tag) = tag {
                    request = request.tag(tag);
                }
                let held = |granted| Box::new(granted) as Held;
                match &kind {
                    Kind::Watching(told) => {
                        watched!(request, pool, bytes, told.clone(), stall_first)
                    }
                    Kind::Hooked => {
                        let pressure = self.pressure.clone();
                        Woken::new(async move { request.relieve_with(&pressure).await.map(held) })
                    }
                    Kind::Plain | Kind::Dead => Woken::new(async move { request.await.map(held) }),
                }
            }};
        }
        let streams = self.streams;
        let (_, stream) = &streams[self.random.usize(..3)];
        let future = match self.random.u8(..3) {
            0 => task!(pool.reserve(bytes)),
            1 => task!(pool.allocate_many(stream, [bytes - 1024, 1024])),
            _ => task!(pool.allocate(stream, bytes)),
        };
        self.tasks.push(Task {
            kind,
            bytes,
            future,
        });
    }

    fn step(&mut self) {
        match self.random.u8(..16) {
            0..5 if self.tasks.len() < TASKS => self.start(),
            5..7 if !self.held.is_empty() => {
                let at = self.random.usize(..self.held.len());
                drop(self.held.swap_remove(at));
            }
            7 if !self.tasks.is_empty() => {
                let at = self.random.usize(..self.tasks.len());
                drop(self.tasks.swap_remove(at));
            }
            8 => self.device.advance(us(self.random.u64(..300))),
            9 => {
                // Memory that is freed behind this is pending.
                let streams = self.streams;
                let (work, _) = &streams[self.random.usize(..3)];
                run(work, us(self.random.u64(1..200)));
            }
            10 => {
                let streams = self.streams;
                let (_, stream) = &streams[self.random.usize(..3)];
                let block = self.pool.try_allocate(stream, MIB);
                self.held.extend(block.map(|block| Box::new(block) as Held));
            }
            11 => {
                let tag = self.random.choice(self.tags).unwrap();
                let limit = self.random.u64(3..7) * MIB;
                self.pool.tag(tag).set_limit(Some(limit));
            }
            12 if !self.tasks.is_empty() => {
                let at = self.random.usize(..self.tasks.len());
                if !matches!(self.tasks[at].kind, Kind::Dead) {
                    self.tasks[at].future.poll();
                }
            }
            13 => self.hook.cache.lock().unwrap().extend(self.held.pop()),
            14 => {
                let streams = self.streams;
                let (_, stream) = &streams[self.random.usize(..3)];
                if let Ok(block) = self.pool.try_allocate(stream, MIB / 2) {
                    self.held.push(Box::new(block.into_evictable()));
                }
            }
            _ => {}
        }
        self.settle();
        if self.dies {
            // A dead task may have been notified. The timer serves in its place, after 2 ms.
            self.device.advance(us(3000));
            self.settle();
        }
        self.check();
    }

    /// Polls the tasks that were woken, until none is, and takes what they were granted.
    fn settle(&mut self) {
        let mut polls = 0;
        loop {
            let mut is_quiet = true;
            for task in &mut self.tasks {
                let is_dead = matches!(task.kind, Kind::Dead);
                is_quiet &= is_dead || !task.future.poll_if_woken();
            }
            for at in (0..self.tasks.len()).rev() {
                if let Some(granted) = self.tasks[at].future.output.take() {
                    self.held.push(granted.unwrap());
                    drop(self.tasks.swap_remove(at));
                }
            }
            if is_quiet {
                return;
            }
            polls += 1;
            assert!(polls < 1000, "the tasks wake each other for ever");
        }
    }

    fn check(&mut self) {
        let waiting = self.pool.inspect().waiting_requests(usize::MAX);
        let mut firsts: Vec<&WaitingRequest> = Vec::new();
        for request in &waiting {
            let is_beside = |first: &&WaitingRequest| {
                first.is_over_limit == request.is_over_limit
                    && (!request.is_over_limit || first.tag == request.tag)
            };
            if !firsts.iter().any(is_beside) {
                firsts.push(request);
            }
        }
        let is_idle = self.hook.at_work.load(Ordering::SeqCst) == 0;
        let asked = self.hook.asked.lock().unwrap().clone();
        for first in firsts {
            let place = if first.is_over_limit {
                Place::Limit
            } else {
                Place::Queue
            };
            let task = self.tasks.iter().find(|task| task.bytes == first.requested);
            match &task.expect("only tasks wait").kind {
                Kind::Watching(told) => {
                    let told = told.borrow().iter().filter(|told| **told == place).count();
                    assert_eq!(told, 1, "{place:?}, {first:?}, {waiting:?}");
                }
                Kind::Hooked => {
                    assert!(!is_idle || asked.contains(&first.requested), "{first:?}");
                }
                Kind::Plain | Kind::Dead => {}
            }
        }
        self.tellings = 0;
        for task in &self.tasks {
            if let Kind::Watching(told) = &task.kind {
                let told = told.borrow();
                let most = |place| told.iter().filter(|told| **told == place).count() <= 1;
                assert!(most(Place::Queue) && most(Place::Limit), "{told:?}");
                self.tellings += told.len();
            }
        }
    }

    /// Frees everything until all tasks are served.
    fn finish(&mut self) {
        self.tasks.retain(|task| !matches!(task.kind, Kind::Dead));
        for _ in 0..1000 {
            self.settle();
            self.check();
            if self.tasks.is_empty() {
                return;
            }
            self.held.pop();
            self.hook.cache.lock().unwrap().pop();
            self.device.advance(us(500));
        }
        panic!(
            "never served: {:?}",
            self.pool.inspect().waiting_requests(usize::MAX)
        );
    }
}

fn random_run(seed: u64, is_virtual: bool) -> (usize, usize) {
    let device = manual_builder().virtual_memory(is_virtual).build();
    let pool = builder(&device, CAPACITY);
    let pool = if seed.is_multiple_of(2) {
        pool.tuning(|tuning| tuning.reuse = only_host_waits())
    } else {
        pool
    };
    let pool = pool.build().unwrap();
    let streams = common::streams::<3>(&device, &pool);
    let tags = ["random: one", "random: two"].map(Tag::new);
    tags.iter()
        .for_each(|tag| pool.tag(*tag).set_limit(Some(4 * MIB)));
    let hook = Evicting {
        device: device.clone(),
        cache: Arc::default(),
        asked: Arc::default(),
        at_work: Arc::default(),
    };
    let mut run = Run {
        random: fastrand::Rng::with_seed(seed),
        device: &device,
        pool: &pool,
        streams: &streams,
        tags,
        pressure: Pressure::new(hook.clone()),
        hook,
        tasks: Vec::new(),
        held: Vec::new(),
        number: 0,
        dies: seed.is_multiple_of(3),
        tellings: 0,
    };
    let mut told = 0;
    for _ in 0..150 {
        run.step();
        told = told.max(run.tellings);
    }
    run.finish();
    let asked = run.hook.asked.lock().unwrap().len();
    run.hook.cache.lock().unwrap().clear();
    run.held.clear();
    assert_eq!(waiting(&pool), 0);
    drop(run);
    device.advance(us(10_000));
    pool.inspect().check_conserved().unwrap();
    (told, asked)
}

#[test]
fn first_requests_are_told_once_and_all_are_served() {
    let seeds = std::env::var("SEEDS")
        .ok()
        .and_then(|seeds| seeds.parse().ok());
    let (mut told, mut asked) = (0, 0);
    for seed in 0..seeds.unwrap_or(150) {
        for is_virtual in [true, false] {
            let guard = Seed(seed, is_virtual);
            let of_run = random_run(seed, is_virtual);
            std::mem::forget(guard);
            told += of_run.0;
            asked += of_run.1;
        }
    }
    assert!(told > 100 && asked > 100, "{told} told, {asked} asked");
}

/// Prints the seed of a run that panics.
struct Seed(u64, bool);

impl Drop for Seed {
    fn drop(&mut self) {
        eprintln!("seed {}, virtual memory: {}", self.0, self.1);
    }
}
