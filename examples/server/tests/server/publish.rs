//! Servers whose weights outlive them: the next one attaches them, and loads nothing.

use crate::answers::assert_right;
use crate::common::{body, config, post, prompt, start, tokens_of, weights};
use crate::process::Program;
use axum::http::StatusCode;
use bytesize::ByteSize;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use weirpool_broker::{Broker, BrokerConfig, Running, Watch, withdraw};
use weirpool_server::Config;

/// A folder with the socket of a broker.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("weirpool-server-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("broker")
    }

    fn broker(&self) -> Running {
        let config = BrokerConfig::new(self.socket(), 32 << 20);
        Broker::bind(config).unwrap().spawn().unwrap()
    }

    /// Returns the bytes that the broker has free, and that have a name.
    fn free_and_named(&self) -> (u64, u64) {
        let mut watch = Watch::connect(&self.socket()).unwrap();
        let figures = watch.next_figures().unwrap().unwrap();
        (
            figures.free,
            figures.names.iter().map(|name| name.bytes).sum(),
        )
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn published(folder: &Folder) -> Config {
    Config {
        capacity: ByteSize::mib(16),
        broker: Some(folder.socket()),
        publish: Some("llama".into()),
        slowdown: 1.0,
        ..config()
    }
}

/// Fills a file with zeros, whose time of change stays: no server can load weights from it.
fn spoil(file: &Path) {
    let facts = std::fs::metadata(file).unwrap();
    std::fs::write(file, vec![0; facts.len() as usize]).unwrap();
    set_changed(file, facts.modified().unwrap());
}

fn set_changed(file: &Path, at: SystemTime) {
    let file = std::fs::File::options().write(true).open(file).unwrap();
    file.set_modified(at).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_server_attaches_the_weights_and_loads_nothing() {
    let folder = Folder::new("restart");
    let _broker = folder.broker();
    let mut config = published(&folder);
    let (weights, file) = (weights(&config), folder.0.join("weights.safetensors"));
    weights.write(&file).unwrap();
    config.model.weights = Some(file.clone());
    let mut named = 0;
    for round in 0..3 {
        let server = start(config.clone()).await;
        if round == 0 {
            spoil(&file);
            named = folder.free_and_named().1;
            assert!(named > 0);
        }
        // Once, under the name.
        assert_eq!(server.pool().inspect().statistics().charged, 0);
        assert_eq!(folder.free_and_named().1, named);
        let prompt = prompt(round, 20);
        let (status, answer) = post(&server, &body(&prompt, 20)).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        assert_right(&weights, &prompt, &tokens_of(&answer));
        server.shut_down().await.unwrap();
    }
    // Others of another model are not taken for these.
    let (mut seed, mut heads) = (published(&folder), config.clone());
    seed.model.seed = 2;
    heads.model.heads *= 2;
    let changed = std::fs::metadata(&file).unwrap().modified().unwrap();
    for (other, moved) in [(seed, 0), (heads, 0), (config.clone(), 1)] {
        set_changed(&file, changed + Duration::from_secs(moved));
        let refused = weirpool_server::Server::start(other).await;
        let refused = format!("{:#}", refused.err().expect("other weights"));
        assert!(refused.contains("choose another name"), "{refused}");
    }
    withdraw(&folder.socket(), "llama", Duration::from_secs(5))
        .unwrap()
        .unwrap();
    // The pools end in the background.
    while folder.free_and_named() != (32 << 20, 0) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let missing = weirpool_server::Server::start(config).await;
    assert!(missing.is_err(), "the weights have to be loaded again");
}

/// Asks a program for a token, kills it, and returns what it said.
fn killed_after_a_token(folder: &Folder) -> String {
    let socket = folder.socket();
    let arguments = [
        "--publish=llama",
        "--slowdown=1",
        "--width=64",
        "--layers=2",
        "--context=128",
        "--broker",
        socket.to_str().unwrap(),
    ];
    let (mut program, mut text) = Program::start_until(&arguments, "http://");
    let mut answer = String::new();
    let mut stream = program.ask(r#"{"prompt": "x", "max_tokens": 2, "stream": true}"#);
    let mut part = [0; 1024];
    while !answer.contains("[DONE]") {
        let bytes = stream.read(&mut part).unwrap();
        assert!(bytes > 0, "{answer}");
        answer.push_str(&String::from_utf8_lossy(&part[..bytes]));
    }
    program.signal("KILL");
    program.output_to(&mut text);
    text
}

#[test]
fn killed_server_tells_the_time_to_its_first_token_and_the_next_one_attaches() {
    let folder = Folder::new("killed");
    let _broker = folder.broker();
    let first = killed_after_a_token(&folder);
    assert!(first.contains("published them as \"llama\""), "{first}");
    assert!(
        first.contains("the first token came") && first.contains("that were loaded"),
        "{first}"
    );
    for _ in 0..2 {
        let next = killed_after_a_token(&folder);
        assert!(
            next.contains("attached the weights \"llama\", version"),
            "{next}"
        );
        assert!(
            next.contains("that were attached") && !next.contains("loaded"),
            "{next}"
        );
        println!("{first}{next}");
    }
}
