//! Terms of requests, and the words of a full queue.

use std::time::Duration;
use weirpool_heap::id::StreamId;
use weirpool_queue::{
    FullQueue, Newcomer, Overtaking, Queue, QueueLimit, Refused, Rules, Terms, due, longest_wait,
};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn priority_counts_in_steps() {
    let due = |priority, now| {
        let terms = Terms {
            priority,
            ..Terms::default()
        };
        due(&terms, now)
    };
    assert_eq!(due(2, SECOND * 2), due(0, Duration::ZERO));
    assert!(due(i32::MAX, Duration::ZERO) < due(i32::MIN, Duration::ZERO));
}

#[test]
fn shorter_limit_counts() {
    let terms = Terms {
        timeout: Some(SECOND),
        deadline: Some(SECOND * 2),
        ..Terms::default()
    };
    assert_eq!(longest_wait(&terms), Some(SECOND));
    let for_ever = Terms {
        timeout: Some(Duration::MAX),
        ..Terms::default()
    };
    assert_eq!(longest_wait(&for_ever), None);
}

#[test]
fn full_queue_names_the_limits_that_there_are() {
    for (requests, bytes, expected) in [
        (1, u64::MAX, "1 may wait"),
        (usize::MAX, 1 << 20, "requests for 1.0 MiB may wait"),
        (1, 1 << 20, "1 for 1.0 MiB may wait"),
    ] {
        let mut queue = Queue::new(&Rules {
            overtaking: Overtaking::NONE,
            deadlock_grace: SECOND,
            deadlock_limit: None,
            queue_limit: QueueLimit { requests, bytes },
            sheds: false,
        });
        let mut ask = || {
            let newcomer = Newcomer {
                tag: None,
                bytes: 1 << 20,
                stream: StreamId(1),
                due: 0,
                limit: None,
                is_throttled: false,
            };
            let admitted = queue.admit(&newcomer, SECOND)?;
            let _ = queue.join(admitted.entry, None, SECOND);
            Ok(())
        };
        assert_eq!(ask(), Ok(()));
        let Err(Refused::Full(full @ FullQueue { waiting: 1, .. })) = ask() else {
            panic!("it is full");
        };
        let text = format!("the queue is full: 1 waiting request for 1.0 MiB, {expected}");
        assert_eq!(full.to_string(), text);
    }
}
