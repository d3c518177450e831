//! The live page of the first pool, on a thread of its own.

use super::message::{program, say};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime;
use weirpool::Pool;
use weirpool_dashboard::Dashboard;

/// How long a browser may take for the head of a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves the page at a port of the loopback interface, and says where.
pub(super) fn serve(pool: &Pool, port: u16) {
    if let Err(error) = start(pool.clone(), port) {
        say(&format!("no page on port {port} of 127.0.0.1: {error}"));
    }
}

fn start(pool: Pool, port: u16) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", port)))?;
    let address = listener.local_addr()?;
    let title = program().unwrap_or_else(|| "pool".into());
    let serving = move || runtime.block_on(accept(listener, pool, title));
    std::thread::Builder::new()
        .name("weirpool page".into())
        .spawn(serving)?;
    say(&format!("the page is at http://{address}"));
    Ok(())
}

async fn accept(listener: TcpListener, pool: Pool, title: String) {
    let dashboard = Dashboard::new(&pool).title(title);
    drop(pool);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // The process may be out of descriptors.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let service = TowerToHyperService::new(dashboard.clone());
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(connection);
    }
}
