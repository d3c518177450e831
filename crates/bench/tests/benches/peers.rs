//! The output of other programs is read.

use crate::suite::peers::parse;

const LOG: &str = "\
building
cudaMallocAsync(max)   hot pair        256 B                 688.0 ns/pair
pytorch caching        mix 512B..64MiB, <=256 live         377.0 ns/op   reserved/peak-live 1.510
rmm pool               mix 512B..64MiB, <=256 live         657.2 ns/op   reserved/peak-live 0.000
pytorch caching        handoff 8 streams,   20 us kernel     650.5 ns/pair host, wall   4198.0 ns/iter, reserved 3100 -> 3164 MiB
rmm pool               scarce handed on,   20 us kernel    9200.5 ns/iter, refused 3
rmm arena              scale 16 threads, own stream         2.010 M pairs/s
";

#[test]
fn each_figure_is_found_under_its_key() {
    let told: Vec<_> = parse(LOG)
        .into_iter()
        .map(|one| (one.peer, one.key, one.figure))
        .collect();
    let told: Vec<_> = told
        .iter()
        .map(|(peer, key, figure)| (peer.as_str(), key.as_str(), *figure))
        .collect();
    let expected = [
        ("cudaMallocAsync(max)", "hot 256", 688.0),
        ("pytorch caching", "mix time", 377.0),
        ("pytorch caching", "mix memory", 1.51),
        ("rmm pool", "mix time", 657.2),
        ("pytorch caching", "handoff 20 host", 650.5),
        ("pytorch caching", "handoff 20 wall", 4198.0),
        ("pytorch caching", "handoff 20 reserved", 3164.0),
        ("rmm pool", "scarce handed on 20 wall", 9200.5),
        ("rmm pool", "scarce handed on 20 refused", 3.0),
        ("rmm arena", "scale 16", 2.01),
    ];
    assert_eq!(told, expected);
}

#[test]
fn line_of_another_form_is_skipped() {
    assert_eq!(parse("rmm pool hot pair of shoes\n\n scale of things"), []);
}
