//! The options of `weirpool load`.

use super::lengths::Lengths;
use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use clap::{Parser, ValueEnum};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

/// Where requests go: the parts of an `http` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The path with its query; `/v1/completions` unless the URL names one.
    pub(crate) path: String,
}

/// The path of a URL that names none.
const PATH: &str = "/v1/completions";

/// Sends requests for completions to an inference server, as OpenAI's interface shapes them, reads the streamed answers,
/// and prints what became of each request and how long it took.
///
/// Arrivals do not wait for answers (--rate), so a server that falls behind gets more requests at once; latencies count
/// from the time at which a request was to arrive. With --clients, each client sends its next request after the answer
/// to its last one.
#[derive(Clone, Debug, Parser)]
#[command(name = "load")]
pub(crate) struct Load {
    /// The server: http://HOST:PORT, or with the path of the completions [default path: /v1/completions]
    #[arg(value_parser = Secret(target))]
    pub(crate) url: Target,

    /// The mean number of requests that arrive in a second, at random (a Poisson process) [default: 10]
    #[arg(long, value_name = "N", value_parser = rate, conflicts_with = "clients")]
    pub(crate) rate: Option<f64>,

    /// Sends requests at the times of a file, plain or gzip, and with its lengths: Azure's CSV
    /// (TIMESTAMP,ContextTokens,GeneratedTokens), or Mooncake's JSON lines (timestamp, input_length, output_length)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "clients"])]
    pub(crate) arrivals: Option<PathBuf>,

    /// Replays --arrivals this many times as fast
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, requires = "arrivals", value_parser = speed)]
    pub(crate) speed: f64,

    /// Clients that send one request after the other, instead of arrivals
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) clients: Option<u32>,

    /// How long requests are sent; those under way are then waited for
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = super::values::duration)]
    pub(crate) duration: Duration,

    /// Sends no more than this many requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: Option<u64>,

    /// The tokens of a prompt: N, or LOW..HIGH with both ends; lengths of --arrivals become the nearest in that range
    /// [default: 16..256, or as in the file]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) prompt_tokens: Option<Lengths>,

    /// The most tokens of an answer: N, or LOW..HIGH with both ends; lengths of --arrivals become the nearest in that
    /// range [default: 16..128, or as in the file]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) max_tokens: Option<Lengths>,

    /// The most tokens in the prompts of requests that have arrived and not ended, where one counts for at least 1,024:
    /// further ones are sent later, and their times begin at their arrivals. A token takes about 5 bytes
    #[arg(long, value_name = "TOKENS", default_value_t = 64 << 20, value_parser = clap::value_parser!(u32).range(1 << 10..=1 << 28))]
    pub(crate) in_flight: u32,

    /// How prompts are written
    #[arg(long, value_name = "FORM", value_enum, default_value_t)]
    pub(crate) prompt_form: PromptForm,

    /// The share of requests whose prompts have their first half in common
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = fraction)]
    pub(crate) shared_prefix: f64,

    /// An API key, and its share of the requests relative to the other keys: KEY, or KEY=WEIGHT; can be repeated
    #[arg(long = "key", value_name = "KEY[=WEIGHT]", value_parser = Secret(key))]
    pub(crate) keys: Vec<Key>,

    /// The model that requests name
    #[arg(long, value_name = "NAME", default_value = "weirpool")]
    pub(crate) model: String,

    /// Sends the time that is left until a deadline, in milliseconds, as the header X-Deadline-Ms
    #[arg(long, value_name = "TIME", value_parser = super::values::duration)]
    pub(crate) deadline: Option<Duration>,

    /// The share of requests whose clients disconnect at a random point
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = fraction)]
    pub(crate) abandon: f64,

    /// The share of requests whose clients read slowly: through small buffers, with a pause before each read
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = fraction)]
    pub(crate) slow: f64,

    /// The pause of slow clients
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = super::values::duration)]
    pub(crate) slow_pause: Duration,

    /// Asks for whole answers in place of streams. A proxy can send such a request to another server once its own has ended
    #[arg(long, conflicts_with_all = ["abandon", "slow"])]
    pub(crate) whole: bool,

    /// What follows a refusal with the status 429 or 503, or by the connection
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    pub(crate) retry: Retry,

    /// How long a client waits for the end of an answer, with retries
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = super::values::duration)]
    pub(crate) timeout: Duration,

    /// The seed of arrivals, lengths, prompts and keys
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Prints one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// How a prompt is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum PromptForm {
    /// An array of token ids below 256
    #[default]
    Ids,
    /// A string of lower-case letters, one for each token
    Text,
}

/// What follows a refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Retry {
    /// Nothing: the request has ended
    #[default]
    None,
    /// Up to five further attempts, after the time in Retry-After, or after pauses that double from 100 ms
    Backoff,
}

/// An API key and its weight.
#[derive(Clone, PartialEq)]
pub(crate) struct Key {
    pub(crate) key: String,
    pub(crate) weight: f64,
}

/// Without the key, which is a secret.
impl std::fmt::Debug for Key {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Key")
            .field("weight", &self.weight)
            .finish_non_exhaustive()
    }
}

/// Parses a value that may hold a secret: its errors leave it out.
#[derive(Clone, Copy)]
struct Secret<T>(fn(&str) -> Result<T, String>);

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Secret<T> {
    type Value = T;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        let text = value.to_str().ok_or_else(|| "expected UTF-8".to_owned());
        text.and_then(self.0).map_err(|reason| {
            let name = argument.map(ToString::to_string).unwrap_or_default();
            let message = format!("invalid value for '{name}': {reason}\n");
            clap::Error::raw(ErrorKind::ValueValidation, message).with_cmd(command)
        })
    }
}

fn target(text: &str) -> Result<Target, String> {
    let uri: hyper::Uri = text.parse().map_err(|error| format!("{error}"))?;
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => {
            return Err(
                "TLS is not supported; use the server's plain address, or a local proxy".into(),
            );
        }
        _ => return Err("expected http://HOST:PORT".to_owned()),
    }
    let host = uri.host().filter(|host| !host.is_empty());
    let host = host.ok_or("expected a host, as in http://HOST:PORT")?;
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let port = match authority.strip_prefix(host) {
        Some("") => Some(80),
        // `port_u16` is none for a number that is too large.
        Some(_) => uri.port_u16(),
        None => return Err("user names are not supported; use --key".to_owned()),
    };
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    Ok(Target {
        host: host.trim_matches(['[', ']']).to_owned(),
        port: port.ok_or("expected a port up to 65535")?,
        path: if path == "/" { PATH } else { path }.to_owned(),
    })
}

fn speed(text: &str) -> Result<f64, String> {
    let speed: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    (0.001..=100_000.0)
        .contains(&speed)
        .then_some(speed)
        .ok_or_else(|| "expected a factor from 0.001 to 100000".to_owned())
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    (rate > 0.0 && rate <= 100_000.0)
        .then_some(rate)
        .ok_or_else(|| "expected more than 0, and 100000 at most".to_owned())
}

fn fraction(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    (0.0..=1.0)
        .contains(&share)
        .then_some(share)
        .ok_or_else(|| "expected a share from 0 to 1".to_owned())
}

/// A key may contain `=`: only a number behind the last one is a weight.
fn key(text: &str) -> Result<Key, String> {
    let weighted = text.rsplit_once('=').and_then(|(key, weight)| {
        let weight: f64 = weight.parse().ok()?;
        Some((key, weight))
    });
    let (key, weight) = weighted.unwrap_or((text, 1.0));
    if !(weight > 0.0 && weight <= 1e6) {
        return Err("expected a weight above 0, and 1000000 at most".to_owned());
    }
    let is_valid = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
    is_valid
        .then(|| Key {
            key: key.to_owned(),
            weight,
        })
        .ok_or_else(|| "expected a key of visible ASCII characters".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_without_a_path_goes_to_the_completions() {
        let at = |text| target(text).unwrap();
        let url = at("http://localhost:8080");
        assert_eq!(
            (&*url.host, url.port, &*url.path),
            ("localhost", 8080, PATH)
        );
        let url = at("http://[::1]/x?y=1");
        assert_eq!((&*url.host, url.port, &*url.path), ("::1", 80, "/x?y=1"));
        for text in [
            "https://a",
            "a:80",
            "http://",
            "",
            "http://a:99999",
            "http://user@a:1",
            "unix:/a",
        ] {
            assert!(target(text).is_err(), "{text}");
        }
    }

    #[test]
    fn key_has_a_weight_behind_its_last_sign() {
        let parsed = |text| key(text).map(|key| (key.key, key.weight));
        let of = |key: &str, weight| Ok((key.to_owned(), weight));
        assert_eq!(parsed("sk-1"), of("sk-1", 1.0));
        assert_eq!(parsed("sk-1=2.5"), of("sk-1", 2.5));
        assert_eq!(parsed("c2s="), of("c2s=", 1.0));
        assert_eq!(parsed("c2s==3"), of("c2s=", 3.0));
        for text in ["", "=2", "a b", "a\r\nb", "a=0", "a=-1", "a=inf", "a=nan"] {
            assert!(key(text).is_err(), "{text}");
        }
        let debug = format!("{:?}", key("secret=2").unwrap());
        assert!(!debug.contains("secret"), "{debug}");
    }

    #[test]
    fn errors_print_no_key() {
        for arguments in [
            &["http://localhost:1", "--key=two secrets"][..],
            &["http://localhost:1", "--key", "secret=0"],
            &["http://user:secret@localhost:1"],
        ] {
            let parsed = Load::try_parse_from([&["load"], arguments].concat());
            let message = parsed.unwrap_err().to_string();
            assert!(!message.contains("secret"), "{message}");
            assert!(message.contains("invalid value for '"), "{message}");
        }
    }

    #[test]
    fn extreme_loads_are_refused() {
        let parse = |arguments: &[&str]| {
            let url = "http://localhost:1";
            Load::try_parse_from([&["load", url], arguments].concat())
        };
        assert!(parse(&["--rate=0.5", "--abandon=1", "--slow=0"]).is_ok());
        for argument in [
            "--rate=0",
            "--rate=nan",
            "--rate=1e9",
            "--clients=0",
            "--requests=0",
            "--abandon=1.1",
            "--slow=-0.1",
            "--shared-prefix=nan",
            "--prompt-tokens=0",
            "--max-tokens=9..8",
            "--duration=2h",
            "--speed=2",
        ] {
            assert!(parse(&[argument]).is_err(), "{argument}");
        }
        assert!(parse(&["--rate=1", "--clients=1"]).is_err());
        let arrivals = |argument| parse(&["--arrivals=file", argument]);
        assert!(arrivals("--speed=1.5").is_ok());
        for argument in [
            "--speed=0",
            "--speed=nan",
            "--speed=1e6",
            "--rate=1",
            "--clients=1",
        ] {
            assert!(arrivals(argument).is_err(), "{argument}");
        }
    }
}
