//! Figures of other programs, read from the lines that they print.
//!
//! Each figure has a line: the allocator's name, the workload, numbers. Lines of any other form are skipped, so that
//! whole logs can be passed:
//!
//! ```text
//! <name>  hot pair  65536 B  604.0 ns/pair
//! <name>  mix 512B..64MiB, <=256 live  933.0 ns/op   reserved/peak-live 1.820
//! <name>  handoff 8 streams,   20 us kernel  10117.0 ns/pair host, wall  14082.0 ns/iter, reserved 64 -> 96 MiB
//! <name>  scarce alone,   20 us kernel  9200.0 ns/iter, refused 0
//! <name>  scale 16 threads, own stream  0.180 M pairs/s
//! ```

/// A figure of another allocator.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    /// The name under which a [`Row`](super::row::Row) refers to the figure.
    pub(crate) key: String,
    /// The allocator's name.
    pub(crate) peer: String,
    pub(crate) figure: f64,
}

/// Returns all figures of a text, in order.
pub(crate) fn parse(text: &str) -> Vec<Figure> {
    text.lines().filter_map(figures).flatten().collect()
}

/// The words with which the description of a workload begins.
const WORKLOADS: [&str; 5] = [" hot pair ", " mix ", " handoff ", " scarce ", " scale "];

fn figures(line: &str) -> Option<Vec<Figure>> {
    let places = WORKLOADS.iter().filter_map(|workload| {
        let at = line.find(workload)?;
        Some((at, workload.trim(), &line[at + workload.len()..]))
    });
    let (at, workload, rest) = places.min()?;
    let peer = line[..at].trim().to_owned();
    let figures = match workload {
        "hot pair" => hot(rest),
        "mix" => mix(rest),
        "handoff" => handoff(rest),
        "scarce" => scarce(rest),
        _ => scale(rest),
    }?;
    let figures = figures.into_iter().map(|(key, figure)| Figure {
        key,
        peer: peer.clone(),
        figure,
    });
    Some(figures.collect())
}

type Figures = Vec<(String, f64)>;

/// `256 B  688.0 ns/pair`
fn hot(rest: &str) -> Option<Figures> {
    let bytes: u64 = number(rest.split(" B ").next()?)?;
    Some(vec![(format!("hot {bytes}"), before(rest, "ns/pair")?)])
}

/// `512B..64MiB, <=256 live  933.0 ns/op   reserved/peak-live 1.820`, with 0 if that is not known
fn mix(rest: &str) -> Option<Figures> {
    let mut figures = vec![("mix time".to_owned(), before(rest, "ns/op")?)];
    let memory = rest.split("reserved/peak-live").nth(1);
    let memory = memory.and_then(number::<f64>).filter(|ratio| *ratio > 0.0);
    figures.extend(memory.map(|ratio| ("mix memory".to_owned(), ratio)));
    Some(figures)
}

/// `8 streams,   20 us kernel  650.0 ns/pair host, wall  4200.0 ns/iter, reserved 64 -> 72 MiB`, with 0 MiB if that is
/// not known
fn handoff(rest: &str) -> Option<Figures> {
    let micros = before::<u64>(rest, "us kernel")?;
    let wall = rest.split("wall").nth(1)?;
    let mut figures = vec![
        (
            format!("handoff {micros} host"),
            before(rest, "ns/pair host")?,
        ),
        (format!("handoff {micros} wall"), before(wall, "ns/iter")?),
    ];
    let reserved = before(rest, "MiB").filter(|mib| *mib > 0.0);
    figures.extend(reserved.map(|mib| (format!("handoff {micros} reserved"), mib)));
    Some(figures)
}

/// `alone,   20 us kernel  9200.0 ns/iter, refused 0`, or `handed on, ...`
fn scarce(rest: &str) -> Option<Figures> {
    let (route, figures) = rest.split_once(',')?;
    let key = format!("scarce {route} {}", before::<u64>(figures, "us kernel")?);
    let refused = figures.split("refused").nth(1)?;
    Some(vec![
        (format!("{key} wall"), before(figures, "ns/iter")?),
        (format!("{key} refused"), number(refused)?),
    ])
}

/// `16 threads, own stream  0.180 M pairs/s`
fn scale(rest: &str) -> Option<Figures> {
    let threads: u64 = before(rest, "threads")?;
    Some(vec![(
        format!("scale {threads}"),
        before(rest, "M pairs/s")?,
    )])
}

/// Returns the number before some words.
fn before<N: std::str::FromStr>(text: &str, words: &str) -> Option<N> {
    let (front, _) = text.split_once(words)?;
    front.split_whitespace().next_back()?.parse().ok()
}

fn number<N: std::str::FromStr>(text: &str) -> Option<N> {
    text.split_whitespace().next()?.parse().ok()
}
