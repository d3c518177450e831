//! Requests to an inference server, and what became of them.
//!
//! | module | purpose |
//! |---|---|
//! | `plan` | which requests are sent, drawn from a seed |
//! | `client` | one request, from its arrival to its end |
//! | `events` | server-sent events, in bounded memory |
//! | `descriptors` | the limit of open connections |
//! | `record`, `report` | counts and times, and how they are printed |

mod client;
mod descriptors;
mod events;
pub(crate) mod plan;
mod record;
mod report;

use crate::options::Load;
use crate::output;
use crate::read::arrivals::{self, Arrival};
use crate::trace::limits::Limits;
use anyhow::Context;
use client::Client;
use plan::Plan;
use record::End;
use report::Report;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The rate of arrivals unless the options name one, or clients.
const RATE: f64 = 10.0;
/// How long one of `--clients` waits after a request that reached no server.
const PAUSE: Duration = Duration::from_millis(10);

/// The tokens that a request in flight counts for at least.
const LEAST_TOKENS: u32 = 1 << 10;

/// How long an address of a server that has several may take to accept a connection.
const PATIENCE: Duration = Duration::from_secs(1);

/// Puts a server under load, and prints what became of the requests.
///
/// # Errors
/// Returns an error if the file of arrivals is malformed, if the server's name has no address, if counts contradict each other, or if the server answered no
/// request.
pub(crate) fn run(options: &Load) -> anyhow::Result<()> {
    // A pipe can be read only once.
    if let Some(path) = options.arrivals.as_deref()
        && !path.metadata().is_ok_and(|data| !data.is_file())
    {
        arrivals::read(path, Limits::default(), |_| ControlFlow::Continue(()))?;
    }
    let (host, port) = (&*options.url.host, options.url.port);
    let address = address(host, port).with_context(|| format!("{host} has no address"))?;
    let client = Arc::new(Client::new(options.clone(), address));
    let runtime = Builder::new_multi_thread()
        .enable_io()
        .enable_time()
        .build()?;
    let start = Instant::now();
    let mut tasks = match options.clients {
        Some(clients) => send_in_turn(&runtime, &client, options, clients, start),
        None => send_at_times(&runtime, &client, options, start)?,
    };
    // A task that panicked has no end in the counts.
    runtime.block_on(async { while tasks.join_next().await.is_some() {} });
    let elapsed = start.elapsed();
    let recorder = client.recorder();
    let report = Report::new(&recorder, elapsed);
    if options.json {
        output::print(&(serde_json::to_string(&report)? + "\n"))?;
    } else {
        output::print(&report.text())?;
    }
    recorder.check()?;
    anyhow::ensure!(
        !recorder.statuses.is_empty(),
        "{host}:{port} answered none of {} requests",
        recorder.begun
    );
    Ok(())
}

/// Returns an address of the server. If it has several, as `localhost` may, this is the first that takes a connection, or
/// any if none does.
fn address(host: &str, port: u16) -> anyhow::Result<SocketAddr> {
    let all: Vec<_> = (host, port).to_socket_addrs()?.collect();
    let answers = |address: &&SocketAddr| TcpStream::connect_timeout(address, PATIENCE).is_ok();
    let found = match all.len() {
        0 | 1 => None,
        _ => all.iter().find(answers),
    };
    found
        .or(all.first())
        .copied()
        .context("the name is not known")
}

/// Sends requests at recorded times, or else at random ones. This thread sleeps by itself: timers of the runtime have
/// steps of a millisecond. While as much is in flight as `--in-flight` allows, further requests wait; their
/// times begin at their arrivals all the same.
///
/// # Errors
/// Returns an error if the file of arrivals cannot be read.
fn send_at_times(
    runtime: &Runtime,
    client: &Arc<Client>,
    options: &Load,
    start: Instant,
) -> anyhow::Result<JoinSet<()>> {
    let mut plan = Plan::new(options, 0);
    let rate = options.rate.unwrap_or(RATE);
    let mut tasks = JoinSet::new();
    let mut at = Duration::ZERO;
    let mut left = options.requests.unwrap_or(u64::MAX);
    let in_flight = Arc::new(Semaphore::new(options.in_flight as usize));
    let mut send = |next: Option<Arrival>| {
        at = match next {
            None => at + plan.pause(rate),
            Some(arrival) => arrival.at.div_f64(options.speed),
        };
        if at >= options.duration || left == 0 {
            return ControlFlow::Break(());
        }
        let planned = plan.draw(next);
        let tokens = u32::try_from(planned.prompt.len()).unwrap_or(u32::MAX);
        let tokens = tokens.max(LEAST_TOKENS).min(options.in_flight);
        let arrival = start + at;
        thread::sleep(arrival.saturating_duration_since(Instant::now()));
        let permit = runtime.block_on(in_flight.clone().acquire_many_owned(tokens));
        client.recorder().arrived(planned.key);
        let client = client.clone();
        let serve = async move {
            client.serve(planned, arrival).await;
            drop(permit);
        };
        tasks.spawn_on(serve, runtime.handle());
        // Results of tasks that have ended are not kept.
        while tasks.try_join_next().is_some() {}
        left -= 1;
        ControlFlow::Continue(())
    };
    match &options.arrivals {
        None => while send(None).is_continue() {},
        Some(path) => arrivals::read(path, Limits::default(), |arrival| send(Some(arrival)))?,
    }
    Ok(tasks)
}

/// Each client sends its requests one after the other.
fn send_in_turn(
    runtime: &Runtime,
    client: &Arc<Client>,
    options: &Load,
    clients: u32,
    start: Instant,
) -> JoinSet<()> {
    let left = Arc::new(AtomicU64::new(options.requests.unwrap_or(u64::MAX)));
    let mut tasks = JoinSet::new();
    for number in 0..clients {
        let (client, left, mut plan) = (client.clone(), left.clone(), Plan::new(options, number));
        let until = start + options.duration;
        let serve = async move {
            let takes_one = || {
                let taken = |left: u64| left.checked_sub(1);
                left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken)
                    .is_ok()
            };
            while Instant::now() < until && takes_one() {
                let planned = plan.draw(None);
                client.recorder().arrived(planned.key);
                let end = client.serve(planned, Instant::now()).await;
                if matches!(end, End::TransportError | End::Unsent) {
                    tokio::time::sleep(PAUSE).await;
                }
            }
        };
        tasks.spawn_on(serve, runtime.handle());
    }
    tasks
}
