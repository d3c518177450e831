//! Submitted work, host functions and host tasks.

use super::*;
use loom::future::block_on;
use loom::thread;
use std::future::Future;

fn submit(stream: &Stream, us: u64) -> weirpool::Task<()> {
    let submitted = stream.submit((), |work: &SimStream, ()| run(work, us));
    submitted.unwrap()
}

/// Work is submitted while another thread records an event on the stream. That event may be older than the work, and
/// proves nothing of it.
#[test]
fn submission_against_a_seal() {
    model("submission against a seal", || {
        let (device, pool, [(_, stream)]) = start();
        let block = pool.try_allocate(&stream, MIB).unwrap();
        let sealing = stream.clone();
        let sealer = thread::spawn(move || {
            drop(block);
            sealing.seal().unwrap();
            sealing.event().unwrap()
        });
        let task = submit(&stream, 10);
        assert_eq!(task.is_complete(), Ok(false));
        drop(sealer.join().unwrap());
        assert_eq!(task.is_complete(), Ok(false));
        device.advance(Duration::from_micros(10));
        assert_eq!(block_on(task), Ok(()));
        drop(stream);
        pool.inspect().check_conserved().unwrap();
    });
}

/// A host function runs on one thread, while another awaits its value.
#[test]
fn host_function_against_its_task() {
    model("host function against its task", || {
        let (device, pool, [(_, stream)]) = start();
        drop(submit(&stream, 10));
        let task = stream.run(|| 7).unwrap();
        let moving = {
            let device = device.clone();
            thread::spawn(move || device.advance(Duration::from_micros(10)))
        };
        assert_eq!(block_on(task), Ok(7));
        moving.join().unwrap();
        drop(stream);
        pool.inspect().check_conserved().unwrap();
    });
}

/// A task is dropped before its host function has run. The value is dropped with the function.
#[test]
fn host_function_against_a_dropped_task() {
    model("host function against a dropped task", || {
        let (device, _pool, [(_, stream)]) = start();
        drop(submit(&stream, 10));
        let value = Arc::new(());
        let kept = value.clone();
        let task = stream.run(move || kept).unwrap();
        let moving = {
            let device = device.clone();
            thread::spawn(move || device.advance(Duration::from_micros(10)))
        };
        drop(task);
        moving.join().unwrap();
        assert_eq!(Arc::strong_count(&value), 1);
    });
}

/// A host task ends, another is dropped, and a third thread reads the figures. The stream goes on after both.
#[test]
fn host_tasks_against_each_other_and_the_figures() {
    model("host tasks against each other and the figures", || {
        let (_, _pool, [(_, stream)]) = start();
        let [ending, dropped] = [(); 2].map(|()| stream.spawn(async {}).unwrap());
        let last = submit(&stream, 0);
        let dropping = thread::spawn(move || drop(dropped));
        let reading = {
            let stream = stream.clone();
            thread::spawn(move || stream.statistics().host_tasks)
        };
        assert_eq!(block_on(ending), Ok(()));
        assert!(reading.join().unwrap() <= 2);
        dropping.join().unwrap();
        assert_eq!(block_on(last), Ok(()));
        let figures = stream.statistics();
        assert_eq!((figures.host_tasks, figures.abandoned_host_tasks), (0, 1));
    });
}

/// A host task is awaited while another thread closes a ticket, records its event, and publishes it, with the task's
/// own steps in between. The task waits for the event before its hold, not for one behind it.
#[test]
fn host_task_against_a_seal() {
    model("host task against a seal", || {
        let (_device, pool, [(_, stream)]) = start();
        let block = pool.try_allocate(&stream, MIB).unwrap();
        let sealing = {
            let stream = stream.clone();
            thread::spawn(move || {
                drop(block);
                stream.seal().unwrap();
            })
        };
        let task = stream.spawn(async { 7 }).unwrap();
        assert_eq!(block_on(task), Ok(7));
        sealing.join().unwrap();
        drop(stream);
        pool.inspect().check_conserved().unwrap();
    });
}

/// A future over a point of the stream is awaited by one thread, while another one spawns a host task behind it that is
/// awaited only afterwards. The event of the point is recorded by either thread, before the hold or behind it.
fn future_against_a_host_task<F: Future + 'static>(name: &str, future: fn(Block, &Stream) -> F)
where
    F::Output: std::fmt::Debug + PartialEq<Result<(), weirpool::device::DeviceError>>,
{
    model(name, move || {
        let (_device, pool, [(_, stream)]) = start();
        let block = pool.try_allocate(&stream, MIB).unwrap();
        let future = future(block, &stream);
        let spawning = {
            let stream = stream.clone();
            thread::spawn(move || stream.spawn(async {}).unwrap())
        };
        assert_eq!(block_on(future), Ok(()));
        assert_eq!(block_on(spawning.join().unwrap()), Ok(()));
        drop(stream);
        pool.inspect().check_conserved().unwrap();
    });
}

#[test]
fn deallocation_against_a_host_task() {
    future_against_a_host_task("deallocation against a host task", |block, _| {
        block.deallocate()
    });
}

#[test]
fn synchronization_against_a_host_task() {
    future_against_a_host_task("synchronization against a host task", |_, stream| {
        stream.synchronize()
    });
}

#[test]
fn submission_against_a_host_task() {
    future_against_a_host_task("submission against a host task", |_, stream| {
        let task = submit(stream, 0);
        async { task.await.map_err(|error| panic!("{error}")) }
    });
}
