//! The weights on the device: copied from the host, or attached where a process before this one published them.

use super::WEIGHTS;
use crate::model::{Shape, Weights};
use anyhow::Context;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use weirpool::{Block, Pool, Stream, Tag};
use weirpool_tiers::Region;

/// Weights are copied in pieces, since each is staged in pinned memory.
const PIECE: usize = 64 << 20;

/// Where the weights come from.
pub(crate) struct Source {
    /// The sizes of generated weights. A file has its own, but for the heads.
    pub(crate) shape: Shape,
    pub(crate) file: Option<PathBuf>,
    pub(crate) seed: u64,
    /// The name under which they outlive the server.
    pub(crate) publish: Option<String>,
    /// When the server was started.
    pub(crate) begun: Instant,
}

impl Source {
    /// Reads or generates the weights, on a thread of its own: this future can be dropped meanwhile.
    async fn read(&self) -> anyhow::Result<Weights> {
        let (shape, seed, path) = (self.shape, self.seed, self.file.clone());
        let weights = tokio::task::spawn_blocking(move || match path {
            Some(path) => Weights::read(&path, shape.heads),
            None => Ok(Weights::generate(shape, seed)),
        });
        Ok(weights.await.context("the weights cannot be prepared")??)
    }
}

/// The weights, in memory of this process or published.
pub(super) enum OnDevice {
    Own(Block),
    #[cfg(target_os = "linux")]
    Attached(weirpool_share::ipc::Attached),
}

impl Deref for OnDevice {
    type Target = Block;

    fn deref(&self) -> &Block {
        match self {
            Self::Own(block) => block,
            #[cfg(target_os = "linux")]
            Self::Attached(attached) => &attached.blocks()[0],
        }
    }
}

/// The time from the start of the server to its first token, which is told once.
pub(super) struct FirstToken {
    begun: Instant,
    how: &'static str,
    is_told: AtomicBool,
}

impl FirstToken {
    pub(super) fn note(&self) {
        if !self.is_told.swap(true, Ordering::Relaxed) {
            let took = self.begun.elapsed();
            tracing::info!(
                "the first token came {took:.3?} after the start, with weights that were {}",
                self.how
            );
        }
    }
}

/// Weights that are ready for use.
pub(super) struct Ready {
    pub(super) weights: Arc<OnDevice>,
    pub(super) shape: Shape,
    /// The bytes that count under a name, and not in the pool.
    pub(super) published: u64,
    pub(super) first: FirstToken,
}

/// Attaches the weights, or reads them and copies them to the device. Checks their shape before that.
pub(super) async fn make_ready(
    source: &Source,
    pool: &Pool,
    region: Option<&Region>,
    stream: &Stream,
    check: impl Fn(&Shape) -> anyhow::Result<()>,
) -> anyhow::Result<Ready> {
    let ready = |weights, shape, published, how| Ready {
        weights: Arc::new(weights),
        shape,
        published,
        first: FirstToken {
            begun: source.begun,
            how,
            is_told: AtomicBool::new(false),
        },
    };
    #[cfg(target_os = "linux")]
    if let Some(name) = &source.publish {
        let (weights, shape, how) =
            named::attach_or_publish(source, name, pool, stream, check).await?;
        let published = shape.weight_bytes();
        return Ok(ready(weights, shape, published, how));
    }
    let weights = source.read().await?;
    let shape = weights.shape();
    check(&shape)?;
    let block = load(pool, region, stream, &weights).await?;
    Ok(ready(OnDevice::Own(block), shape, 0, "loaded"))
}

/// Copies the weights to the device.
async fn load(
    pool: &Pool,
    region: Option<&Region>,
    stream: &Stream,
    weights: &Weights,
) -> anyhow::Result<Block> {
    let bytes = weights.bytes();
    let (size, tag) = (bytes.len() as u64, Tag::new(WEIGHTS));
    // Held until all of it is written.
    let (mut block, _entered) = match region {
        None => (pool.allocate(stream, size).tag(tag).await?, None),
        Some(region) => {
            let entered = region.enter().await?;
            (region.allocate(stream, size).await?, Some(entered))
        }
    };
    for (index, piece) in bytes.chunks(PIECE).enumerate() {
        block.upload(stream, (index * PIECE) as u64, piece)?.await?;
    }
    Ok(block)
}

#[cfg(target_os = "linux")]
mod named {
    use super::{OnDevice, PIECE, Source};
    use crate::model::{Shape, Weights};
    use anyhow::Context;
    use serde::{Deserialize, Serialize};
    use std::time::{Duration, Instant, UNIX_EPOCH};
    use weirpool::{Pool, Stream};
    use weirpool_broker::names::NameError;
    use weirpool_share::ipc::{AllocateExportable, Attached, Publish, PublishError};

    /// How long a broker that was started again may take to have the memory back.
    const PATIENCE: Duration = Duration::from_secs(5);

    /// The second block of published weights.
    #[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
    struct About {
        shape: Shape,
        origin: String,
    }

    impl About {
        /// Other weights in the same file have another origin: its size and the time of its last change are part of it.
        fn of(source: &Source, shape: Shape) -> anyhow::Result<Self> {
            let origin = match &source.file {
                Some(path) => {
                    let shown = path.display();
                    let facts = path.canonicalize().and_then(|whole| {
                        let facts = std::fs::metadata(&whole)?;
                        Ok((whole, facts.len(), facts.modified()?))
                    });
                    let (whole, bytes, changed) =
                        facts.with_context(|| format!("the file {shown} cannot be read"))?;
                    let changed = changed.duration_since(UNIX_EPOCH).unwrap_or_default();
                    let (whole, changed) = (whole.display(), changed.as_nanos());
                    format!("{whole}, {bytes} bytes, changed {changed} ns after 1970")
                }
                None => format!("seed {}", source.seed),
            };
            Ok(Self { shape, origin })
        }
    }

    /// Attaches the weights, or is the server that publishes them. Returns how they came.
    pub(super) async fn attach_or_publish(
        source: &Source,
        name: &str,
        pool: &Pool,
        stream: &Stream,
        check: impl Fn(&Shape) -> anyhow::Result<()>,
    ) -> anyhow::Result<(OnDevice, Shape, &'static str)> {
        let begun = Instant::now();
        loop {
            if let Some(attached) = attach(name, pool, stream).await? {
                let shape = shape_of(source, &attached, stream).await?;
                check(&shape)?;
                let (version, took) = (attached.version(), begun.elapsed());
                tracing::info!("attached the weights {name:?}, version {version}, in {took:.3?}");
                return Ok((OnDevice::Attached(attached), shape, "attached"));
            }
            // Before the file is read: one that is replaced meanwhile is not taken for the new one.
            let origin = About::of(source, source.shape)?.origin;
            let weights = source.read().await?;
            let shape = weights.shape();
            check(&shape)?;
            let about = About { shape, origin };
            if let Some(block) = publish(about, name, pool, stream, &weights).await? {
                let took = begun.elapsed();
                tracing::info!("loaded the weights and published them as {name:?} in {took:.3?}");
                return Ok((block, shape, "loaded"));
            }
            // Another server was faster.
        }
    }

    async fn attach(name: &str, pool: &Pool, stream: &Stream) -> anyhow::Result<Option<Attached>> {
        let begun = Instant::now();
        loop {
            match pool.attach(name, stream).await {
                Ok(attached) => return Ok(Some(attached)),
                Err(PublishError::Name(NameError::NotPublished { .. })) => return Ok(None),
                Err(PublishError::Name(NameError::Lost { .. })) if begun.elapsed() < PATIENCE => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Checks that the memory has the weights that are meant. Returns their shape.
    async fn shape_of(
        source: &Source,
        attached: &Attached,
        stream: &Stream,
    ) -> anyhow::Result<Shape> {
        let name = attached.name();
        let [weights, about] = attached.blocks() else {
            anyhow::bail!("{name:?} has no weights of this server; choose another name");
        };
        let about = about.download(stream, 0..about.requested())?.await?;
        let about: About = serde_json::from_slice(&about)
            .map_err(|error| anyhow::anyhow!("{name:?} has no weights of this server: {error}"))?;
        let meant = match source.file {
            // The file has the other sizes.
            Some(_) => {
                let heads = source.shape.heads;
                let shape = Shape {
                    heads,
                    ..about.shape
                };
                About::of(source, shape)
            }
            None => About::of(source, source.shape),
        }?;
        anyhow::ensure!(
            about == meant,
            "{name:?} has the weights of {about:?}, not of {meant:?}; choose another name, or withdraw it with `weirpool broker drop`"
        );
        let bytes = about.shape.weight_bytes();
        anyhow::ensure!(
            about.shape.invalid().is_none() && weights.requested() == bytes,
            "{name:?} has {} bytes of weights, not {bytes}",
            weights.requested()
        );
        Ok(about.shape)
    }

    /// Copies the weights to memory that can be published. Returns `None` if another server has published some.
    async fn publish(
        about: About,
        name: &str,
        pool: &Pool,
        stream: &Stream,
        weights: &Weights,
    ) -> anyhow::Result<Option<OnDevice>> {
        let bytes = weights.bytes();
        let mut block = pool.allocate_exportable(stream, bytes.len() as u64).await?;
        for (index, piece) in bytes.chunks(PIECE).enumerate() {
            block.upload(stream, (index * PIECE) as u64, piece)?.await?;
        }
        let text = serde_json::to_vec(&about)?;
        let mut about = pool.allocate_exportable(stream, text.len() as u64).await?;
        about.upload(stream, 0, &text)?.await?;
        match pool.publish(name, [&block, &about]).await {
            Ok(_) => Ok(Some(OnDevice::Own(block.into_block()))),
            Err(PublishError::Name(NameError::Taken { .. })) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
