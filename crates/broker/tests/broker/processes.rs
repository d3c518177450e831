//! Several processes: killed, stopped, and with a broker that ends.

use crate::common::eventually;
use crate::joint::Joint;
use crate::puppet::{Puppet, Setting};
use crate::{Folder, broker, broker_with};
use rustix::process::Signal;
use std::time::Duration;
use weirpool_broker::Watch;
use weirpool_broker::ledger::{Figures, Standing};

const MIB: u64 = crate::common::MIB;

/// Waits until the figures are as they should be. The broker says when they change.
pub(crate) fn until(folder: &Folder, mut is_right: impl FnMut(&Figures) -> bool) {
    let mut watch = Watch::connect(&folder.socket()).unwrap();
    while !is_right(&watch.next_figures().unwrap().expect("the broker runs")) {}
}

fn start(folder: &Folder, memory: u64, guaranteed: u64) -> Puppet {
    Puppet::start(&Setting {
        socket: &folder.socket(),
        joint: &folder.file("joint"),
        memory,
        guaranteed,
    })
}

#[test]
fn memory_moves_to_the_process_that_needs_it() {
    let folder = Folder::new("moves");
    let _broker = broker(&folder.socket(), 64 * MIB);
    let mut one = start(&folder, 64, 8);
    let mut other = start(&folder, 64, 8);
    one.ask("allocate 56", "allocated");
    one.ask("free", "freed");
    assert_eq!(one.ask("reserved", "reserved"), "56");
    other.ask("allocate 56", "allocated");
    // No task of the first process was polled meanwhile: it waits for its standard input.
    assert_eq!(one.ask("reserved", "reserved"), "8");
    Joint::assert_never_exceeded(&folder.file("joint"));
}

#[test]
fn lease_of_a_killed_process_goes_to_others() {
    let folder = Folder::new("killed");
    let _broker = broker(&folder.socket(), 64 * MIB);
    let mut one = start(&folder, 64, 0);
    let mut other = start(&folder, 64, 0);
    one.ask("allocate 48", "allocated");
    other.tell("allocate 32");
    until(&folder, |figures| {
        figures.clients.iter().any(|client| client.needs > 0)
    });
    one.signal(Signal::KILL);
    other.expect("allocated");
    Joint::assert_never_exceeded(&folder.file("joint"));
}

#[test]
fn stopped_process_costs_what_it_holds() {
    let folder = Folder::new("stopped");
    let _broker = broker_with(&folder.socket(), 96 * MIB, Duration::from_millis(50));
    let mut one = start(&folder, 96, 0);
    let mut two = start(&folder, 96, 0);
    let mut three = start(&folder, 96, 0);
    one.ask("allocate 48", "allocated");
    one.ask("free", "freed");
    two.ask("allocate 40", "allocated");
    two.ask("free", "freed");
    one.signal(Signal::STOP);
    three.ask("allocate 32", "allocated");
    until(&folder, |figures| {
        let silent = figures
            .clients
            .iter()
            .filter(|client| client.standing == Standing::Silent);
        silent.map(|client| client.lease).sum::<u64>() == 48 * MIB
    });
    one.signal(Signal::CONT);
    three.ask("allocate 60", "allocated");
    Joint::assert_never_exceeded(&folder.file("joint"));
}

#[test]
fn joint_peaks_above_the_capacity_fail_no_request() {
    let folder = Folder::new("peaks");
    let _broker = broker(&folder.socket(), 96 * MIB);
    let mut services: Vec<_> = (0..3).map(|_| start(&folder, 96, 8)).collect();
    for service in &mut services {
        service.tell("serve 200 64");
    }
    for service in &mut services {
        assert_eq!(service.expect("served"), "200");
    }
    Joint::assert_never_exceeded(&folder.file("joint"));
}

#[test]
fn broker_restarts_under_load() {
    let folder = Folder::new("restart");
    let mut running = Some(broker(&folder.socket(), 96 * MIB));
    let mut services: Vec<_> = (0..3).map(|_| start(&folder, 96, 8)).collect();
    for service in &mut services {
        service.tell("serve 150 64");
    }
    for _ in 0..5 {
        drop(running.take());
        running = Some(broker(&folder.socket(), 96 * MIB));
        // Each process is there before the broker ends again.
        until(&folder, |figures| {
            let present = figures
                .clients
                .iter()
                .filter(|client| client.standing != Standing::Absent);
            present.count() == 3
        });
    }
    for service in &mut services {
        assert_eq!(service.expect("served"), "150");
    }
    Joint::assert_never_exceeded(&folder.file("joint"));
}

#[test]
fn broker_is_killed_under_load() {
    let folder = Folder::new("broker-killed");
    let socket = folder.socket();
    let mut running = Puppet::start_broker(&socket, 96 * MIB);
    let mut services: Vec<_> = (0..3).map(|_| start(&folder, 96, 8)).collect();
    for service in &mut services {
        service.tell("serve 150 64");
    }
    for round in 0..5 {
        running.signal(Signal::KILL);
        drop(running);
        // A broker that is killed while it records leaves such a file: the record itself is replaced as a whole.
        let half_written = &br#"[{"key":1,"name":"half a rec"#[..5 * round];
        std::fs::write(folder.file("broker.leases.new"), half_written).unwrap();
        running = Puppet::start_broker(&socket, 96 * MIB);
        until(&folder, |figures| {
            let present = figures.clients.iter();
            let present = present.filter(|client| client.standing != Standing::Absent);
            let leased: u64 = figures.clients.iter().map(|client| client.lease).sum();
            assert!(leased <= 96 * MIB, "{figures:?}");
            present.count() == 3
        });
    }
    for service in &mut services {
        assert_eq!(service.expect("served"), "150");
    }
    Joint::assert_never_exceeded(&folder.file("joint"));
}

#[test]
fn process_goes_on_within_its_lease_while_there_is_no_broker() {
    let folder = Folder::new("without");
    let running = broker(&folder.socket(), 64 * MIB);
    let mut one = start(&folder, 64, 0);
    let mut other = start(&folder, 64, 0);
    one.ask("allocate 40", "allocated");
    one.ask("free", "freed");
    drop(running);
    one.ask("allocate 40", "allocated");
    other.tell("allocate 24");
    // The new broker knows the lease before the process is back.
    one.signal(Signal::STOP);
    let _broker = broker(&folder.socket(), 64 * MIB);
    other.expect("allocated");
    until(&folder, |figures| {
        figures
            .clients
            .iter()
            .map(|client| client.lease)
            .sum::<u64>()
            == 64 * MIB
    });
    one.signal(Signal::CONT);
    one.ask("connected", "connected");
    eventually(|| true);
    Joint::assert_never_exceeded(&folder.file("joint"));
}
