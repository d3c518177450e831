//! The settings of the server: defaults, then a file, then the environment, then flags.

use crate::engine::{ACTIVATIONS, Admission, WEIGHTS, WORKSPACE};
use crate::model::Shape;
use crate::printable::{is_printable, printable};
use axum::http::uri::Authority;
use bytesize::ByteSize;
use clap::Parser;
use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The tag of requests if there are no tenants.
pub(crate) const ANONYMOUS: &str = "requests";

/// The bounds of times. Later points in time may not be representable.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// The most devices of a server.
const DEVICES: usize = 64;

/// A device that the server runs on: `sim`, `cuda`, or `cuda:N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceName {
    /// A simulated device.
    Sim,
    /// The NVIDIA GPU of that number; needs the feature `cuda`.
    Cuda(usize),
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let number = match name {
            "sim" => return Ok(Self::Sim),
            "cuda" => Some(0),
            _ => name.strip_prefix("cuda:").and_then(|it| it.parse().ok()),
        };
        let unknown = || "a device is `sim`, `cuda`, or `cuda:N` for the GPU number N".to_owned();
        number.map(Self::Cuda).ok_or_else(unknown)
    }
}

impl TryFrom<String> for DeviceName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse()
    }
}

impl From<DeviceName> for String {
    fn from(device: DeviceName) -> Self {
        match device {
            DeviceName::Sim => "sim".to_owned(),
            DeviceName::Cuda(number) => format!("cuda:{number}"),
        }
    }
}

/// Reads the devices: a name, or a list of them.
fn one_or_many<'de, D: Deserializer<'de>>(source: D) -> Result<Vec<DeviceName>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Names {
        One(String),
        Many(Vec<String>),
    }
    let names = match Names::deserialize(source)? {
        Names::One(name) => name.split(',').map(str::to_owned).collect(),
        Names::Many(names) => names,
    };
    let devices = names.iter().map(|name| name.trim().parse());
    devices.collect::<Result<_, _>>().map_err(D::Error::custom)
}

/// All settings. Durations are written as `30s`, sizes as `64MiB`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The address to listen on. Port 0 takes any free port.
    pub listen: SocketAddr,
    /// The address of the page and of `/metrics`, in place of `listen`.
    pub operators: Option<SocketAddr>,
    /// The key for the page and for `/metrics`. With tenants and without it, they are not served.
    pub operator_key: Option<Secret>,
    /// The names under which the server is reached, beside `localhost` and IP addresses: `*` for any. Others may be those
    /// of web pages that use a visitor's browser.
    pub hosts: Vec<String>,
    /// The devices, each with a pool and workers of its own. A request goes to the one that is expected to answer first. One
    /// name may stand alone.
    #[serde(deserialize_with = "one_or_many")]
    pub device: Vec<DeviceName>,
    /// Reports the load in the header `endpoint-load-metrics` of each answer, for Envoy. Clients can read it.
    pub load_report: bool,
    /// An address at which each connection is told the weight that a load balancer should give the server, as HAProxy's
    /// `agent-check` expects it.
    pub agent: Option<SocketAddr>,
    /// Multiplies the time of the simulated device's operations.
    pub slowdown: f64,
    /// The memory of the pool of each device: weights, activations, keys and values.
    pub capacity: ByteSize,
    /// How requests obtain memory.
    pub admission: Admission,
    /// Keeps the keys and values of earlier requests until their memory is needed.
    pub prefix_cache: bool,
    /// The model.
    pub model: ModelConfig,
    /// The number of streams, each with a batch of its own.
    pub streams: usize,
    /// The tokens of a page of keys and values.
    pub page: usize,
    /// The most sequences of a batch.
    pub batch: usize,
    /// The most tokens of a step.
    pub rows: usize,
    /// The most requests that wait for memory.
    pub queue: usize,
    /// How long a request may take if it has no `X-Deadline-Ms`, and the most that this header allows.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// How long running answers may take once the server shuts down.
    #[serde(with = "humantime_serde")]
    pub drain_timeout: Duration,
    /// After so long without a request the weights are moved to the host, until the next request. Default: never.
    #[serde(with = "humantime_serde::option")]
    pub sleep_after: Option<Duration>,
    /// The socket of a broker that leases the memory to several servers (`weirpool broker`).
    pub broker: Option<PathBuf>,
    /// The name under which the broker keeps the weights, for the next server to attach them: a server that is started again
    /// loads nothing. Default: none.
    pub publish: Option<String>,
    /// The largest body of a request.
    pub body_limit: ByteSize,
    /// How long a client may take to send a request, and to accept a part of an answer.
    #[serde(with = "humantime_serde")]
    pub client_timeout: Duration,
    /// The most connections; further ones wait to be accepted.
    pub connections: usize,
    /// The tenants. Without any, requests need no key.
    pub tenants: Vec<TenantConfig>,
}

/// The model to serve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// The name of the model in requests and answers.
    pub name: String,
    /// A safetensors file with GPT-2's tensors. Its sizes replace those below, but for the heads.
    pub weights: Option<PathBuf>,
    /// The seed of generated weights.
    pub seed: u64,
    /// The transformer layers.
    pub layers: usize,
    /// The elements of a token's hidden state.
    pub width: usize,
    /// The attention heads.
    pub heads: usize,
    /// The number of tokens.
    pub vocabulary: usize,
    /// The most tokens of a sequence.
    pub context: usize,
}

impl ModelConfig {
    /// Returns the sizes of the model.
    pub fn shape(&self) -> Shape {
        let Self {
            layers,
            width,
            heads,
            vocabulary,
            context,
            ..
        } = *self;
        Shape {
            layers,
            width,
            heads,
            vocabulary,
            context,
        }
    }
}

/// The name of [`Config::hosts`] that stands for any.
pub(crate) const ANY_HOST: &str = "*";

/// A text that no message shows.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A tenant: a client with an API key.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantConfig {
    /// The name in metrics and on the page.
    pub name: String,
    /// The key that the client sends as `Authorization: Bearer <key>`.
    pub key: String,
    /// The most memory that its requests may hold.
    #[serde(default)]
    pub quota: Option<ByteSize>,
    /// Its share of memory while several tenants wait for it, and of the steps of a batch.
    #[serde(default = "one")]
    pub weight: u32,
    /// The most requests of the tenant that wait, for its quota or for memory.
    #[serde(default)]
    pub queue: Option<usize>,
}

/// Without the key, which is a secret.
impl std::fmt::Debug for TenantConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            name,
            key: _,
            quota,
            weight,
            queue,
        } = self;
        f.debug_struct("TenantConfig")
            .field("name", name)
            .field("quota", quota)
            .field("weight", weight)
            .field("queue", queue)
            .finish_non_exhaustive()
    }
}

fn one() -> u32 {
    1
}

/// Returns the errors of settings without the text of the file and without the values of tenants: keys are among them.
fn explained(errors: figment::Error) -> anyhow::Error {
    use figment::error::Kind;
    let explain = |mut error: figment::Error| {
        let is_secret = error
            .path
            .first()
            .is_some_and(|setting| setting == "tenants" || setting == "operator_key");
        let is_name = |name: &str| {
            let mut bytes = name.bytes();
            name.len() <= 32 && bytes.all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        };
        let message = match &error.kind {
            Kind::MissingField(_) | Kind::DuplicateField(_) => None,
            // The name may be a key that stands in the wrong place.
            Kind::UnknownField(name, known) if !is_name(name) => Some(format!(
                "unknown field, expected one of `{}`",
                known.join("`, `")
            )),
            Kind::UnknownField(..) => None,
            Kind::InvalidType(_, expected) | Kind::InvalidValue(_, expected) if is_secret => {
                Some(format!("a value of another type, expected {expected}"))
            }
            _ if is_secret => Some("the value is not valid".to_owned()),
            // The errors of a parser show the line below their first one.
            Kind::Message(text) => text.lines().next().map(str::to_owned),
            _ => None,
        };
        if let Some(message) = message {
            error.kind = Kind::Message(message);
        }
        let is_index = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
        let parts = error.path.iter_mut();
        for part in parts.filter(|part| is_secret && !is_name(part) && !is_index(part)) {
            "…".clone_into(part);
        }
        error.to_string()
    };
    let errors: Vec<_> = errors.into_iter().map(explain).collect();
    anyhow::Error::msg(errors.join("; "))
}

/// An inference server whose requests wait for memory instead of failing.
///
/// Each option is also a key of the file (with `_` for `-`), and a variable of the environment: `--drain-timeout` is
/// `WEIRPOOL_SERVER_DRAIN_TIMEOUT`. The file has the table `model` and the array of tables `tenants` as well.
#[derive(Clone, Debug, Default, Parser, Serialize)]
#[command(version)]
pub struct Flags {
    /// A file of settings, in TOML.
    #[arg(long, env = "WEIRPOOL_SERVER_CONFIG", hide_env_values = true)]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// The address to listen on [default: 127.0.0.1:8080].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// The address of the page and of /metrics, in place of that of --listen.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operators: Option<SocketAddr>,
    /// The names under which the server is reached, beside localhost and IP addresses, separated by commas; `*` for any.
    #[arg(long, value_delimiter = ',')]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<String>>,
    /// The devices: `sim`, `cuda` or `cuda:N`, separated by commas or one for each --device [default: sim].
    #[arg(long, value_delimiter = ',')]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<Vec<DeviceName>>,
    /// Reports the load in a header of each answer, for Envoy [default: false].
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_report: Option<bool>,
    /// An address for the agent checks of HAProxy, which tell it the weight of the server.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<SocketAddr>,
    /// Multiplies the time of the simulated device's operations [default: 20].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowdown: Option<f64>,
    /// The memory of the pool of each device [default: 16MiB].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<ByteSize>,
    /// How requests obtain memory [default: wait].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission: Option<Admission>,
    /// Keeps the keys and values of earlier requests until their memory is needed [default: true].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_cache: Option<bool>,
    /// The number of streams, each with a batch of its own [default: 2].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streams: Option<usize>,
    /// The tokens of a page of keys and values [default: 16].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<usize>,
    /// The most sequences of a batch [default: 32].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<usize>,
    /// The most tokens of a step [default: 256].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<usize>,
    /// The most requests that wait for memory [default: 256].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<usize>,
    /// How long a request may take [default: 30s].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// How long running answers may take once the server shuts down [default: 30s].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_timeout: Option<String>,
    /// After so long without a request the weights are moved to the host, until the next request [default: never].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sleep_after: Option<String>,
    /// The socket of a broker that leases the memory to several servers (`weirpool broker`).
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker: Option<PathBuf>,
    /// The name under which the broker keeps the weights: a server that is started again attaches them, and loads nothing.
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub publish: Option<String>,
    /// The largest body of a request [default: 1MiB].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_limit: Option<ByteSize>,
    /// How long a client may take to send a request, and to accept a part of an answer [default: 10s].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_timeout: Option<String>,
    /// The most connections [default: 1024].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<usize>,
    /// The model. Variables of the environment are `WEIRPOOL_SERVER_MODEL__WIDTH` and so on.
    #[command(flatten)]
    pub model: ModelFlags,
}

/// The model's flags.
#[derive(Clone, Debug, Default, clap::Args, Serialize)]
pub struct ModelFlags {
    /// A safetensors file with GPT-2's tensors, in place of generated weights.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<PathBuf>,
    /// The seed of generated weights [default: 1].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The transformer layers [default: 2].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<usize>,
    /// The elements of a token's hidden state [default: 64].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<usize>,
    /// The attention heads [default: 4].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heads: Option<usize>,
    /// The number of tokens; with 256, tokens are bytes, and prompts may be text [default: 256].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<usize>,
    /// The most tokens of a sequence [default: 512].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<usize>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: ([127, 0, 0, 1], 8080).into(),
            operators: None,
            operator_key: None,
            hosts: Vec::new(),
            device: vec![DeviceName::Sim],
            load_report: false,
            agent: None,
            slowdown: 20.0,
            capacity: ByteSize::mib(16),
            admission: Admission::Wait,
            prefix_cache: true,
            model: ModelConfig {
                name: "weirpool".to_owned(),
                weights: None,
                seed: 1,
                layers: 2,
                width: 64,
                heads: 4,
                vocabulary: 256,
                context: 512,
            },
            streams: 2,
            page: 16,
            batch: 32,
            rows: 256,
            queue: 256,
            timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(30),
            sleep_after: None,
            broker: None,
            publish: None,
            body_limit: ByteSize::mib(1),
            client_timeout: Duration::from_secs(10),
            connections: 1024,
            tenants: Vec::new(),
        }
    }
}

impl Config {
    /// Reads the settings: defaults, the file, the environment, the flags. Each overrides the ones before it.
    ///
    /// # Errors
    /// Returns an error that names the setting and its source if one is unknown or invalid.
    pub fn load(flags: &Flags) -> anyhow::Result<Self> {
        let mut figment = Figment::from(Serialized::defaults(Self::default()));
        if let Some(file) = &flags.config {
            anyhow::ensure!(
                file.is_file(),
                "there is no file {}; --config names a file in TOML",
                file.display()
            );
            figment = figment.merge(Toml::file_exact(file));
        }
        // The flag alone names the file, also from the environment.
        let environment = Env::prefixed("WEIRPOOL_SERVER_")
            .ignore(&["config"])
            .split("__");
        let config: Self = figment
            .merge(environment)
            .merge(Serialized::defaults(flags))
            .extract()
            .map_err(explained)?;
        config.checked()
    }

    fn checked(self) -> anyhow::Result<Self> {
        for (name, value) in [
            ("streams", self.streams),
            ("page", self.page),
            ("batch", self.batch),
            ("rows", self.rows),
            ("connections", self.connections),
        ] {
            anyhow::ensure!(value > 0, "{name} is 0; it must be at least 1");
            anyhow::ensure!(
                value <= 1 << 20,
                "{name} is {value}; it must be at most {}",
                1 << 20
            );
        }
        let (devices, is_shared) = (&self.device, self.broker.is_some());
        anyhow::ensure!(
            (1..=DEVICES).contains(&devices.len()),
            "there are {} devices; name 1 to {DEVICES}",
            devices.len()
        );
        anyhow::ensure!(
            devices.len() == 1 || !is_shared,
            "a broker leases the memory of one device, but there are {}; start a server for each",
            devices.len()
        );
        let mut gpus = devices.iter().filter(|it| **it != DeviceName::Sim);
        let is_twice = |gpu: &&DeviceName| devices.iter().filter(|it| it == gpu).count() > 1;
        if let Some(gpu) = gpus.find(is_twice) {
            anyhow::bail!("the device {} is named twice", String::from(*gpu));
        }
        anyhow::ensure!(
            self.batch <= self.rows,
            "a batch of {} sequences does not fit a step of {} rows; raise --rows, or lower --batch",
            self.batch,
            self.rows
        );
        anyhow::ensure!(
            self.slowdown.is_finite() && (0.0..=1e6).contains(&self.slowdown),
            "the slowdown of {} is not from 0 to 1,000,000",
            self.slowdown
        );
        for (name, time) in [
            ("timeout", self.timeout),
            ("drain_timeout", self.drain_timeout),
            ("client_timeout", self.client_timeout),
            ("sleep_after", self.sleep_after.unwrap_or(self.timeout)),
        ] {
            anyhow::ensure!(
                (SHORTEST..=LONGEST).contains(&time),
                "the {name} of {} is not from {} to {}",
                humantime::format_duration(time),
                humantime::format_duration(SHORTEST),
                humantime::format_duration(LONGEST)
            );
        }
        anyhow::ensure!(
            (1 << 10..=1 << 30).contains(&self.body_limit.as_u64()),
            "the body_limit of {} is not from 1 KiB to 1 GiB",
            self.body_limit
        );
        anyhow::ensure!(
            self.capacity.as_u64() <= 1 << 50,
            "the capacity of {} is more than 1 PiB",
            self.capacity
        );
        anyhow::ensure!(
            cfg!(target_os = "linux") || self.broker.is_none(),
            "a broker needs Linux; leave --broker out"
        );
        anyhow::ensure!(
            self.publish.is_none() || self.broker.is_some() && self.sleep_after.is_none(),
            "published weights need a broker that keeps them, and do not sleep; add --broker, or leave --sleep-after out"
        );
        if let Some(reason) = self.model.shape().invalid() {
            anyhow::bail!("the model is invalid: {reason}");
        }
        for host in &self.hosts {
            let is_name = host
                .parse::<Authority>()
                .is_ok_and(|name| name.host() == host);
            anyhow::ensure!(
                host == ANY_HOST || is_name,
                "the host {host:?} is not a name without a port; use one as in http://NAME, or `*` for any"
            );
        }
        for (index, tenant) in self.tenants.iter().enumerate() {
            let name = &tenant.name;
            let shown = printable(name);
            anyhow::ensure!(
                !tenant.key.is_empty() && tenant.key.bytes().all(|byte| byte.is_ascii_graphic()),
                "the key of tenant \"{shown}\" cannot be sent in a header; use visible ASCII characters without spaces"
            );
            anyhow::ensure!(
                (1..=64).contains(&name.chars().count()) && name.chars().all(is_printable),
                "the name of tenant \"{shown}\" must have 1 to 64 printable characters"
            );
            anyhow::ensure!(
                ![WEIGHTS, ACTIVATIONS, WORKSPACE, ANONYMOUS].contains(&name.as_str()),
                "the name \"{shown}\" is reserved for memory of the server; choose another name for the tenant"
            );
            anyhow::ensure!(
                tenant.weight > 0,
                "the weight of tenant \"{shown}\" is 0; it must be at least 1"
            );
            let others = &self.tenants[..index];
            anyhow::ensure!(
                others
                    .iter()
                    .all(|other| other.key != tenant.key && other.name != tenant.name),
                "two tenants share the name or the key of \"{shown}\"; give each its own"
            );
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_take_precedence_over_the_file() {
        let path =
            std::env::temp_dir().join(format!("weirpool-server-{}.toml", std::process::id()));
        let text = "capacity = '1GiB'\ntimeout = '2m'\n[model]\nwidth = 128\n[[tenants]]\nname = 'chat'\nkey = 'k'\n";
        std::fs::write(&path, text).unwrap();
        let arguments = [
            "server",
            "--config",
            path.to_str().unwrap(),
            "--capacity",
            "2GiB",
        ];
        let config = Config::load(&Flags::parse_from(arguments)).unwrap();
        assert_eq!(config.capacity, ByteSize::gib(2));
        assert_eq!(config.timeout, Duration::from_secs(120));
        assert_eq!((config.model.width, config.model.heads), (128, 4));
        assert_eq!(
            (config.tenants[0].weight, config.tenants[0].quota),
            (1, None)
        );
        std::fs::write(&path, "capasity = '1GiB'\n").unwrap();
        let error = Config::load(&Flags::parse_from(&arguments[..3])).unwrap_err();
        assert!(error.to_string().contains("capasity"), "{error}");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn extreme_settings_are_refused() {
        let refused = |argument: &str| {
            let flags = Flags::parse_from(["server", argument]);
            Config::load(&flags).unwrap_err().to_string()
        };
        assert!(refused("--streams=0").contains("streams is 0"));
        assert!(refused("--heads=3").contains("no multiple"));
        assert!(refused("--slowdown=inf").contains("slowdown"));
        assert!(refused("--batch=1000").contains("--rows"));
        assert!(refused("--timeout=soon").contains("timeout"));
        assert!(refused("--publish=llama").contains("--broker"));
    }
}
