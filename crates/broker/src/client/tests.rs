use super::*;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use weirpool_wire::Listener;

/// As long as the tests wait for a broker that says nothing.
const PATIENCE: Duration = Duration::from_millis(20);

/// A folder of a test's own, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("weirpool-client-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        Self(path)
    }

    fn config(&self) -> ClientConfig {
        ClientConfig {
            socket: self.0.join("broker"),
            name: "client".into(),
            share: Share::default(),
            headroom: 0,
        }
    }

    fn listener(&self) -> Listener {
        Listener::bind(self.0.join("broker"), Allowed::own()).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn refusal(folder: &Folder) -> ClientError {
    let joined = admitted(&folder.config(), 1, 0, 0, PATIENCE);
    joined.map(drop).unwrap_err()
}

#[test]
fn silent_broker_is_told_from_one_that_is_missing() {
    let folder = Folder::new("silent");
    let missing = refusal(&folder);
    assert!(matches!(missing, ClientError::Unreachable { .. }));
    assert!(missing.to_string().starts_with("no broker listens"));
    let listener = folder.listener();
    let silent = refusal(&folder);
    assert!(matches!(silent, ClientError::Silent { .. }), "{silent}");
    let text = silent.to_string();
    assert!(
        text.contains("is silent") && text.contains("did not answer"),
        "{text}"
    );
    let mut watch = Watch::connect_within(&folder.config().socket, PATIENCE).unwrap();
    let silent = watch.next_figures().unwrap_err();
    assert!(matches!(silent, ClientError::Silent { .. }), "{silent}");
    drop(listener);
}

#[test]
fn broker_whose_queue_is_full_is_silent() {
    let folder = Folder::new("full-queue");
    let listener = folder.listener();
    let connections: Vec<_> = (0..1000)
        .map_while(|_| connect(&folder.config().socket, PATIENCE).ok())
        .collect();
    assert!(
        (1..1000).contains(&connections.len()),
        "{}",
        connections.len()
    );
    let silent = refusal(&folder);
    assert!(matches!(silent, ClientError::Silent { .. }), "{silent}");
    drop(listener);
}

#[test]
fn broker_that_closes_the_connection_before_its_answer_is_silent() {
    let folder = Folder::new("closes");
    let listener = folder.listener();
    let closing = thread::spawn(move || {
        for _ in 0..2 {
            drop(listener.accept().unwrap());
        }
    });
    let silent = refusal(&folder);
    assert!(matches!(silent, ClientError::Silent { .. }), "{silent}");
    let mut watch = Watch::connect(&folder.config().socket).unwrap();
    let silent = watch.next_figures().unwrap_err();
    assert!(matches!(silent, ClientError::Silent { .. }), "{silent}");
    closing.join().unwrap();
}

#[test]
fn broker_of_another_version_is_refused() {
    let folder = Folder::new("version");
    let listener = folder.listener();
    let answering = thread::spawn(move || {
        let connection = listener.accept().unwrap();
        let welcome = Reply::Welcome {
            version: 99,
            capacity: 64 << 20,
            terms: Terms::default(),
        };
        connection.send(&welcome, &[]).unwrap();
        let _ = connection.receive::<Request>();
        let _ = connection.receive::<Request>();
    });
    let refused = Client::join(folder.config()).map(drop).unwrap_err();
    assert!(matches!(refused, ClientError::Protocol(_)), "{refused}");
    assert!(refused.to_string().contains("version 99"), "{refused}");
    answering.join().unwrap();
}
