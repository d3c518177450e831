//! A pool's figures in Prometheus' text format.

use crate::metrics::{Family, Figures, POOL, TAG, Value, first_tags, label};
use std::fmt::Write as _;
use weirpool::{Histogram, Pool, TagStatistics};

/// The upper bounds of the buckets of times, in microseconds.
const BOUNDS: [u64; 17] = [
    1,
    3,
    10,
    30,
    100,
    300,
    1_000,
    3_000,
    10_000,
    30_000,
    100_000,
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
];

/// Returns a pool's current figures in Prometheus' text format, version 0.0.4, with the label `pool = name`: the families
/// that [`Metrics`](crate::Metrics) publishes. Serve it as `text/plain; version=0.0.4`.
///
/// The text is bounded, at most some 600 KiB: it has samples for the 100 tags that were made first, with up to 100 bytes
/// of their names. Takes time in proportion to the number of tags, at most some milliseconds: call it
/// from a thread that may block.
///
/// ```
/// # use weirpool::{Pool, device::sim::SimDevice};
/// # let pool = Pool::builder(SimDevice::new()).build()?;
/// let text = weirpool_observe::prometheus_text(&pool, "serving");
/// assert!(text.contains("weirpool_waiting_requests{pool=\"serving\"} 0\n"));
/// # Ok::<(), weirpool::BuildError>(())
/// ```
pub fn prometheus_text(pool: &Pool, name: &str) -> String {
    let figures = Figures::of(pool);
    let tags = first_tags(pool);
    let pool = format!("pool=\"{}\"", escaped(name));
    let labels = |tag: &TagStatistics| format!("{pool},tag=\"{}\"", escaped(tag.tag.name()));
    let tags: Vec<_> = tags.iter().map(|tag| (labels(tag), tag)).collect();
    let mut text = String::new();
    for family in POOL {
        family.write(&mut text, &[(pool.clone(), &figures)]);
    }
    for family in TAG {
        family.write(&mut text, &tags);
    }
    text
}

/// Returns the value of a label for a name.
fn escaped(name: &str) -> String {
    let mut escaped = String::new();
    for character in label(name).chars() {
        match character {
            '\\' => escaped.push_str("\\\\"),
            '"' => escaped.push_str("\\\""),
            '\n' => escaped.push_str("\\n"),
            _ => escaped.push(character),
        }
    }
    escaped
}

impl<F> Family<F> {
    /// Writes the samples of these figures, each with its labels.
    fn write(&self, text: &mut String, figures: &[(String, &F)]) {
        let Self { name, help, .. } = *self;
        let kind = match self.value {
            Value::Gauge(_) => "gauge",
            Value::Counter(_) | Value::CounterBy(..) => "counter",
            Value::Histogram(_) => "histogram",
        };
        // Writing to a string does not fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, figures) in figures {
            let _ = match self.value {
                Value::Gauge(value) => match value(figures) {
                    Some(value) => writeln!(text, "{name}{{{labels}}} {value}"),
                    None => Ok(()),
                },
                Value::Counter(value) => writeln!(text, "{name}{{{labels}}} {}", value(figures)),
                Value::CounterBy(label, values) => {
                    values(figures).iter().try_for_each(|(of, count)| {
                        writeln!(text, "{name}{{{labels},{label}=\"{of}\"}} {count}")
                    })
                }
                Value::Histogram(times) => write_times(text, name, labels, times(figures)),
            };
        }
    }
}

fn write_times(text: &mut String, name: &str, labels: &str, times: &Histogram) -> std::fmt::Result {
    let count = times.count();
    let mut buckets = times.buckets().peekable();
    let mut below = 0;
    for bound in BOUNDS {
        let bound = std::time::Duration::from_micros(bound);
        while let Some(bucket) = buckets.next_if(|bucket| bucket.to <= bound) {
            below += bucket.count;
        }
        let le = bound.as_secs_f64();
        writeln!(text, "{name}_bucket{{{labels},le=\"{le}\"}} {below}")?;
    }
    writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}")?;
    let sum = times.total().as_secs_f64();
    writeln!(
        text,
        "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {count}"
    )
}
