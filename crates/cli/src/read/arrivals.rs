//! Arrivals of requests at an inference server, as public traces have them.
//!
//! | format | a line |
//! |---|---|
//! | Azure's CSV, with the columns of [`HEADER`] | `2023-11-16 18:17:03.9799600,4808,10`; the time is in UTC |
//! | Mooncake's JSON, an object in each line | `{"timestamp": 40, "input_length": 23769, "output_length": 3}`, in milliseconds; further fields are ignored |
//!
//! Lines are in the order of their times. The first request arrives at once.

use super::lines::{Lines, number, shown};
use super::{AtLocation, read_with};
use crate::trace::fault::{Fault, Location};
use crate::trace::limits::{DURATION_US, Limits};
use serde::Deserialize;
use std::io::{BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

/// The first line of Azure's traces.
pub(crate) const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";
/// The most tokens of a prompt or an answer.
pub(crate) const MOST_TOKENS: u32 = 1 << 20;

/// The arrival of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Since the first one.
    pub(crate) at: Duration,
    pub(crate) prompt_tokens: u32,
    pub(crate) answer_tokens: u32,
}

/// A line of Mooncake's traces.
#[derive(Deserialize)]
struct Line {
    timestamp: u64,
    input_length: u64,
    output_length: u64,
}

/// Reads the file of arrivals at `path`, plain or gzip, and calls `each` for each of them until it breaks. Keeps none.
///
/// # Errors
/// Returns an error if the file cannot be read, and a [`TraceError`](super::TraceError) with its line if it is malformed.
pub(crate) fn read(
    path: &Path,
    limits: Limits,
    each: impl FnMut(Arrival) -> ControlFlow<()>,
) -> anyhow::Result<()> {
    let expected = "arrivals (.csv, .jsonl or .gz)";
    read_with(path, limits, expected, |source| parse(source, limits, each))
}

fn parse(
    source: impl Read,
    limits: Limits,
    mut each: impl FnMut(Arrival) -> ControlFlow<()>,
) -> Result<(), AtLocation> {
    let mut lines = Lines::new(BufReader::new(source));
    let first = lines.advance()?.unwrap_or(1);
    let is_json = lines.text().starts_with(b"{");
    if !is_json && !lines.are(HEADER) {
        let found = lines.shown();
        let expected = format!("`{HEADER}` or JSON objects with `timestamp`");
        return Err((Location::Line(first), Fault::Header { found, expected }));
    }
    let (mut count, mut begin, mut last) = (0, None, 0);
    let mut line = if is_json {
        Some(first)
    } else {
        lines.advance()?
    };
    while let Some(number) = line {
        let arrival = match is_json {
            true => of_json(&lines),
            false => of_csv(&lines),
        };
        let arrival = arrival.and_then(|(time_us, prompt_tokens, answer_tokens)| {
            let begin = *begin.get_or_insert(time_us);
            let last_us = std::mem::replace(&mut last, time_us);
            if time_us < last_us {
                return Err(Fault::TimeWentBack { time_us, last_us });
            }
            if time_us - begin >= DURATION_US {
                return Err(Fault::TooLate);
            }
            if count == limits.events {
                let (what, most) = ("requests", limits.events as u64);
                return Err(Fault::TooMany { what, most });
            }
            Ok(Arrival {
                at: Duration::from_micros(time_us - begin),
                prompt_tokens,
                answer_tokens,
            })
        });
        count += 1;
        let arrival = arrival.map_err(|fault| (Location::Line(number), fault))?;
        if each(arrival).is_break() {
            return Ok(());
        }
        line = lines.advance()?;
    }
    match count {
        0 => Err((Location::Line(first), Fault::NoRequest)),
        _ => Ok(()),
    }
}

/// Returns the time in microseconds, and the tokens of prompt and answer.
fn of_csv(lines: &Lines<impl BufRead>) -> Result<(u64, u32, u32), Fault> {
    let [time, prompt, answer] = lines.fields(HEADER)?;
    let parsed = std::str::from_utf8(time).ok();
    let parsed = parsed.and_then(|text| humantime::parse_rfc3339_weak(text).ok());
    let since = parsed.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let since = since.and_then(|since| u64::try_from(since.as_micros()).ok());
    let time_us = since.ok_or_else(|| Fault::Field {
        field: "TIMESTAMP",
        text: shown(time),
        expected: "a time since 1970, as 2023-11-16 18:17:03.9799600",
    })?;
    let tokens = |field, text| number(field, text, 1, MOST_TOKENS.into());
    let prompt = tokens("ContextTokens", prompt)?;
    let answer = tokens("GeneratedTokens", answer)?;
    Ok((time_us, prompt as u32, answer as u32))
}

fn of_json(lines: &Lines<impl BufRead>) -> Result<(u64, u32, u32), Fault> {
    // Without the first check, an array of three numbers would do, too.
    let text = Some(lines.text()).filter(|text| text.starts_with(b"{"));
    let line = text.and_then(|text| serde_json::from_slice::<Line>(text).ok());
    let line = line.ok_or_else(|| Fault::Field {
        field: "the line",
        text: lines.shown(),
        expected: "a JSON object with the whole numbers `timestamp` (in milliseconds), `input_length` and `output_length`",
    })?;
    let within = |field, value: u64, least, most| match (least..=most).contains(&value) {
        true => Ok(value),
        false => Err(Fault::Number {
            field,
            text: value.to_string(),
            least,
            most,
        }),
    };
    let time_ms = within("timestamp", line.timestamp, 0, DURATION_US / 1000)?;
    let tokens = |field, value| within(field, value, 1, MOST_TOKENS.into());
    let prompt = tokens("input_length", line.input_length)?;
    let answer = tokens("output_length", line.output_length)?;
    Ok((time_ms * 1000, prompt as u32, answer as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AZURE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n\
        2023-12-31 23:59:59.9799600,4808,10\r\n2024-01-01 00:00:00.0319600,3180,8\n\n2024-01-01 00:00:00.0319601,1,1048576\n";
    const MOONCAKE: &str = "{\"timestamp\": 7, \"input_length\": 6758, \"output_length\": 500, \"hash_ids\": [0, 1]}\n\
        {\"timestamp\": 59, \"input_length\": 3, \"output_length\": 4}";

    fn all(text: &[u8], limits: Limits) -> Result<Vec<Arrival>, AtLocation> {
        let mut all = Vec::new();
        let parsed = parse(text, limits, |arrival| {
            all.push(arrival);
            ControlFlow::Continue(())
        });
        parsed.map(|()| all)
    }

    fn arrivals(text: &str) -> Result<Vec<Arrival>, String> {
        let parsed = all(text.as_bytes(), Limits::default());
        parsed.map_err(|(location, fault)| format!("{location}: {fault}"))
    }

    fn of(at_us: u64, prompt_tokens: u32, answer_tokens: u32) -> Arrival {
        Arrival {
            at: Duration::from_micros(at_us),
            prompt_tokens,
            answer_tokens,
        }
    }

    #[test]
    fn arrivals_of_both_formats_begin_at_the_first_one() {
        let azure = [of(0, 4808, 10), of(52_000, 3180, 8), of(52_000, 1, 1 << 20)];
        assert_eq!(arrivals(AZURE).unwrap(), azure);
        let mooncake = [of(0, 6758, 500), of(52_000, 3, 4)];
        assert_eq!(arrivals(MOONCAKE).unwrap(), mooncake);
    }

    #[test]
    fn faults_name_the_line_and_the_expected_contents() {
        let csv = |line: &str| format!("{HEADER}\n2023-11-16 18:17:03.9,1,1\n{line}\n");
        let json = |line: &str| format!("{MOONCAKE}\n{line}\n");
        for (text, message) in [
            (
                String::new(),
                "line 1: the header is ``, expected `TIMESTAMP,",
            ),
            (
                "time,tokens\n".to_owned(),
                "line 1: the header is `time,tokens`",
            ),
            (
                HEADER.to_owned(),
                "line 1: no request follows, expected at least one",
            ),
            (
                csv("2023-11-16 18:17:04,1"),
                "line 3: 2 fields, expected the 3 of",
            ),
            (
                csv("yesterday,1,1"),
                "line 3: TIMESTAMP is `yesterday`, expected a time",
            ),
            (
                csv("1969-11-16 18:17:04,1,1"),
                "line 3: TIMESTAMP is `1969-",
            ),
            (
                csv("2023-11-16 18:17:04,0,1"),
                "line 3: ContextTokens is `0`, expected a whole number from 1",
            ),
            (
                csv("2023-11-16 18:17:04,1,1048577"),
                "line 3: GeneratedTokens is `1048577`",
            ),
            (
                csv("2023-11-16 18:17:03.8,1,1"),
                "line 3: time goes back to 17001",
            ),
            (
                csv("2043-11-16 18:17:03.8,1,1"),
                "line 3: the time is nine years after",
            ),
            (
                json("{\"timestamp\": 60}"),
                "line 3: the line is `{\"timestamp\": 60}`, expected a JSON object",
            ),
            (json("[60, 1, 1]"), "line 3: the line is `[60, 1, 1]`"),
            (
                json("{\"timestamp\": 60, \"input_length\": -1, \"output_length\": 1}"),
                "line 3: the line is",
            ),
            (
                json("{\"timestamp\": 60, \"input_length\": 1, \"output_length\": 0}"),
                "line 3: output_length is `0`",
            ),
            (
                json(
                    "{\"timestamp\": 18446744073709551615, \"input_length\": 1, \"output_length\": 1}",
                ),
                "line 3: timestamp is",
            ),
            (
                json("{\"timestamp\": 6, \"input_length\": 1, \"output_length\": 1}"),
                "line 3: time goes back to 6000 us, expected 59000",
            ),
            (
                json(&format!("{{\"a\": \"{}\"}}", "x".repeat(5000))),
                "line 3: the line is longer than 4096 bytes",
            ),
        ] {
            let error = arrivals(&text).unwrap_err();
            assert!(error.starts_with(message), "{error}, expected {message}");
        }
        let limits = Limits {
            events: 1,
            ..Limits::default()
        };
        let (location, fault) = all(MOONCAKE.as_bytes(), limits).unwrap_err();
        assert_eq!(location, Location::Line(2));
        assert!(
            fault.to_string().starts_with("more than 1 requests"),
            "{fault}"
        );
    }

    #[test]
    fn reading_stops_when_the_receiver_breaks() {
        let mut found = Vec::new();
        let text = format!("{MOONCAKE}\nno request");
        let parsed = parse(text.as_bytes(), Limits::default(), |arrival| {
            found.push(arrival);
            ControlFlow::Break(())
        });
        assert_eq!((parsed, found.len()), (Ok(()), 1));
    }

    #[test]
    fn text_of_any_bytes_ends_with_an_error_or_arrivals() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut read = 0;
        for _ in 0..20_000 {
            let mut text = [AZURE, MOONCAKE][random.usize(..2)].as_bytes().to_vec();
            for _ in 0..random.usize(..3) {
                let at = random.usize(..text.len());
                text[at] = random.choice(*b"0123456789,-:{}\" \n\xff").unwrap();
            }
            let parsed = all(&text, Limits::default());
            read += usize::from(parsed.is_ok_and(|all| all.is_sorted_by_key(|one| one.at)));
        }
        assert!((1000..19_000).contains(&read), "{read}");
    }

    #[test]
    #[ignore = "reads the public traces of Azure and Mooncake in the folder that WEIRPOOL_TRACES names"]
    fn public_traces_are_read() {
        let folder = std::env::var_os("WEIRPOOL_TRACES").expect("the folder of the traces");
        for (name, count) in [
            ("azure_llm_2023_code.csv.gz", 8819),
            ("azure_llm_2023_conv.csv.gz", 19_366),
            ("mooncake_conversation.jsonl.gz", 12_031),
            ("mooncake_synthetic.jsonl.gz", 3993),
        ] {
            let (mut found, mut last) = (0, 0);
            let each = |arrival: Arrival| {
                (found, last) = (found + 1, arrival.at.as_secs());
                ControlFlow::Continue(())
            };
            read(&Path::new(&folder).join(name), Limits::default(), each).unwrap();
            assert_eq!(found, count, "{name}");
            assert!((1000..3600).contains(&last), "{name} takes {last} s");
        }
    }
}
