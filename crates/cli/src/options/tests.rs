use super::*;
use std::time::Duration;

fn parse(arguments: &[&str]) -> Result<Replay, clap::Error> {
    Replay::try_parse_from([&["replay"], arguments].concat())
}

fn command(arguments: &[&str]) -> Result<Command, clap::Error> {
    let cli = Cli::try_parse_from([&["weirpool"], arguments].concat())?;
    cli.checked()
}

#[test]
fn without_arguments_recorded_traces_run_without_limits() {
    let Ok(Command::Replay(replay)) = command(&[]) else {
        panic!("no replay");
    };
    let files = replay.source.files();
    assert_eq!(files.len(), 3);
    assert!(files.iter().all(|file| file.is_file()));
    let Policy {
        conditions,
        when_short,
        remapping,
        ..
    } = replay.policy;
    assert_eq!(conditions.lag, Duration::ZERO);
    assert_eq!(conditions.capacity, None);
    assert_eq!(conditions.reuse.to_string(), "all");
    assert_eq!(conditions.sealing, None);
    assert_eq!((when_short, remapping), (WhenShortName::GrowFirst, None));
    assert!(!replay.json);
}

#[test]
fn devices_are_a_command_without_options() {
    assert!(matches!(command(&["devices"]), Ok(Command::Devices)));
    assert!(command(&["devices", "--json"]).is_err());
}

#[test]
fn every_option_is_understood() {
    let options = parse(&[
        "--lag=1ms",
        "--capacity=6GiB",
        "--when-short=wait-first",
        "--remapping=0.25",
        "--reuse=opportunistic,internal-dependencies",
        "--sealing=4MiB",
        "--handle=32MiB",
        "--upstream=device",
        "--lane=0",
        "--json",
        "--plot=out.svg",
        "a.csv",
        "b.csv.gz",
    ])
    .unwrap();
    assert_eq!(options.source.files().len(), 2);
    let policy = options.policy;
    let conditions = policy.conditions;
    assert_eq!(conditions.lag, Duration::from_millis(1));
    assert_eq!(conditions.capacity, Some(6 << 30));
    let reuse = conditions.reuse.to_string();
    assert_eq!(reuse, "opportunistic,internal-dependencies");
    let sealing = conditions.sealing.map(|sealing| sealing.to_string());
    assert_eq!(sealing.as_deref(), Some("4194304"));
    assert_eq!(
        (policy.chunk_bytes, conditions.lane),
        (Some(32 << 20), Some(0))
    );
    assert_eq!(policy.when_short, WhenShortName::WaitFirst);
    assert_eq!(policy.remapping, Some(RemappingName::Share(0.25)));
    assert_eq!(policy.upstream, UpstreamName::Device);
}

#[test]
fn generated_trace_excludes_options_of_files() {
    assert!(parse(&["--generate=cross-stream", "--operations=500", "--seed=3"]).is_ok());
    assert!(parse(&["--generate=cross-stream", "a.csv"]).is_err());
    assert!(parse(&["--generate=cross-stream", "--trace-device=1"]).is_err());
    assert!(parse(&["--operations=500"]).is_err());
    assert!(parse(&["--generate=cross-stream", "--operations=1"]).is_err());
}

#[test]
fn unsound_and_extreme_values_are_refused() {
    for argument in [
        "--lag=soon",
        "--lag=18446744073709551615s",
        "--capacity=much",
        "--capacity=0",
        "--capacity=1PiB",
        "--chunk-bytes=18446744073709551615",
        "--when-short=first",
        "--reuse=some",
        "--reuse=all,none",
        "--sealing=never",
        "--sealing=15EiB",
        "--remapping=often",
        "--remapping=nan",
        "--lane=15EiB",
        "--trace-device=-1",
    ] {
        assert!(parse(&[argument]).is_err(), "{argument}");
    }
    let generate = [
        "--generate=cross-stream",
        "--operations=18446744073709551615",
    ];
    assert!(parse(&generate).is_err());
}

#[test]
fn frontier_excludes_settings_that_it_chooses_itself() {
    let is_sound = |argument: &str| {
        let options = parse(&["--frontier=out.svg", argument]);
        options.and_then(Replay::checked).is_ok()
    };
    for sound in ["--json", "--lag=1ms", "--seed=2", "--generate=cross-stream"] {
        assert!(is_sound(sound), "{sound}");
        assert!(
            command(&["frontier", "--plot=out.svg", sound]).is_ok(),
            "{sound}"
        );
    }
    for unsound in [
        "--record=b.csv",
        "--html=b.html",
        "--handle=16MiB",
        "--when-short=grow-first",
        "--remapping=never",
        "--upstream=virtual",
        "--device=cuda",
    ] {
        assert!(!is_sound(unsound), "{unsound}");
        assert!(command(&["frontier", unsound]).is_err(), "{unsound}");
    }
    assert!(!is_sound("--plot=b.svg"));
}

#[test]
fn one_replay_is_recorded_and_not_several() {
    let is_sound = |arguments: &[&str]| {
        let arguments = [&["--record=x.csv"], arguments].concat();
        parse(&arguments).and_then(Replay::checked).is_ok()
    };
    assert!(is_sound(&["a.csv"]) && is_sound(&["--generate=cross-stream"]));
    assert!(!is_sound(&["a.csv", "b.csv"]) && !is_sound(&[]));
}

#[test]
fn reference_run_grows_and_never_waits() {
    let policy = parse(&["--capacity=1GB", "--when-short=wait-briefly", "--lag=1ms"]);
    let reference = policy.unwrap().policy.unlimited();
    assert_eq!(reference.conditions.capacity, None);
    assert_eq!(reference.when_short, WhenShortName::GrowFirst);
    assert!(!reference.conditions.reuse.reuse().internal_dependencies);
    assert_eq!(reference.conditions.lag, Duration::from_millis(1));
}

#[test]
fn help_states_the_limits() {
    for command in ["replay", "frontier"] {
        let help = Cli::command();
        let mut help = help.find_subcommand(command).unwrap().clone();
        let help = help.render_long_help().to_string();
        assert!(help.contains("10 million operations"), "{help}");
        assert!(help.contains("exit code 1"), "{help}");
    }
}
