//! Names of work, and where they are shown.

use super::*;
use weirpool::device::Argument;
use weirpool_observe::{HistoryEvent, Record as _, Recorded as _};

/// Returns the report of a write that nothing orders.
fn unordered(device: &SimDevice, address: weirpool::device::DeviceAddress) -> String {
    let stray = device.create_stream();
    stray.submit(Operation::new(us(1)).named("stray").writes(address, 64));
    let violations = device.take_violations();
    violations.last().expect("a violation").to_string()
}

#[test]
fn checker_names_the_task_of_an_operation() {
    let device = SimDevice::builder().checker(Checker::Collect).build();
    let pool = pool(&device, 8 * MIB);
    let stream = pool.create_stream().unwrap();
    let write = |name: Option<&'static str>| {
        move |work: &SimStream, memory: Argument<'_>| {
            let write = Operation::new(us(10)).writes(memory.address(), 64);
            work.submit(name.into_iter().fold(write, Operation::named));
        }
    };
    for (name, shown) in [(None, "decode ("), (Some("norm"), "decode: norm (")] {
        let mut block = pool.try_allocate(&stream, MIB).unwrap();
        let task = stream
            .task("decode")
            .submit(&mut block, write(name))
            .unwrap();
        assert!(format!("{task:?}").contains("decode"));
        let report = unordered(&device, block.address());
        assert!(report.contains(shown), "{report}");
    }
}

/// A host function is known to the checker by its name and by the memory that it was declared with.
#[test]
fn checker_names_a_host_function() {
    let device = SimDevice::builder().checker(Checker::Collect).build();
    let pool = builder(&device, 8 * MIB).upstream(Upstream::Pinned);
    let pool = pool.made();
    let [home, stream] = [(); 2].map(|()| pool.create_stream().unwrap());
    let mut block = pool.try_allocate(&home, MIB).unwrap();
    let sum = stream.task("sum").uses(&mut block).unwrap();
    drop(sum.run(|| ()).unwrap());
    let report = unordered(&device, block.address());
    assert!(report.contains("sum ("), "{report}");
    assert!(report.contains(file!()), "{report}");
}

/// Work of the host that names memory of the device alone would fault.
#[test]
fn host_function_is_refused_memory_that_the_host_does_not_see() {
    let device = SimDevice::new();
    for upstream in [Upstream::Virtual, Upstream::Device, Upstream::Managed] {
        let pool = builder(&device, 8 * MIB).upstream(upstream).made();
        let stream = pool.create_stream().unwrap();
        let mut block = pool.try_allocate(&stream, MIB).unwrap();
        let declared = stream.task("sum").uses((&mut block, ()));
        let refused = declared.err();
        let unseen = Some(TaskError::Stream(StreamError::UnseenByHost));
        let expected = unseen.filter(|_| upstream != Upstream::Managed);
        assert_eq!(refused, expected, "{upstream}");
        assert!(stream.task("none").uses(()).is_ok());
    }
}

#[test]
fn history_has_named_work_alone() {
    let device = manual();
    let pool = builder(&device, 8 * MIB).history(100).made();
    let stream = pool.create_stream().unwrap().named("main");
    drop(spend(&stream, 1));
    drop(
        stream
            .task("decode")
            .submit((), |_: &SimStream, ()| ())
            .unwrap(),
    );
    drop(stream.task(format!("step {}", 2)).run(|| ()).unwrap());
    drop(stream.task("fetch").spawn(async {}).unwrap());
    let history = pool.history();
    let submitted = history
        .entries
        .iter()
        .filter_map(|entry| match &entry.event {
            HistoryEvent::Submitted { stream, name, site } => Some((*stream, name.as_ref(), site)),
            _ => None,
        });
    let submitted: Vec<_> = submitted.collect();
    let names: Vec<_> = submitted.iter().map(|(_, name, _)| *name).collect();
    assert_eq!(names, ["decode", "step 2", "fetch"]);
    assert!(
        submitted
            .iter()
            .all(|(id, _, site)| *id == stream.id() && site.file == file!())
    );
    let text = history.to_string();
    assert!(text.contains("submitted decode to main (S1) at "), "{text}");
}
