//! Submitted work, host functions and host tasks.

use super::*;
use loom::future::block_on;
use loom::thread;

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
        pool.check_conserved().unwrap();
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
        pool.check_conserved().unwrap();
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
