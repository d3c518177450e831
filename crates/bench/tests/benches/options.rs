//! The command line.

use crate::suite::effort::Amount;
use crate::suite::options::{Options, Workload};
use clap::Parser;

fn parse(arguments: &[&str]) -> Options {
    let arguments = ["table"].iter().chain(arguments);
    Options::try_parse_from(arguments).unwrap()
}

#[test]
fn arguments_of_cargo_are_understood() {
    let amount = |arguments: &[&str]| parse(arguments).effort(Amount::Full).amount;
    assert_eq!(amount(&["--bench"]), Amount::Full);
    assert_eq!(amount(&["--bench", "--test"]), Amount::Smoke);
    assert_eq!(amount(&["--nocapture"]), Amount::Smoke);
    assert_eq!(amount(&["--bench", "hot/try"]), Amount::Full);
}

#[test]
fn given_options_are_taken() {
    let options = parse(&["--bench", "--only=hot,live-blocks", "--rounds=3"]);
    assert_eq!(options.only, [Workload::Hot, Workload::LiveBlocks]);
    assert_eq!(options.effort(Amount::Modest).rounds, 3);
    assert!(Options::try_parse_from(["table", "--only=cold"]).is_err());
}
