//! The broker of one GPU, and a view of it.

use crate::options::{Broker as BrokerCommand, Top};
use crate::output;
use crate::units::{binary_bytes, printable};
use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fmt::Write;
use std::io::{IsTerminal, stdout};
use std::thread;
use weirpool_broker::ledger::{ClientFigures, Figures, Standing};
use weirpool_broker::{Broker, BrokerConfig, Watch};

/// Serves until a signal ends it: SIGINT or SIGTERM.
pub(crate) fn serve(options: &BrokerCommand) -> anyhow::Result<()> {
    let capacity = options.capacity;
    let config = BrokerConfig {
        grace: options.grace,
        longest_hold: options.longest_hold,
        ..BrokerConfig::new(&options.socket, capacity)
    };
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
    text
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
