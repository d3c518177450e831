//! Regions with their gates, on the simulated device.

use super::*;
use crate::active::{Activation, Source};
use futures::executor::block_on;
use weirpool::device::sim::{Clock, SimDevice};

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(10);

fn region() -> (Pool, Stream, Arc<Gated>) {
    let device = SimDevice::builder().clock(Clock::Wall).build();
    let pool = Pool::builder(device).capacity(128 * MIB).build().unwrap();
    let stream = pool.create_stream().unwrap();
    let region = Gated::new(&pool, "kv", &Shape::default(), None).unwrap();
    (pool, stream, region)
}

fn on_a_thread<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    waiting::runtime().unwrap().spawn(future)
}

fn ended<T>(task: tokio::task::JoinHandle<T>) -> T {
    let runtime = waiting::runtime().unwrap();
    runtime
        .block_on(async { tokio::time::timeout(LONG, task).await })
        .expect("it ends")
        .unwrap()
}

#[test]
fn suspension_waits_for_all_that_are_inside() {
    let (_pool, stream, region) = region();
    let inside = region.try_enter().unwrap();
    let block = inside.allocate(&stream, MIB, LONG).unwrap();
    let suspending = on_a_thread(suspend(vec![region.clone(), region.clone()]));
    std::thread::sleep(Duration::from_millis(50));
    assert!(!suspending.is_finished() && !region.region().is_suspended());
    // A caller that is inside allocates on; a task that is not waits for the suspension.
    let again = region.try_enter().unwrap();
    drop(again.allocate(&stream, MIB, LONG).unwrap());
    let entering = on_a_thread(enter(vec![region.clone()], Terms::default()));
    std::thread::sleep(Duration::from_millis(20));
    assert!(!entering.is_finished());
    drop((inside, again));
    assert_eq!(ended(suspending), Ok(32 * MIB));
    assert!(ended(entering).is_ok() && !region.region().is_suspended());
    drop(block);
}

#[test]
fn suspended_region_is_entered_by_those_that_wait_and_by_no_others() {
    let (pool, _stream, region) = region();
    let inside = region.try_enter().unwrap();
    let block = inside.allocate(&pool.create_stream().unwrap(), MIB, LONG);
    drop(inside);
    block_on(suspend(vec![region.clone()])).unwrap();
    assert!(matches!(
        region.try_enter(),
        Err(RegionError::Suspended { .. })
    ));
    let all = pool.reserve(128 * MIB).try_now().unwrap();
    let late = Terms {
        timeout: Some(Duration::from_millis(20)),
        ..Terms::default()
    };
    let refused = ended(on_a_thread(enter(vec![region.clone()], late)));
    let is_late =
        |error: &RegionError| matches!(error, RegionError::Alloc(AllocError::TimedOut { .. }));
    assert!(refused.is_err_and(|error| is_late(&error)));
    let entering = on_a_thread(enter(vec![region.clone()], Terms::default()));
    drop(all);
    assert!(ended(entering).is_ok());
    drop(block);
}

#[test]
fn activation_holds_its_region_resident() {
    let (pool, stream, region) = region();
    let source = Source::Region(region.try_enter().unwrap());
    let activation = Activation::begin(&pool, source, "test".to_owned(), None);
    let Some(Source::Region(inside)) = crate::active::source(&pool, stream.raw().0) else {
        panic!("the region is active");
    };
    let block = inside.allocate(&stream, MIB, LONG).unwrap();
    drop(inside);
    assert_eq!(region.region().figures().used, MIB);
    let suspending = on_a_thread(suspend(vec![region.clone()]));
    std::thread::sleep(Duration::from_millis(20));
    assert!(!suspending.is_finished());
    activation.end();
    ended(suspending).unwrap();
    assert!(region.region().is_suspended());
    drop(block);
}

#[test]
fn tasks_that_enter_several_regions_and_suspensions_of_them_end() {
    let (pool, stream, region) = region();
    let other = Gated::new(&pool, "other", &Shape::default(), None).unwrap();
    let both = [
        [region.clone(), other.clone()],
        [other.clone(), region.clone()],
    ];
    let allocated = |region: &Arc<Gated>| {
        region
            .try_enter()
            .unwrap()
            .allocate(&stream, MIB, LONG)
            .unwrap()
    };
    let blocks = [allocated(&region), allocated(&other)];
    let tasks: Vec<_> = (0..40)
        .map(|number| {
            let regions = both[number % 2].to_vec();
            on_a_thread(async move {
                match number % 5 {
                    0 => drop(suspend(regions).await.unwrap()),
                    _ => {
                        let inside = enter(regions, Terms::default()).await.unwrap();
                        assert!(inside.iter().all(|one| !one.gated.region.is_suspended()));
                        tokio::task::yield_now().await;
                        drop(inside);
                    }
                }
            })
        })
        .collect();
    tasks.into_iter().for_each(ended);
    drop(blocks);
}

#[test]
fn suspension_closes_no_region_while_it_waits_for_another() {
    let (pool, _stream, one) = region();
    let other = Gated::new(&pool, "other", &Shape::default(), None).unwrap();
    for (busy, idle) in [(&one, &other), (&other, &one)] {
        let inside = busy.try_enter().unwrap();
        let suspending = on_a_thread(suspend(vec![one.clone(), other.clone()]));
        std::thread::sleep(Duration::from_millis(50));
        let entered = on_a_thread(enter(vec![idle.clone()], Terms::default()));
        drop(ended(entered).unwrap());
        assert!(!suspending.is_finished());
        drop(inside);
        ended(suspending).unwrap();
        block_on(resume(vec![one.clone(), other.clone()], Terms::default())).unwrap();
    }
}

#[test]
fn suspension_comes_after_a_resume_that_waits_for_memory() {
    let (pool, stream, region) = region();
    let inside = region.try_enter().unwrap();
    let block = inside.allocate(&stream, MIB, LONG).unwrap();
    drop(inside);
    block_on(suspend(vec![region.clone()])).unwrap();
    let all = pool.try_allocate(&stream, 128 * MIB).unwrap();
    let resuming = on_a_thread(resume(vec![region.clone()], Terms::default()));
    std::thread::sleep(Duration::from_millis(50));
    let suspending = on_a_thread(suspend(vec![region.clone()]));
    std::thread::sleep(Duration::from_millis(50));
    assert!(!resuming.is_finished() && !suspending.is_finished());
    drop(all);
    ended(resuming).unwrap();
    assert_eq!(ended(suspending), Ok(32 * MIB));
    assert!(region.region().is_suspended());
    drop(block);
}
