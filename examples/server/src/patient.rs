//! Connections to clients that may read slowly.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// The bytes that a client must accept within the timeout, unless it accepts all that there are: 16 KiB. Otherwise a
/// client that reads a byte now and then could keep its connection forever.
const PROGRESS: usize = 16 << 10;

/// A connection on which writes fail if the client reads too slowly.
pub(crate) struct Patient<T> {
    inner: T,
    timeout: Duration,
    /// Runs while the client is behind.
    timer: Option<Pin<Box<Sleep>>>,
    /// The bytes that were accepted since the timer was set.
    accepted: usize,
}

impl<T> Patient<T> {
    pub(crate) fn new(inner: T, timeout: Duration) -> Self {
        Self {
            inner,
            timeout,
            timer: None,
            accepted: 0,
        }
    }

    /// Notes the result of a write.
    fn noted(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => {
                self.accepted += bytes;
                if self.accepted >= PROGRESS
                    && let Some(timer) = &mut self.timer
                {
                    timer.as_mut().reset(Instant::now() + self.timeout);
                    self.accepted = 0;
                }
                written
            }
            Poll::Ready(Err(_)) => written,
            Poll::Pending => {
                if self.timer.is_none() {
                    self.accepted = 0;
                }
                let timer = self
                    .timer
                    .get_or_insert_with(|| Box::pin(sleep(self.timeout)));
                timer.as_mut().poll(context).map(|()| {
                    let message = "the client reads too slowly";
                    Err(io::Error::new(io::ErrorKind::TimedOut, message))
                })
            }
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Patient<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Patient<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.noted(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.noted(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    /// Stops the timer: this is called once all was written, so the client is not behind.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.timer = None;
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    /// Writes 256 KiB to a client that reads `bytes` each second, with a timeout of 10 s.
    async fn written_to_client(bytes: usize) -> io::Result<()> {
        let (server, mut client) = duplex(4 << 10);
        let client = tokio::spawn(async move {
            let mut buffer = vec![0; bytes];
            while client.read_exact(&mut buffer).await.is_ok() {
                sleep(Duration::from_secs(1)).await;
            }
        });
        let mut server = Patient::new(server, Duration::from_secs(10));
        let written = server.write_all(&[0; 256 << 10]).await;
        drop(server);
        client.await.unwrap();
        written
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_reads_a_byte_now_and_then_is_cut_off() {
        let begin = Instant::now();
        let error = written_to_client(1).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begin.elapsed() >= Duration::from_secs(10));
        written_to_client(2 << 10).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_was_not_behind_may_pause() {
        let (server, mut client) = duplex(1 << 10);
        let mut server = Patient::new(server, Duration::from_secs(10));
        for _ in 0..3 {
            server.write_all(&[0; 1 << 10]).await.unwrap();
            server.flush().await.unwrap();
            sleep(Duration::from_secs(60)).await;
            let (written, read) = tokio::join!(server.write_all(b"x"), async {
                client.read_exact(&mut [0; 1 + (1 << 10)]).await
            });
            written.unwrap();
            read.unwrap();
            server.flush().await.unwrap();
        }
    }
}
