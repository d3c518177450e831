//! Clients that lie, send malformed messages, or read nothing. Others go on.

use crate::common::MIB;
use crate::{Folder, broker, broker_for_this_process};
use rustix::fs::{CWD, FileType, Mode};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;
use weirpool_broker::ledger::{Joining, Refused};
use weirpool_broker::message::{Reply, Request, VERSION};
use weirpool_broker::{Broker, BrokerConfig, BrokerError, LONGEST, Share, Statement, Watch};
use weirpool_wire::{Allowed, Connection, Error};

pub(crate) fn connect(folder: &Folder) -> Connection {
    let connection = Connection::connect(folder.socket(), &Allowed::own()).unwrap();
    connection
        .set_timeouts(None, Some(Duration::from_secs(30)))
        .unwrap();
    connection
}

pub(crate) fn joining(key: u64) -> Joining {
    Joining {
        key,
        name: "hostile".into(),
        share: Share::default(),
        granted: 0,
        returned: 0,
    }
}

pub(crate) fn join(folder: &Folder, client: Joining) -> (Connection, Reply) {
    let connection = connect(folder);
    let join = Request::Join {
        version: VERSION,
        client,
    };
    // One that refuses the connection may have closed it before the message.
    let sent = connection.send(&join, &[]);
    assert!(matches!(sent, Ok(()) | Err(Error::Closed)), "{sent:?}");
    let (reply, _) = connection.receive().unwrap();
    (connection, reply)
}

/// Asserts that the broker leases all of its capacity to an honest client.
fn assert_unharmed(folder: &Folder) {
    crate::processes::until(folder, |figures| figures.free == figures.capacity);
    let (connection, welcome) = join(folder, joining(fastrand::u64(..)));
    assert!(matches!(welcome, Reply::Welcome { .. }));
    let needs = 64 * MIB;
    connection
        .send(
            &Request::State(Statement {
                needs,
                ..Statement::default()
            }),
            &[],
        )
        .unwrap();
    let (reply, _) = connection.receive::<Reply>().unwrap();
    assert!(
        matches!(reply, Reply::Terms(terms) if terms.granted == needs),
        "{reply:?}"
    );
    let returned = Statement {
        needs,
        returned: needs,
        ..Statement::default()
    };
    connection.send(&Request::State(returned), &[]).unwrap();
    connection.send(&Request::Leave, &[]).unwrap();
    while connection.receive::<Reply>().is_ok() {}
}

#[test]
fn malformed_messages_are_refused() {
    let folder = Folder::new("frames");
    let _broker = broker(&folder.socket(), 64 * MIB);
    let frames: [&[u8]; 8] = [
        b"{}",
        b"[]",
        b"\xff\xfe\x00",
        br#"{"state":{"returned":-1,"needs":0,"wishes":0,"answered":0,"asks":0,"returning":0,"blocks":0,"used":0,"reserved":0,"waiting":0}}"#,
        br#"{"state":{"returned":1e30,"needs":0,"wishes":0,"answered":0,"asks":0,"returning":0,"blocks":0,"used":0,"reserved":0,"waiting":0}}"#,
        br#"{"join":{"version":1,"client":{"key":1,"name":"x","share":{"guaranteed":0,"limit":99999999999999999999,"weight":1},"granted":0,"returned":0}}}"#,
        br#""leave""#,
        &[b'['; 60_000],
    ];
    for frame in frames {
        let connection = connect(&folder);
        connection.send_raw(frame, &[]).unwrap();
        let (reply, _) = connection.receive::<Reply>().unwrap();
        assert!(
            matches!(reply, Reply::Refused(Refused::Protocol(_))),
            "{reply:?}"
        );
        assert!(matches!(connection.receive::<Reply>(), Err(Error::Closed)));
    }
    let old = connect(&folder);
    let watch = Request::Watch {
        version: VERSION + 1,
        seen: None,
    };
    old.send(&watch, &[]).unwrap();
    let (reply, _) = old.receive::<Reply>().unwrap();
    assert!(
        matches!(reply, Reply::Refused(Refused::Protocol(_))),
        "{reply:?}"
    );
    assert_unharmed(&folder);
}

#[test]
fn random_frames_harm_no_other_client() {
    let folder = Folder::new("random");
    let _broker = broker(&folder.socket(), 64 * MIB);
    let mut random = fastrand::Rng::with_seed(21);
    let valid = serde_json::to_vec(&Request::Join {
        version: VERSION,
        client: joining(7),
    })
    .unwrap();
    for _ in 0..500 {
        let connection = connect(&folder);
        for _ in 0..random.usize(1..4) {
            let mut frame = valid.clone();
            for _ in 0..random.usize(0..6) {
                let at = random.usize(..frame.len());
                frame[at] = random.u8(..);
            }
            frame.truncate(random.usize(1..=frame.len()));
            // The broker may have refused the one before.
            let _ = connection.send_raw(&frame, &[]);
        }
    }
    assert_unharmed(&folder);
}

#[test]
fn claims_and_repeated_confirms_gain_nothing() {
    let folder = Folder::new("claims");
    let _broker = broker(&folder.socket(), 64 * MIB);
    for granted in [65 * MIB, u64::MAX] {
        let (_, reply) = join(
            &folder,
            Joining {
                granted,
                ..joining(1)
            },
        );
        assert!(
            matches!(reply, Reply::Refused(Refused::Claim { .. })),
            "{reply:?}"
        );
    }
    let (_, reply) = join(
        &folder,
        Joining {
            returned: 1,
            ..joining(1)
        },
    );
    assert!(
        matches!(reply, Reply::Refused(Refused::Claim { .. })),
        "{reply:?}"
    );
    let overflowing = Joining {
        granted: u64::MAX,
        returned: u64::MAX,
        ..joining(2)
    };
    let (connection, reply) = join(&folder, overflowing);
    assert!(matches!(reply, Reply::Welcome { .. }));
    let most = Statement {
        returned: u64::MAX,
        needs: u64::MAX,
        wishes: u64::MAX,
        ..Statement::default()
    };
    connection.send(&Request::State(most), &[]).unwrap();
    drop(connection);

    let (connection, _) = join(&folder, joining(3));
    let needs = 32 * MIB;
    connection
        .send(
            &Request::State(Statement {
                needs,
                ..Statement::default()
            }),
            &[],
        )
        .unwrap();
    let _ = connection.receive::<Reply>().unwrap();
    let confirm = Request::State(Statement {
        needs,
        returned: 16 * MIB,
        ..Statement::default()
    });
    for _ in 0..3 {
        connection.send(&confirm, &[]).unwrap();
    }
    crate::processes::until(&folder, |figures| figures.free == 48 * MIB);
    let too_much = Request::State(Statement {
        needs,
        returned: 33 * MIB,
        ..Statement::default()
    });
    connection.send(&too_much, &[]).unwrap();
    let (reply, _) = connection.receive::<Reply>().unwrap();
    assert!(
        matches!(reply, Reply::Refused(Refused::Protocol(_))),
        "{reply:?}"
    );
    // The lease counts on, until the process ends or states it truly.
    crate::processes::until(&folder, |figures| figures.free == 48 * MIB);
    let (connection, _) = join(
        &folder,
        Joining {
            granted: needs,
            returned: needs,
            ..joining(3)
        },
    );
    connection.send(&Request::Leave, &[]).unwrap();
    assert_unharmed(&folder);
}

#[test]
fn client_that_reads_nothing_is_disconnected() {
    let folder = Folder::new("deaf");
    let _broker = broker(&folder.socket(), 64 * MIB);
    let deaf = connect(&folder);
    let watch = Request::Watch {
        version: VERSION,
        seen: None,
    };
    while deaf.send(&watch, &[]).is_ok() {}
    assert_unharmed(&folder);
}

/// The descriptors of this process, in which the broker runs.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn connections_without_end_leave_nothing_behind() {
    let folder = Folder::new("connections");
    let _broker = broker(&folder.socket(), 64 * MIB);
    assert_unharmed(&folder);
    for round in 0..400_u64 {
        let connection = connect(&folder);
        // It dies at each step: before it joins, after, with a need, or once it was granted.
        if round % 4 > 0 {
            let client = joining(round);
            let version = VERSION;
            connection
                .send(&Request::Join { version, client }, &[])
                .unwrap();
        }
        if round % 4 > 1 {
            let _ = connection.receive::<Reply>().unwrap();
        }
        if round % 4 > 2 {
            let needs = 48 * MIB;
            let statement = Statement {
                needs,
                ..Statement::default()
            };
            connection.send(&Request::State(statement), &[]).unwrap();
            // A lease that is not returned would stay: this process lives.
            let _ = connection.receive::<Reply>().unwrap();
            connection
                .send(
                    &Request::State(Statement {
                        returned: needs,
                        ..statement
                    }),
                    &[],
                )
                .unwrap();
        }
    }
    assert_unharmed(&folder);
    crate::common::eventually(|| descriptors() < 200);
    crate::processes::until(&folder, |figures| figures.clients.is_empty());
}

#[test]
fn more_clients_than_are_served_are_refused_and_cost_nothing() {
    let folder = Folder::new("full");
    let _broker = broker_for_this_process(&folder.socket(), 64 * MIB);
    let many: Vec<_> = (0..160).map(|_| connect(&folder)).collect();
    let refused = many.iter().filter(|connection| {
        let version = VERSION;
        let join = Request::Join {
            version,
            client: joining(fastrand::u64(..)),
        };
        let _ = connection.send(&join, &[]);
        !matches!(
            connection.receive::<Reply>(),
            Ok((Reply::Welcome { .. }, _))
        )
    });
    assert_eq!(refused.count(), 32);
    drop(many);
    crate::common::eventually(|| {
        let watch = weirpool_broker::Watch::connect(&folder.socket());
        watch.is_ok_and(|mut watch| watch.next_figures().is_ok())
    });
    assert_unharmed(&folder);
}

/// More than are served at once, and they send nothing.
#[test]
fn silent_connections_keep_no_client_out() {
    let folder = Folder::new("silent");
    let _broker = broker(&folder.socket(), 64 * MIB);
    let silent: Vec<_> = (0..160).map(|_| connect(&folder)).collect();
    for key in 0..8 {
        let (_, welcome) = join(&folder, joining(key));
        assert!(matches!(welcome, Reply::Welcome { .. }), "{welcome:?}");
    }
    assert_unharmed(&folder);
    drop(silent);
}

#[test]
fn process_has_a_share_of_the_connections() {
    let folder = Folder::new("share");
    let _broker = broker(&folder.socket(), 64 * MIB);
    let clients: Vec<_> = (0..40).map(|key| join(&folder, joining(key))).collect();
    let crowded = Refused::Crowded {
        process: std::process::id(),
        most: 32,
    };
    let refused = clients
        .iter()
        .filter(|(_, reply)| matches!(reply, Reply::Refused(refused) if *refused == crowded));
    assert_eq!(refused.count(), 8);
}

fn fifo(path: &Path) {
    let mode = Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(CWD, path, FileType::Fifo, mode, 0).unwrap();
}

#[test]
fn planted_files_end_no_running_broker() {
    let folder = Folder::new("planted");
    let _broker = broker(&folder.socket(), 64 * MIB);
    let (record, new) = (
        folder.file("broker.leases"),
        folder.file("broker.leases.new"),
    );
    let target = folder.file("target");
    fs::write(&target, "important").unwrap();
    let plants: [&dyn Fn(); 3] = [
        &|| symlink(&target, &new).unwrap(),
        &|| fs::write(&new, "").unwrap(),
        &|| fifo(&new),
    ];
    for (key, plant) in plants.iter().enumerate() {
        plant();
        let (_connection, welcome) = join(&folder, joining(key as u64));
        assert!(matches!(welcome, Reply::Welcome { .. }), "{welcome:?}");
        let state = fs::symlink_metadata(&record).unwrap();
        assert!(state.is_file());
        assert_eq!(state.mode() & 0o777, 0o600, "it has keys of clients");
    }
    assert_eq!(fs::read(&target).unwrap(), b"important");
    assert_unharmed(&folder);
}

#[test]
fn record_that_is_no_file_of_this_user_is_refused_at_the_start() {
    let folder = Folder::new("record");
    let record = folder.file("broker.leases");
    let target = folder.file("target");
    fs::write(&target, "[]").unwrap();
    let plants: [&dyn Fn(); 4] = [
        &|| symlink(&target, &record).unwrap(),
        &|| fifo(&record),
        &|| symlink("/dev/zero", &record).unwrap(),
        &|| fs::write(&record, vec![b' '; (1 << 20) + 1]).unwrap(),
    ];
    for plant in plants {
        plant();
        let bound = Broker::bind(BrokerConfig::new(folder.socket(), 64 * MIB));
        let error = bound.map(drop).unwrap_err();
        assert!(matches!(error, BrokerError::Socket(_)), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("broker.leases") && text.contains("remove it"),
            "{text}"
        );
        fs::remove_file(&record).unwrap();
    }
    drop(broker(&folder.socket(), 64 * MIB));
}

/// The record of a broker of version 1 of the protocol.
#[test]
fn leases_of_a_broker_without_names_count() {
    let folder = Folder::new("earlier");
    let record = folder.file("broker.leases");
    let id = std::process::id();
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let started = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19);
    let (started, share) = (
        started.unwrap(),
        r#"{"weight":1,"guaranteed":0,"limit":67108864}"#,
    );
    let lease = format!(
        r#"[{{"key":1,"name":"old","process":{{"id":{id},"started":{started}}},"share":{share},"lease":4096}}]"#
    );
    fs::write(&record, lease).unwrap();
    fs::set_permissions(&record, fs::Permissions::from_mode(0o600)).unwrap();
    let _broker = broker(&folder.socket(), 64 * MIB);
    let figures = Watch::connect(&folder.socket()).unwrap().next_figures();
    let figures = figures.unwrap().unwrap();
    assert_eq!(figures.free, 64 * MIB - 4096, "{figures:?}");
}

/// The kernel refuses to wait for them, at the first recall.
#[test]
fn extreme_times_of_a_broker_are_refused() {
    let folder = Folder::new("extreme");
    let standard = BrokerConfig::new(folder.socket(), 64 * MIB);
    for time in [
        LONGEST + Duration::from_nanos(1),
        Duration::from_secs(1 << 63),
        Duration::MAX,
    ] {
        for config in [
            BrokerConfig {
                grace: time,
                ..standard.clone()
            },
            BrokerConfig {
                longest_hold: time,
                ..standard.clone()
            },
        ] {
            let error = Broker::bind(config).map(drop).unwrap_err();
            assert!(matches!(error, BrokerError::TooLong { .. }), "{error}");
        }
    }
    let longest = BrokerConfig {
        grace: LONGEST,
        longest_hold: LONGEST,
        ..standard
    };
    let _broker = Broker::bind(longest).unwrap().spawn().unwrap();
    assert_unharmed(&folder);
}
