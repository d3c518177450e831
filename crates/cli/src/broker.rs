//! The broker of one GPU, and a view of it.

use crate::options::{Broker as BrokerCommand, BrokerAction, DropName, Serving, Top};
use crate::output;
use crate::units::{binary_bytes, printable};
use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fmt::Write;
use std::io::{IsTerminal, stdout};
use std::thread;
use std::time::Duration;
use weirpool_broker::ledger::{ClientFigures, Figures, Standing};
use weirpool_broker::names::{NameFigures, NameStanding};
use weirpool_broker::{Broker, BrokerConfig, Watch};

/// Serves until a signal ends it, SIGINT or SIGTERM; or takes a name away from a broker that runs.
pub(crate) fn broker(command: &BrokerCommand) -> anyhow::Result<()> {
    match (&command.action, &command.serving) {
        (Some(BrokerAction::Drop(options)), _) => withdraw(options),
        (None, Some(options)) => serve(options),
        (None, None) => unreachable!("the command line requires one of them"),
    }
}

fn withdraw(options: &DropName) -> anyhow::Result<()> {
    let patience = Duration::from_secs(5);
    let dropped = weirpool_broker::withdraw(&options.socket, &options.name, patience)??;
    let bytes = binary_bytes(dropped.bytes);
    let rest = match dropped.clients {
        0 => "its memory is free".to_owned(),
        clients => {
            format!("{clients} processes have its memory mapped, and keep it until they let go")
        }
    };
    output::note(format_args!(
        "version {} of {bytes} has no name any more; {rest}",
        dropped.version
    ));
    Ok(())
}

fn serve(options: &Serving) -> anyhow::Result<()> {
    let capacity = options.capacity;
    let mut config = BrokerConfig {
        grace: options.grace,
        longest_hold: options.longest_hold,
        ..BrokerConfig::new(&options.socket, capacity)
    };
    if let Some(bytes) = options.named {
        config.names.bytes = bytes;
    }
    check_capacity(options.device, capacity)?;
    // Before the socket is there: a signal from now on ends the broker in order.
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("no signals can be received")?;
    let broker = Broker::bind(config)?;
    let stop = broker.stopper();
    thread::spawn(move || {
        if signals.forever().next().is_some() {
            stop.stop();
        }
    });
    output::note(format_args!(
        "leases {} of device {} at {}",
        binary_bytes(capacity),
        options.device,
        options.socket.display()
    ));
    Ok(broker.run()?)
}

/// Checks that the device has as much memory as is leased, in a build that can ask it.
fn check_capacity(device: u32, capacity: u64) -> anyhow::Result<()> {
    #[cfg(feature = "cuda")]
    for known in weirpool::device::cuda::CudaDevice::all().unwrap_or_default() {
        if known.ordinal == device {
            let total = known.memory;
            anyhow::ensure!(
                capacity <= total,
                "the capacity of {} exceeds the {} of device {device}; leave some for contexts and other users",
                binary_bytes(capacity),
                binary_bytes(total)
            );
        }
    }
    let _ = (device, capacity);
    Ok(())
}

/// Prints the figures of a broker each time that they change.
pub(crate) fn top(options: &Top) -> anyhow::Result<()> {
    let mut watch = Watch::connect_within(&options.socket, options.timeout)?;
    let clears = stdout().is_terminal() && !options.once && !options.json;
    while let Some(figures) = watch.next_figures()? {
        let text = match options.json {
            true => serde_json::to_string(&figures)? + "\n",
            false => table(&figures),
        };
        // Clears the screen, and begins at its top.
        let clear = if clears { "\x1b[2J\x1b[H" } else { "" };
        output::print(&format!("{clear}{text}"))?;
        if options.once {
            return Ok(());
        }
    }
    output::note(format_args!("the broker has ended"));
    Ok(())
}

fn table(figures: &Figures) -> String {
    let Figures {
        capacity,
        free,
        clients,
        names,
        ..
    } = figures;
    let (capacity, free) = (binary_bytes(*capacity), binary_bytes(*free));
    let mut text = format!(
        "{capacity} leased to {} clients; {free} free\n",
        clients.len()
    );
    let heads = [
        "lease",
        "reserved",
        "used",
        "needs",
        "recalled",
        "guarantee",
    ];
    let _ = write!(text, "{:>8}  {:<20}", "process", "name");
    heads.iter().for_each(|head| {
        let _ = write!(text, "{head:>12}");
    });
    let _ = writeln!(text, "{:>9}", "waiting");
    clients.iter().for_each(|client| row(&mut text, client));
    if !names.is_empty() {
        let _ = writeln!(
            text,
            "\n{:>8}  {:<20}{:>12}{:>12}{:>12}",
            "version", "published as", "memory", "blocks", "mapped by"
        );
        names.iter().for_each(|name| named_row(&mut text, name));
    }
    text
}

fn named_row(text: &mut String, named: &NameFigures) {
    let name: String = printable(&named.name).chars().take(20).collect();
    let standing = match (named.standing, named.is_writable) {
        (NameStanding::Withdrawn, _) => "  has no name any more",
        (NameStanding::Lost, _) => "  waits for a process that has it",
        (_, true) => "  may be written",
        _ => "",
    };
    let _ = writeln!(
        text,
        "{:>8}  {name:<20}{:>12}{:>12}{:>12}{standing}",
        named.version,
        binary_bytes(named.bytes),
        named.blocks,
        named.clients,
    );
}

fn row(text: &mut String, client: &ClientFigures) {
    let name: String = printable(&client.name).chars().take(20).collect();
    let _ = write!(text, "{:>8}  {name:<20}", client.process);
    let ClientFigures {
        lease,
        reserved,
        used,
        needs,
        recalled,
        share,
        ..
    } = client;
    for bytes in [
        *lease,
        *reserved,
        *used,
        *needs,
        *recalled,
        share.guaranteed,
    ] {
        let _ = write!(text, "{:>12}", binary_bytes(bytes));
    }
    let standing = match client.standing {
        Standing::Silent => "  does not answer",
        Standing::Absent => "  not connected",
        _ => "",
    };
    let _ = writeln!(text, "{:>9}{standing}", client.waiting);
}
