//! The program; see the library.

use clap::Parser;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;
use weirpool_server::{Config, Flags, Server};

fn main() -> ExitCode {
    weirpool_server::prepare();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let flags = Flags::parse();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.into()),
    };
    let ran = runtime.block_on(run(&flags));
    // A signal may have come while a thread reads the weights: it is not waited for.
    runtime.shutdown_background();
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    tracing::error!("{error:#}");
    ExitCode::FAILURE
}

async fn run(flags: &Flags) -> anyhow::Result<()> {
    let config = Config::load(flags)?;
    let mut signals = Signals::new()?;
    let server = tokio::select! {
        server = Server::start(config) => server?,
        () = signals.next() => return Ok(()),
    };
    let address = server.listen().await?;
    tracing::info!("listening on http://{address}");
    signals.next().await;
    tracing::info!("shutting down: running answers are completed; a second signal exits at once");
    tokio::select! {
        result = server.shut_down() => {
            result?;
            tracing::info!("all memory was returned");
            Ok(())
        }
        () = signals.next() => {
            tracing::warn!("exiting at once");
            // The usual status of a process that a signal ended.
            std::process::exit(130)
        }
    }
}

/// The signals that end the server.
struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        #[cfg(unix)]
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            #[cfg(unix)]
            terminate: signal(SignalKind::terminate())?,
            #[cfg(unix)]
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal. Returns at once if one came since the last call.
    async fn next(&mut self) {
        #[cfg(unix)]
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
        #[cfg(not(unix))]
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
