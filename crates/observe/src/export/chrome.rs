//! An export for Perfetto and the tracing page of Chromium: JSON in the Trace Event Format.
//!
//! The lives of blocks overlap, which the slices of a thread may not. So they are asynchronous slices, which the
//! viewers group by process: the pool is the first process, and each stream is another.

use crate::{History, HistoryEntry, HistoryEvent, Occupancy};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::time::Duration;
use weirpool::StreamId;
use weirpool::device::DeviceAddress;
use weirpool::extend::BlockOrigin;
use weirpool_heap::id::{StreamLabel, StreamNames};
use weirpool_heap::units::Bytes;

const POOL: u64 = 0;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File {
    display_time_unit: &'static str,
    trace_events: Vec<Event>,
}

#[derive(Serialize)]
struct Event {
    name: String,
    ph: &'static str,
    /// In microseconds.
    ts: f64,
    pid: u64,
    tid: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// The scope of an instant event.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    args: Value,
}

/// See [`History::write_chrome_trace`].
pub(super) fn write(history: &History, mut writer: impl Write) -> io::Result<()> {
    let mut chart = Chart {
        names: history.streams.clone(),
        ..Chart::default()
    };
    history.entries.iter().for_each(|entry| chart.draw(entry));
    let file = File {
        display_time_unit: "ns",
        trace_events: chart.finish(),
    };
    serde_json::to_writer(&mut writer, &file)?;
    writer.flush()
}

#[derive(Default)]
struct Chart {
    events: Vec<Event>,
    streams: BTreeSet<StreamId>,
    names: StreamNames,
    /// The streams and names of the slices that have begun, by allocation.
    begun: BTreeMap<u64, (StreamId, String)>,
    waits: u64,
    last: Option<Occupancy>,
}

impl Chart {
    fn draw(&mut self, entry: &HistoryEntry) {
        let HistoryEntry {
            time,
            event,
            occupancy,
            ..
        } = entry;
        let time = *time;
        if self.last.replace(*occupancy) != Some(*occupancy) {
            self.events.push(counters(time, *occupancy));
        }
        match event {
            HistoryEvent::Allocated {
                address,
                size,
                stream,
                origin,
            } => self.begin(time, *stream, (*address, *size), origin),
            HistoryEvent::Freed { number, site, .. } => {
                if let Some((stream, name)) = self.begun.remove(number) {
                    let site = site.as_ref().map(ToString::to_string);
                    let args = json!({ "freed at": site });
                    let what = ("e", "block", *number);
                    let event = self.slice(time, Some(stream), what, name, args);
                    self.events.push(event);
                }
            }
            HistoryEvent::Waited {
                stream,
                requested,
                waited,
                outcome,
                ..
            } => {
                self.waits += 1;
                let purpose = if stream.is_none() { " to reserve" } else { "" };
                let name = format!("waiting for {}{purpose}", Bytes(*requested));
                let args = json!({ "outcome": outcome.name() });
                for (phase, at) in [("b", time.saturating_sub(*waited)), ("e", time)] {
                    let what = (phase, "wait", self.waits);
                    let event = self.slice(at, *stream, what, name.clone(), args.clone());
                    self.events.push(event);
                }
            }
            HistoryEvent::Grown { .. }
            | HistoryEvent::Remapped { .. }
            | HistoryEvent::Released { .. } => self.instant(time, POOL, "p", event.to_string()),
            HistoryEvent::OutOfMemory { stream, .. } => {
                self.streams.extend(stream);
                self.instant(time, process_of(*stream), "g", event.to_string());
            }
            HistoryEvent::DeviceWait { stream, .. } => {
                self.streams.insert(*stream);
                self.instant(time, process_of(Some(*stream)), "p", event.to_string());
            }
            HistoryEvent::Submitted { stream, name, .. } => {
                self.streams.insert(*stream);
                self.instant(time, process_of(Some(*stream)), "p", name.to_string());
            }
            _ => {}
        }
    }

    fn begin(
        &mut self,
        time: Duration,
        stream: StreamId,
        (address, size): (DeviceAddress, u64),
        origin: &BlockOrigin,
    ) {
        let tag = origin.tag.map(|tag| tag.name());
        let name = format!(
            "{}{}",
            Bytes(size),
            tag.map(|tag| format!(" for {tag}")).unwrap_or_default()
        );
        let args = json!({
            "address": address.to_string(),
            "size": size,
            "requested": origin.requested,
            "site": origin.site.to_string(),
            "tag": tag,
            "source": origin.source.name(),
            "waited": origin.waited,
        });
        let what = ("b", "block", origin.number);
        let event = self.slice(time, Some(stream), what, name.clone(), args);
        self.events.push(event);
        self.begun.insert(origin.number, (stream, name));
    }

    /// Returns the begin or end event of a slice of a stream, or of the pool.
    fn slice(
        &mut self,
        time: Duration,
        stream: Option<StreamId>,
        (phase, category, id): (&'static str, &'static str, u64),
        name: String,
        args: Value,
    ) -> Event {
        self.streams.extend(stream);
        Event {
            cat: Some(category),
            id: Some(format!("{category} {id}")),
            ..event(phase, time, process_of(stream), name, args)
        }
    }

    fn instant(&mut self, time: Duration, process: u64, reach: &'static str, name: String) {
        self.events.push(Event {
            s: Some(reach),
            ..event("i", time, process, name, json!({}))
        });
    }

    /// Returns all events, with the names of the tracks first.
    fn finish(self) -> Vec<Event> {
        let streams = self.streams.iter();
        let streams = streams.map(|stream| {
            (
                process_of(Some(*stream)),
                format!("stream {}", StreamLabel::new(*stream, &self.names)),
            )
        });
        let processes = std::iter::once((POOL, "pool".to_owned())).chain(streams);
        let named = processes.map(|(process, name)| {
            let args = json!({ "name": name });
            event("M", Duration::ZERO, process, "process_name".into(), args)
        });
        named.chain(self.events).collect()
    }
}

fn counters(time: Duration, occupancy: Occupancy) -> Event {
    let Occupancy {
        reserved,
        used,
        pending,
        free,
        ..
    } = occupancy;
    let cached = reserved.saturating_sub(used + pending + free);
    let args = json!({
        "reserved": reserved, "used": used, "pending": pending, "free": free, "cached or set aside": cached,
    });
    event("C", time, POOL, "memory in bytes".into(), args)
}

fn event(ph: &'static str, time: Duration, pid: u64, name: String, args: Value) -> Event {
    Event {
        name,
        ph,
        ts: time.as_nanos() as f64 / 1e3,
        pid,
        tid: 0,
        cat: None,
        id: None,
        s: None,
        args,
    }
}

/// Returns the process of a stream, or of the pool for events of no stream. Streams are numbered from 1 up.
fn process_of(stream: Option<StreamId>) -> u64 {
    stream.map_or(POOL, |stream| stream.0)
}
