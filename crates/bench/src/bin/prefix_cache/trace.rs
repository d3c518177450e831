//! Requests, as the blocks of their prompts.

use anyhow::{Context, ensure};
use flate2::read::MultiGzDecoder;
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// The longest line, in bytes.
const LONGEST: u64 = 1 << 20;

/// The requests of a trace, in their order.
pub(crate) struct Trace {
    pub(crate) name: String,
    /// The blocks of each request. Equal numbers are equal contents behind equal contents.
    pub(crate) requests: Vec<Vec<u64>>,
}

impl Trace {
    /// Reads a file of JSON lines.
    ///
    /// # Errors
    /// Returns an error that names the line, if the file cannot be read or is malformed.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let file = File::open(path).with_context(|| path.display().to_string())?;
        let source: Box<dyn Read> = match path.extension().is_some_and(|name| name == "gz") {
            true => Box::new(MultiGzDecoder::new(BufReader::new(file))),
            false => Box::new(file),
        };
        let mut source = BufReader::new(source);
        let (mut requests, mut line) = (Vec::new(), String::new());
        loop {
            let at = || format!("{}, line {}", path.display(), requests.len() + 1);
            line.clear();
            let read = source.by_ref().take(LONGEST).read_line(&mut line);
            if read.with_context(at)? == 0 {
                break;
            }
            let parsed: serde_json::Value = serde_json::from_str(&line).with_context(at)?;
            let ids = parsed["hash_ids"].as_array().into_iter().flatten();
            let ids: Option<Vec<u64>> = ids.map(serde_json::Value::as_u64).collect();
            let ids = ids.filter(|ids| !ids.is_empty());
            requests.push(ids.with_context(|| format!("{}: no `hash_ids`", at()))?);
        }
        ensure!(!requests.is_empty(), "{}: no request", path.display());
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Ok(Self {
            name: name.into_owned(),
            requests,
        })
    }

    /// Makes up conversations: each request of one goes on with the blocks of its earlier requests. Some of them begin alike.
    pub(crate) fn made_up() -> Self {
        const CONVERSATIONS: u64 = 120;
        let mut random = fastrand::Rng::with_seed(7);
        let mut lengths = vec![0; CONVERSATIONS as usize];
        let requests = (0..1500).map(|_| {
            let conversation = random
                .u64(0..CONVERSATIONS)
                .min(random.u64(0..CONVERSATIONS));
            let length = &mut lengths[conversation as usize];
            *length = if *length > 40 {
                4
            } else {
                *length + random.u64(1..8)
            };
            let block = |at| match at {
                0..2 => at,
                _ => 1000 * (conversation + 1) + at,
            };
            (0..*length).map(block).collect()
        });
        Self {
            requests: requests.collect(),
            name: "made up".to_owned(),
        }
    }

    /// Returns the number of blocks of all requests.
    pub(crate) fn blocks(&self) -> usize {
        self.requests.iter().map(Vec::len).sum()
    }

    /// Returns the number of blocks that differ.
    pub(crate) fn different(&self) -> usize {
        let all: HashSet<_> = self.requests.iter().flatten().collect();
        all.len()
    }
}
