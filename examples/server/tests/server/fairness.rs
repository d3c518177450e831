//! Tenants in the batch of a server: what greedy and bursty ones send delays a quiet one by no more than its share.
//!
//! The bound is that of the server's README. Times are those of the simulated device, in steps of the longest duration.

use crate::common::{assert_idle, config, prompt, request, send_to, start, tenant, used};
use axum::Router;
use bytesize::ByteSize;
use fastrand::Rng;
use http_body_util::BodyExt;
use serde_json::json;
use std::io::Read;
use std::path::Path;
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use weirpool::Tag;
use weirpool_server::config::ModelConfig;
use weirpool_server::{Config, Server};

/// The tokens of the longest sequence.
const CONTEXT: usize = 64;
/// The bytes of a token's keys and values.
const TOKEN: u64 = 128;
/// How long tenants send.
const DURATION: Duration = Duration::from_secs(6);

/// When the tokens of an answer came, from the request on; none if the answer is not complete.
async fn ask(
    router: Router,
    key: &str,
    prompt: Vec<u32>,
    max_tokens: usize,
) -> Option<Vec<Duration>> {
    let body = json!({"prompt": prompt, "max_tokens": max_tokens, "stream": true});
    let mut request = request(&body);
    let value = format!("Bearer {key}").parse().unwrap();
    request.headers_mut().insert("authorization", value);
    let (begin, mut times) = (Instant::now(), Vec::new());
    let response = send_to(router, request).await;
    if response.status() != 200 {
        return None;
    }
    let mut frames = response.into_body();
    while let Some(frame) = frames.frame().await {
        let frame = frame.unwrap();
        let text = std::str::from_utf8(frame.data_ref().unwrap()).unwrap();
        if text.contains("\"token_ids\":[") && !text.contains("\"token_ids\":[]") {
            times.push(begin.elapsed());
        }
    }
    (times.len() == max_tokens).then_some(times)
}

/// Draws the tokens of a prompt and of its answer.
type Draw = fn(&mut Rng) -> (usize, usize);

/// The longest answer: it holds its memory for the most steps.
const LONGEST: Draw = |_| (1, CONTEXT - 1);

fn lengths(random: &mut Rng) -> (usize, usize) {
    let prompt = random.usize(1..CONTEXT);
    (prompt, random.usize(1..=CONTEXT - prompt))
}

/// Sends one request after the other.
async fn greedy(router: Router, draw: Draw, seed: u64) {
    let mut random = Rng::with_seed(seed);
    loop {
        let (tokens, max_tokens) = draw(&mut random);
        let prompt = prompt(random.u64(..), tokens);
        let answer = ask(router.clone(), "sk-greedy", prompt, max_tokens).await;
        if answer.is_none() {
            sleep(Duration::from_millis(200)).await;
        }
    }
}

/// Sends requests at their times, and waits for no answer.
async fn arrive(router: Router, key: &'static str, requests: Vec<(Duration, usize, usize)>) {
    let (begin, mut answers) = (Instant::now(), JoinSet::new());
    for (number, (at, tokens, max_tokens)) in requests.into_iter().enumerate() {
        sleep_until(begin + at).await;
        let prompt = prompt(number as u64, tokens);
        answers.spawn(ask(router.clone(), key, prompt, max_tokens));
    }
    answers.join_all().await;
}

fn bursts(seed: u64) -> Vec<(Duration, usize, usize)> {
    let mut random = Rng::with_seed(seed);
    let (mut at, mut requests) = (Duration::ZERO, Vec::new());
    while at < DURATION {
        at += Duration::from_millis(random.u64(200..4000));
        for _ in 0..random.usize(1..40) {
            let (tokens, max_tokens) = lengths(&mut random);
            requests.push((at, tokens, max_tokens));
        }
    }
    requests
}

const NAMES: [&str; 3] = ["quiet", "greedy", "bursty"];

/// A batch with the tenants of these names, of equal weights. The model is small: the host computes each token.
fn shared(capacity: ByteSize, streams: usize) -> Config {
    let tenants = NAMES.map(|name| tenant(name, &format!("sk-{name}"), None, None));
    let standard = config();
    Config {
        capacity,
        streams,
        queue: 1000,
        tenants: tenants.into(),
        // A step takes about 30 ms, and timers have steps of 1 ms.
        slowdown: 1000.0,
        model: ModelConfig {
            width: 16,
            layers: 1,
            context: CONTEXT,
            ..standard.model.clone()
        },
        // No deadline cuts an answer off.
        timeout: Duration::from_secs(3600),
        // Each prompt is computed.
        prefix_cache: false,
        ..standard
    }
}

static LONGEST_STEP: OnceCell<Duration> = OnceCell::const_new();

/// Returns the longest duration of a step.
async fn longest_step() -> Duration {
    *LONGEST_STEP.get_or_init(measure_steps).await
}

/// Returns the longest time between two tokens of an answer that takes part in each step.
async fn measure_steps() -> Duration {
    let server = start(shared(ByteSize::mib(8), 1)).await;
    let mut others = JoinSet::new();
    let first = tokio::spawn(ask(server.router(), "sk-greedy", prompt(0, 1), CONTEXT - 1));
    sleep(Duration::from_millis(1)).await;
    for seed in 0..40 {
        others.spawn(greedy(server.router(), lengths, seed));
        others.spawn(arrive(server.router(), "sk-greedy", bursts(seed)));
    }
    let times = first.await.unwrap().unwrap();
    let between = times.windows(2).map(|pair| pair[1] - pair[0]);
    between.max().unwrap()
}

/// Returns the number of tenants, and the sum of their weights over that of the quiet one.
fn shares(config: &Config) -> (f64, f64) {
    let weights = config.tenants.iter().map(|tenant| f64::from(tenant.weight));
    let sum: f64 = weights.sum();
    let count = config.tenants.len() as f64;
    (count, sum / f64::from(config.tenants[0].weight))
}

/// The time in steps until the first token of a prompt of the quiet tenant, once it has memory: until the step that runs is
/// over, and then as `engine/turns.rs` states it.
fn bound(config: &Config, tokens: usize) -> f64 {
    let ((count, inverse), rows, places) =
        (shares(config), config.rows as f64, config.batch as f64);
    let cost = (tokens as f64 / rows).max(1.0 / places);
    let steps = inverse * (cost + 1.0 / places) + count / places;
    1.0 + steps.ceil()
}

/// The time in steps until the quiet tenant has memory, of which there is enough for `held` tokens. The bytes that another
/// tenant obtains meanwhile, over its weight, exceed those of the quiet one by at most a longest sequence of each over its
/// weight: so for all of them together, count + inverse - 1 longest sequences are served, its own included. That much
/// memory is free when the sequences that ran have ended. Until then each step takes a token of each place, or of each row,
/// or of each sequence; and one step runs as the request comes.
fn memory_bound(config: &Config, held: f64) -> f64 {
    let ((count, inverse), longest) = (shares(config), CONTEXT as f64);
    let ahead = (count + inverse - 1.0) * longest;
    assert!(held >= ahead, "{held} tokens of memory");
    let tokens = held + ahead;
    1.0 + (tokens / config.batch as f64 + tokens / config.rows as f64 + longest).ceil()
}

/// Sends short requests of the quiet tenant, one after the other, and checks each of them. A request may wait for memory
/// during `memory` steps. Returns the longest times in steps until a first token, and to a further one.
async fn quiet(
    server: &Server,
    config: &Config,
    step: Duration,
    memory: f64,
    seed: u64,
) -> [f64; 2] {
    let mut random = Rng::with_seed(seed);
    let (begin, mut longest) = (Instant::now(), [0.0_f64; 2]);
    let (tenants, inverse) = shares(config);
    let is_in_each = 2.0 * inverse + tenants <= config.batch as f64;
    let mut count = 0;
    while begin.elapsed() < DURATION {
        sleep(Duration::from_millis(random.u64(..400))).await;
        let (tokens, max_tokens) = (random.usize(1..50), random.usize(1..8));
        let prompt = prompt(random.u64(..), tokens);
        let times = ask(server.router(), "sk-quiet", prompt, max_tokens).await;
        let times = times.expect("each request is answered");
        let in_steps = |time: Duration| time.as_secs_f64() / step.as_secs_f64();
        let (first, most) = (in_steps(times[0]), memory + bound(config, tokens));
        assert!(
            first <= most,
            "the first token of {tokens} after {first} of {most} steps"
        );
        longest[0] = longest[0].max(first);
        for pair in times.windows(2) {
            let between = in_steps(pair[1] - pair[0]);
            assert!(
                between <= 1.0 || !is_in_each,
                "{between} steps between tokens"
            );
            longest[1] = longest[1].max(between);
        }
        count += 1;
    }
    assert!(count > 5, "{count} requests are too few");
    longest
}

#[tokio::test(start_paused = true)]
async fn quiet_tenant_waits_no_longer_than_its_share_whatever_others_send() {
    let step = longest_step().await;
    for (seed, streams) in [(1, 1), (2, 2)] {
        let config = shared(ByteSize::mib(8), streams);
        let server = start(config.clone()).await;
        let idle = used(&server);
        let mut others = JoinSet::new();
        for client in 0..80 {
            others.spawn(greedy(server.router(), lengths, 1000 * seed + client));
        }
        others.spawn(arrive(server.router(), "sk-bursty", bursts(seed)));
        let [first, between] = quiet(&server, &config, step, 0.0, seed).await;
        println!(
            "{streams} streams: first token within {first:.2} steps of {step:?}, next {between:.2}"
        );
        assert!(
            server.running() > 2 * config.batch * streams,
            "others have more than fits"
        );
        drop(others);
        assert_idle(&server, idle).await;
        server.shut_down().await.unwrap();
    }
}

/// Has a server with memory for `held` tokens serve the quiet tenant beside the others, which may hold `quota` tokens each.
/// Returns the longest wait of the quiet tenant for memory and its bound, in steps, and the time that the greedy one waited.
async fn quiet_beside_others_that_hold_all_memory(
    mut config: Config,
    (held, quota): (u64, Option<u64>),
    draw: Draw,
    seed: u64,
) -> (f64, f64, Duration) {
    let step = longest_step().await;
    for tenant in &mut config.tenants[1..] {
        tenant.quota = quota.map(|tokens| ByteSize::b(tokens * TOKEN));
    }
    let server = start(config.clone()).await;
    let pool = server.pool().clone();
    let of = |name| pool.tag(Tag::new(name)).statistics();
    // Activations are reserved while there are requests.
    ask(server.router(), "sk-quiet", prompt(0, 1), 1)
        .await
        .unwrap();
    let fixed = used(&server) + of("activations").used.high + held * TOKEN;
    let stream = pool.create_stream().unwrap();
    let ballast = pool.allocate(&stream, config.capacity.as_u64() - fixed);
    let ballast = ballast.await.unwrap();
    let idle = used(&server);
    let memory = match quota {
        // The step that runs may still use memory that is free.
        Some(_) => 1.0,
        None => memory_bound(&config, held as f64),
    };
    let mut others = JoinSet::new();
    for client in 0..80 {
        others.spawn(greedy(server.router(), draw, 1000 * seed + client));
    }
    others.spawn(arrive(server.router(), "sk-bursty", bursts(seed)));
    quiet(&server, &config, step, memory, seed).await;
    let longest = of("quiet").waits.times.longest();
    let waited = of("greedy").waits.times.total();
    drop(others);
    assert_idle(&server, idle).await;
    drop((ballast, stream, pool));
    server.shut_down().await.unwrap();
    (longest.as_secs_f64() / step.as_secs_f64(), memory, waited)
}

/// Tenants of any weights, with memory for 14 to 18 sequences of the longest length.
#[tokio::test(start_paused = true)]
async fn quiet_tenant_waits_for_memory_no_longer_than_its_share_whatever_others_send() {
    let mut most = 0.0_f64;
    for seed in 0..6 {
        let mut random = Rng::with_seed(seed);
        let mut config = shared(ByteSize::mib(2), random.usize(1..3));
        for tenant in &mut config.tenants {
            tenant.weight = random.choice([1, 2, 5]).unwrap();
        }
        let held = random.u64(900..1150);
        let draw = if seed % 2 == 0 { lengths } else { LONGEST };
        let (longest, bound, _) =
            quiet_beside_others_that_hold_all_memory(config, (held, None), draw, seed).await;
        println!("waits for memory within {longest:.2} of {bound} steps");
        assert!(longest <= bound, "{longest} of {bound} steps, seed {seed}");
        most = most.max(longest);
    }
    assert!(most > 10.0, "others hold all memory: {most}");
}

/// The limits of the others leave memory for the longest sequence of the quiet tenant.
#[tokio::test(start_paused = true)]
async fn tenant_for_which_the_quotas_of_others_leave_memory_never_waits_for_it() {
    for seed in 0..3 {
        let config = shared(ByteSize::mib(2), 1);
        let (longest, bound, others) =
            quiet_beside_others_that_hold_all_memory(config, (600, Some(256)), LONGEST, seed).await;
        println!("waits for memory within {longest:.2} of {bound} steps");
        assert!(longest <= bound, "{longest} of {bound} steps, seed {seed}");
        assert!(others > DURATION, "the others wait: {others:?}");
    }
}

/// Reads the arrivals of a public trace in the folder `WEIRPOOL_TRACES`, `speed` times as fast, with lengths that fit.
fn arrivals(name: &str, speed: u32) -> Vec<(Duration, usize, usize)> {
    let folder = std::env::var_os("WEIRPOOL_TRACES").expect("the folder of the traces");
    let file = std::fs::File::open(Path::new(&folder).join(name)).expect(name);
    let mut text = String::new();
    let mut decoder = flate2::read::GzDecoder::new(file);
    decoder.read_to_string(&mut text).expect("a gzip file");
    let mut first = None;
    let rows = text.lines().skip(1).map(|line| {
        let fields: Vec<&str> = line.trim().split(',').collect();
        let clock: Vec<f64> = fields[0][11..]
            .split(':')
            .map(|part| part.parse().unwrap())
            .collect();
        let at = Duration::from_secs_f64(clock[0] * 3600.0 + clock[1] * 60.0 + clock[2]);
        let at = (at - *first.get_or_insert(at)) / speed;
        let [tokens, answer] = [1, 2].map(|field| fields[field].parse::<usize>().unwrap());
        let tokens = (tokens / 16).clamp(1, CONTEXT - 32);
        (at, tokens, (answer / 4).clamp(1, 32))
    });
    rows.take_while(|(at, ..)| *at < DURATION).collect()
}

#[tokio::test(start_paused = true)]
#[ignore = "reads the public traces of Azure in the folder that WEIRPOOL_TRACES names"]
async fn quiet_tenant_waits_no_longer_than_its_share_beside_real_arrivals() {
    let files = ["azure_llm_2023_code.csv.gz", "azure_llm_2023_conv.csv.gz"];
    let [code, chat] = files.map(|name| arrivals(name, 60));
    let step = longest_step().await;
    let config = shared(ByteSize::mib(32), 1);
    let server = start(config.clone()).await;
    let idle = used(&server);
    println!(
        "{} arrivals of {} and {} of {}",
        code.len(),
        files[0],
        chat.len(),
        files[1]
    );
    let mut others = JoinSet::new();
    others.spawn(arrive(server.router(), "sk-greedy", code));
    others.spawn(arrive(server.router(), "sk-bursty", chat));
    let [first, between] = quiet(&server, &config, step, 0.0, 11).await;
    println!("first token within {first:.2} steps of {step:?}, next {between:.2}");
    assert!(
        server.running() > 2 * config.batch,
        "{} run",
        server.running()
    );
    drop(others);
    assert_idle(&server, idle).await;
    server.shut_down().await.unwrap();
}
