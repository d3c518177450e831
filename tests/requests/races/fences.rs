//! Tickets, their records and queries: tickets that are closed but not published, late, or failed.

use super::*;

/// The last handle of a stream is dropped while another thread is between closing and recording its ticket.
#[test]
fn closed_ticket_keeps_its_stream_until_it_is_published() {
    let sim = manual();
    let dev = Hooked::new(&sim);
    let pool = tuned(&dev, 2 * MIB, |tuning| tuning.reuse = only_host_waits());
    let work_a = sim.create_stream();
    let a = pool.register(&work_a).unwrap();
    let (_wb, b) = stream(&sim, &pool);
    let block = pool.try_allocate(&a, MIB).unwrap();
    let other = pool.try_allocate(&a, MIB).unwrap();
    drop(other);
    use_block(&work_a, &block, us(100));
    drop(block);
    dev.on("record", move || drop(a));
    let got = pool.try_allocate(&b, 2 * MIB);
    assert!(work_a.backlog() > 0);
    assert!(
        got.is_err(),
        "granted {:?} while A's work runs",
        got.unwrap()
    );
}

/// A waiter is cancelled, and its stream dropped, while it is granted memory behind a wait on the device.
#[test]
fn grant_to_a_dropped_waiter_keeps_its_fences() {
    let sim = manual();
    let dev = Hooked::new(&sim);
    let pool = tuned(&dev, 8 * MIB, |tuning| {
        tuning.when_short = WhenShort::GrowThenWait
    });
    let work_a = sim.create_stream();
    let a = pool.register(&work_a).unwrap();
    let [(_wl, l), (wc, c)] = streams(&sim, &pool);
    let block = pool.try_allocate(&a, 8 * MIB).unwrap();
    let p = pool.clone();
    let mut w1: std::pin::Pin<Box<dyn Future<Output = Result<Block, AllocError>> + Send>> =
        Box::pin(async move { p.allocate(&l, 8 * MIB).await });
    assert!(poll(&mut w1).is_pending());
    use_block(&work_a, &block, us(100));
    drop(block);
    dev.on("wait", move || drop(w1));
    let mut w2 = pool.allocate(&c, 8 * MIB);
    let got = now(&mut w2).expect("the memory is unowned, and may be waited for on the device");
    run(&wc, us(1));
    sim.advance(us(5));
    assert!(work_a.backlog() > 0);
    assert!(
        wc.backlog() > 0,
        "C ran on memory that A still uses; source {:?}",
        got.source()
    );
}

/// Two threads seal a stream, and their events are recorded in the other order, with long work in between.
#[test]
fn late_marker_does_not_hide_later_completions() {
    let (sim, dev, pool) = hooked(8 * MIB);
    let work = sim.create_stream();
    let a = pool.register(&work).unwrap();
    let slot = Arc::new(Mutex::new(None));
    let (s, a2) = (slot.clone(), a.clone());
    let w2 = work.clone();
    dev.on("record", move || {
        let e = a2.event().unwrap();
        run(&w2, us(1000));
        *s.lock().unwrap() = Some(e);
    });
    let _e5 = a.event().unwrap();
    let e6 = slot.lock().unwrap().take().unwrap();
    let (woken, waker) = Count::new();
    let mut f = e6.into_future();
    let mut done = false;
    for _ in 0..50 {
        if poll_with(&mut f, &waker).is_ready() {
            done = true;
            break;
        }
    }
    assert!(
        done,
        "complete on the device, not seen; woken {} times in 50 polls",
        woken.get()
    );
}

/// The query of another stream's event fails once.
#[test]
fn error_of_one_stream_does_not_fail_another() {
    let sim = manual();
    let pool = pool(&sim, 64 * MIB);
    let [(wa, a), (_wb, b)] = streams(&sim, &pool);
    let x = pool.try_allocate(&a, 2 * MIB).unwrap();
    run(&wa, us(10));
    drop(x);
    a.seal().unwrap();
    sim.faults()
        .fail_next(weirpool::device::sim::Call::Query, DeviceErrorKind::Other);
    let got = pool.try_allocate(&b, 2 * MIB);
    assert!(got.is_ok(), "{got:?}");
}

/// The last record of a pool fails.
#[test]
fn transient_error_at_the_end_leaks_no_memory() {
    let sim = manual();
    let pool = pool(&sim, 64 * MIB);
    let (wa, a) = stream(&sim, &pool);
    let b = pool.try_allocate(&a, 4096).unwrap();
    run(&wa, us(10));
    drop(b);
    drop(pool);
    sim.faults()
        .fail_next(weirpool::device::sim::Call::Record, DeviceErrorKind::Other);
    drop(a);
    sim.advance(us(20));
    assert_eq!(sim.counters().physical_in_use, 0);
}
