//! The load of the server, for load balancers: HAProxy's agent checks, and the header that Envoy reads.
//!
//! An agent check is a connection that gets one line: `drain` while the server shuts down, `down` once it must be restarted,
//! and otherwise `up` with the part of its weight that the server asks for. In the first seconds of the server the line begins
//! with `ready`, which takes back the `drain` of the server before it, and that of an operator
//! ([HAProxy](https://docs.haproxy.org/2.6/configuration.html#5.2-agent-check)). The header is a report of the load in the
//! text format of ORCA ([xDS](https://github.com/cncf/xds/blob/main/xds/data/orca/v3/orca_load_report.proto)).

use crate::engine::Use;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

/// The expected wait at which the server asks for half of its weight.
const HALF: Duration = Duration::from_millis(100);

/// How long a server that has started takes back the `drain` of the one before it.
const NEW: Duration = Duration::from_secs(10);

/// The header with the load, which Envoy reads.
pub(crate) const LOAD: &str = "endpoint-load-metrics";

/// The state of the server, as an agent check asks for it.
pub(crate) enum State {
    /// The server must be restarted.
    Down,
    /// It shuts down.
    Drain,
    Up(Use),
}

/// Answers agent checks until there is no state any more.
pub(crate) async fn run(listener: TcpListener, state: impl Fn() -> Option<State>) {
    let begun = Instant::now();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // For example, no file descriptor is left.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Some(state) = state() else {
            return;
        };
        // A line fits the buffer of a new connection.
        if stream.writable().await.is_ok() {
            let _ = stream.try_write(line(&state, begun.elapsed() < NEW).as_bytes());
        }
    }
}

/// Returns the answer to an agent check.
fn line(state: &State, is_new: bool) -> String {
    match state {
        State::Down => "down\n".to_owned(),
        State::Drain => "drain\n".to_owned(),
        State::Up(load) if is_new => format!("ready up {}%\n", weight(*load)),
        State::Up(load) => format!("up {}%\n", weight(*load)),
    }
}

/// Returns the part of the weight, in percent: less, the longer a request of the largest size is expected to wait, and
/// divided by the requests for each place where there are more than one.
fn weight(load: Use) -> u32 {
    let half = HALF.as_secs_f64();
    let by_wait = half / (half + load.expected_wait.as_secs_f64());
    let weight = 100.0 * by_wait / load.of_places().max(1.0);
    (weight as u32).clamp(1, 100)
}

/// Returns the load as the value of a header. Envoy weighs servers by the utilization and the rate in it.
pub(crate) fn report(load: Use, rate: f64) -> String {
    let Use {
        waiting,
        running,
        expected_wait,
        ..
    } = load;
    format!(
        "TEXT application_utilization={:.4},mem_utilization={:.4},rps_fractional={rate:.3},\
         named_metrics.queued_requests={waiting},named_metrics.running_requests={running},\
         named_metrics.kv_cache_utilization={:.4},named_metrics.expected_wait_seconds={:.4}",
        load.of_places(),
        load.of_pages(),
        load.of_pages(),
        expected_wait.as_secs_f64(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_asks_for_less_the_longer_requests_wait() {
        let load = |milliseconds, running| Use {
            waiting: 0,
            running,
            places: 64,
            pages: (1, 4),
            expected_wait: Duration::from_millis(milliseconds),
        };
        let weight = |milliseconds, running| weight(load(milliseconds, running));
        assert_eq!(
            [weight(0, 0), weight(0, 64), weight(100, 64)],
            [100, 100, 50]
        );
        assert_eq!(weight(0, 128), 50);
        assert_eq!(
            weight(u64::MAX, usize::MAX),
            1,
            "it is never 0: that is to drain"
        );
        let report = report(load(100, 16), 2.5);
        assert!(report.starts_with(
            "TEXT application_utilization=0.2500,mem_utilization=0.2500,rps_fractional=2.500,"
        ));
        assert!(report.ends_with(",named_metrics.expected_wait_seconds=0.1000"));
    }
}
