//! The simulated schedule against a model that computes all times in closed form.

use proptest::prelude::*;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weirpool_device::{Device, RawEvent};
use weirpool_sim::{Clock, Operation, SimDevice, SimStream};

const STREAMS: usize = 4;
const EVENTS: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    Submit {
        stream: usize,
        duration: u64,
        behind: Option<u64>,
    },
    Record {
        stream: usize,
        event: usize,
    },
    Wait {
        stream: usize,
        event: usize,
    },
    Advance(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let stream = 0..STREAMS;
    let event = 0..EVENTS;
    prop_oneof![
        4 => (stream.clone(), 0u64..20, proptest::option::of(0u64..40))
            .prop_map(|(stream, duration, behind)| Step::Submit { stream, duration, behind }),
        2 => (stream.clone(), event.clone()).prop_map(|(stream, event)| Step::Record { stream, event }),
        2 => (stream, event).prop_map(|(stream, event)| Step::Wait { stream, event }),
        1 => (0u64..30).prop_map(Step::Advance),
    ]
}

/// The times of one stream's items so far.
#[derive(Clone, Copy, Default)]
struct Line {
    over: u64,
    free_at: u64,
    waited_until: u64,
    stall: u64,
}

/// With a place for each stream, an item's time follows from the items submitted before it.
#[derive(Default)]
struct Model {
    now: u64,
    lines: [Line; STREAMS],
    events: [Option<u64>; EVENTS],
    ends: Vec<u64>,
}

impl Model {
    fn step(&mut self, step: &Step) {
        let now = self.now;
        match *step {
            Step::Submit {
                stream,
                duration,
                behind,
            } => {
                let line = &mut self.lines[stream];
                let bound = behind.map_or(now, |behind| now + behind + line.stall);
                let unhindered = bound.max(line.free_at);
                let start = unhindered.max(line.waited_until);
                line.stall += start - unhindered;
                line.free_at = start + duration;
                line.over = line.free_at;
                self.ends.push(line.over);
            }
            Step::Record { stream, event } => {
                let line = &mut self.lines[stream];
                line.over = line.over.max(now);
                self.events[event] = Some(line.over);
            }
            Step::Wait { stream, event } => {
                if let Some(recorded) = self.events[event] {
                    let line = &mut self.lines[stream];
                    line.over = line.over.max(now).max(recorded);
                    line.waited_until = line.over;
                }
            }
            Step::Advance(by) => self.now += by,
        }
    }

    fn stall(&self) -> u64 {
        self.lines.iter().map(|line| line.stall).sum()
    }
}

/// Runs the steps on the device, and records when each operation ends.
struct Subject {
    sim: SimDevice,
    streams: Vec<SimStream>,
    events: Vec<RawEvent>,
    ends: Arc<Mutex<Vec<(usize, u64)>>>,
    submitted: Vec<(usize, u64)>,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap()
}

impl Subject {
    fn new(places: usize, seed: u64) -> Self {
        let sim = SimDevice::builder()
            .clock(Clock::Manual)
            .concurrent_operations(places)
            .seed(seed)
            .build();
        Self {
            streams: (0..STREAMS).map(|_| sim.create_stream()).collect(),
            events: (0..EVENTS).map(|_| sim.create_event().unwrap()).collect(),
            ends: Arc::default(),
            submitted: Vec::new(),
            sim,
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Submit {
                stream,
                duration,
                behind,
            } => self.submit(stream, duration, behind),
            Step::Record { stream, event } => {
                self.sim
                    .record(self.events[event], self.streams[stream].raw())
                    .unwrap();
            }
            Step::Wait { stream, event } => {
                self.sim
                    .wait(self.streams[stream].raw(), self.events[event])
                    .unwrap();
            }
            Step::Advance(by) => self.sim.advance(Duration::from_nanos(by)),
        }
    }

    fn submit(&mut self, stream: usize, duration: u64, behind: Option<u64>) {
        let (index, sim, ends) = (self.submitted.len(), self.sim.clone(), self.ends.clone());
        self.submitted.push((stream, duration));
        let mut operation = Operation::new(Duration::from_nanos(duration))
            .run(move |_| ends.lock().unwrap().push((index, nanos(sim.now()))));
        if let Some(behind) = behind {
            operation = operation.behind(Duration::from_nanos(behind));
        }
        self.streams[stream].submit(operation);
    }

    /// Runs all work. Returns operations with their ends, in the order of completion.
    fn finish(&self) -> Vec<(usize, u64)> {
        self.sim.advance_to_end();
        assert!(self.streams.iter().all(|stream| stream.backlog() == 0));
        self.ends.lock().unwrap().clone()
    }
}

proptest! {
    #[test]
    fn model_is_exact_with_a_place_for_each_stream(steps in prop::collection::vec(step(), 1..60)) {
        let (mut model, mut subject) = (Model::default(), Subject::new(STREAMS, 0));
        for step in &steps {
            model.step(step);
            subject.step(step);
            for (event, recorded) in subject.events.iter().zip(&model.events) {
                let complete = recorded.is_none_or(|recorded| recorded <= model.now);
                prop_assert_eq!(subject.sim.query(*event).unwrap(), complete);
            }
        }
        let mut ends = subject.finish();
        ends.sort_unstable();
        let ends: Vec<_> = ends.into_iter().map(|(_, end)| end).collect();
        prop_assert_eq!(ends, &model.ends[..]);
        prop_assert_eq!(nanos(subject.sim.counters().stall), model.stall());
    }

    #[test]
    fn concurrency_limit_is_kept_and_no_work_is_lost(
        steps in prop::collection::vec(step(), 1..60),
        places in 1usize..STREAMS,
        seed in any::<u64>(),
    ) {
        let run = || {
            let mut subject = Subject::new(places, seed);
            steps.iter().for_each(|step| subject.step(step));
            (subject.finish(), subject.submitted)
        };
        let (ends, submitted) = run();
        prop_assert_eq!(&ends, &run().0, "equal seeds give equal runs");
        prop_assert_eq!(ends.len(), submitted.len());
        for stream in 0..STREAMS {
            let order = ends.iter().map(|(index, _)| *index).filter(|&index| submitted[index].0 == stream);
            prop_assert!(order.is_sorted(), "a stream is in order");
        }
        let spans: Vec<_> = ends.iter().map(|&(index, end)| (end - submitted[index].1, end)).collect();
        for &(start, _) in &spans {
            let running = spans.iter().filter(|&&(from, to)| from <= start && start < to).count();
            prop_assert!(running <= places, "{running} run at {start} on {places} place(s)");
        }
    }
}
