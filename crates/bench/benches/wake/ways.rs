//! Ways to learn from the driver that work is complete, to compare with the pool's own.

use super::wait::{Heard, Waiting, Way};
use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUevent, CUevent_flags, CUresult, CUstream};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};
use weirpool::Stream;

pub(crate) fn all(context: &Arc<CudaContext>) -> Vec<Box<dyn Way>> {
    let pauses = [
        Pause::None,
        Pause::Awake(Duration::from_micros(4)),
        Pause::Awake(Duration::from_micros(10)),
        Pause::Awake(Duration::from_micros(20)),
        Pause::Asleep(Duration::from_micros(20)),
        Pause::Asleep(Duration::from_micros(50)),
    ];
    let mut ways: Vec<Box<dyn Way>> = Vec::new();
    for pause in pauses {
        ways.push(Box::new(Query(pause)));
    }
    ways.push(Box::new(BlockingSync));
    ways.push(Box::new(HostFunction(Reporter::new(context))));
    for pause in [
        Pause::None,
        Pause::Awake(Duration::from_micros(4)),
        Pause::Asleep(Duration::from_micros(20)),
    ] {
        ways.push(Box::new(Flag(Reporter::new(context), pause)));
    }
    ways
}

fn checked(result: CUresult) {
    assert_eq!(result, CUresult::CUDA_SUCCESS);
}

/// An event behind the work that was submitted to the stream.
struct Marker(CUevent);

impl Marker {
    fn record(stream: &Stream, flags: CUevent_flags) -> Self {
        let mut event = std::ptr::null_mut();
        let flags = flags as u32 | CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: the device's context is current on this thread, which made its streams; the stream lives.
        unsafe {
            checked(sys::cuEventCreate(&mut event, flags));
            checked(sys::cuEventRecord(event, stream.raw().0 as CUstream));
        }
        Self(event)
    }

    fn is_complete(&self) -> bool {
        // SAFETY: the event lives as long as this.
        unsafe { sys::cuEventQuery(self.0) == CUresult::CUDA_SUCCESS }
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        // SAFETY: the event belongs to this marker, and no other code uses it any more.
        unsafe { checked(sys::cuEventDestroy_v2(self.0)) };
    }
}

/// The time between two queries.
#[derive(Clone, Copy, Debug)]
enum Pause {
    None,
    Awake(Duration),
    Asleep(Duration),
}

impl Pause {
    fn spend(self) {
        match self {
            Self::None => std::hint::spin_loop(),
            Self::Awake(pause) => {
                let start = Instant::now();
                while start.elapsed() < pause {
                    std::hint::spin_loop();
                }
            }
            Self::Asleep(pause) => std::thread::sleep(pause),
        }
    }

    fn name(self) -> String {
        match self {
            Self::None => "without pause".to_owned(),
            Self::Awake(pause) => format!("every {pause:?}, awake"),
            Self::Asleep(pause) => format!("{pause:?} of sleep between"),
        }
    }
}

fn now() -> Heard {
    let now = Instant::now();
    Heard {
        woken: now,
        ran: now,
    }
}

/// Polls the event.
struct Query(Pause);

impl Way for Query {
    fn name(&self) -> String {
        format!("query {}", self.0.name())
    }

    fn begin<'a>(&'a self, stream: &'a Stream) -> Waiting<'a> {
        let marker = Marker::record(stream, CUevent_flags::CU_EVENT_DEFAULT);
        Box::new(move || {
            while !marker.is_complete() {
                self.0.spend();
            }
            now()
        })
    }
}

/// The driver blocks the thread.
struct BlockingSync;

impl Way for BlockingSync {
    fn name(&self) -> String {
        "cuEventSynchronize, blocking".to_owned()
    }

    fn begin<'a>(&'a self, stream: &'a Stream) -> Waiting<'a> {
        let marker = Marker::record(stream, CUevent_flags::CU_EVENT_BLOCKING_SYNC);
        Box::new(move || {
            let marker = marker;
            // SAFETY: the event lives as long as the marker.
            unsafe { checked(sys::cuEventSynchronize(marker.0)) };
            now()
        })
    }
}

/// A separate stream of the watcher waits for events and reports them. The user's streams do nothing for it.
struct Reporter {
    stream: Arc<cudarc::driver::CudaStream>,
    flag: *mut AtomicU32,
}

// SAFETY: the flag is an atomic in memory that lives as long as the process.
unsafe impl Send for Reporter {}
// SAFETY: as above.
unsafe impl Sync for Reporter {}

impl Reporter {
    fn new(context: &Arc<CudaContext>) -> Self {
        let mut flag = std::ptr::null_mut::<c_void>();
        context.bind_to_thread().expect("a context");
        // SAFETY: the memory is never freed; it is written before it is used.
        unsafe {
            checked(sys::cuMemHostAlloc(
                &mut flag,
                64,
                sys::CU_MEMHOSTALLOC_PORTABLE,
            ));
            flag.cast::<u32>().write(0);
        }
        Self {
            stream: context.new_stream().expect("a stream"),
            flag: flag.cast(),
        }
    }

    fn flag(&self) -> &AtomicU32 {
        // SAFETY: see `new`; the device writes whole words.
        unsafe { &*self.flag }
    }

    fn come_after(&self, marker: &Marker) {
        // SAFETY: both the stream and the event live.
        unsafe { checked(sys::cuStreamWaitEvent(self.stream.cu_stream(), marker.0, 0)) };
    }
}

/// The driver calls a function.
struct HostFunction(Reporter);

impl Way for HostFunction {
    fn name(&self) -> String {
        "host function on a reporter".to_owned()
    }

    fn begin<'a>(&'a self, stream: &'a Stream) -> Waiting<'a> {
        unsafe extern "C" fn call(data: *mut c_void) {
            // SAFETY: the box that is handed over below, once.
            let (heard, thread) = *unsafe {
                Box::from_raw(data.cast::<(std::sync::mpsc::Sender<Instant>, Thread)>())
            };
            let _ = heard.send(Instant::now());
            thread.unpark();
        }
        let marker = Marker::record(stream, CUevent_flags::CU_EVENT_DEFAULT);
        self.0.come_after(&marker);
        let (sender, receiver) = std::sync::mpsc::channel();
        let data = Box::into_raw(Box::new((sender, std::thread::current())));
        // SAFETY: the function makes no calls to the driver, and takes the box.
        unsafe {
            checked(sys::cuLaunchHostFunc(
                self.0.stream.cu_stream(),
                Some(call),
                data.cast(),
            ));
        }
        Box::new(move || {
            let woken = receiver.recv().expect("a call");
            drop(marker);
            Heard {
                woken,
                ran: Instant::now(),
            }
        })
    }
}

/// The device writes a word that the host polls. The driver is not called.
struct Flag(Reporter, Pause);

impl Way for Flag {
    fn name(&self) -> String {
        format!("flag by a reporter, {}", self.1.name())
    }

    fn begin<'a>(&'a self, stream: &'a Stream) -> Waiting<'a> {
        let marker = Marker::record(stream, CUevent_flags::CU_EVENT_DEFAULT);
        let flag = self.0.flag();
        let next = flag.load(Ordering::Relaxed).wrapping_add(1);
        self.0.come_after(&marker);
        // SAFETY: the word is in memory that the device sees at the same address.
        unsafe {
            checked(sys::cuStreamWriteValue32_v2(
                self.0.stream.cu_stream(),
                self.0.flag as u64,
                next,
                0,
            ));
        }
        Box::new(move || {
            while flag.load(Ordering::Acquire) != next {
                self.1.spend();
            }
            drop(marker);
            now()
        })
    }
}
