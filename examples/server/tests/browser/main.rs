//! The page in a browser: it follows a service, on a screen and on a phone, in light and in dark, and by keyboard. Ignored,
//! visibly, where there is no Chromium.

mod chromium;
mod incident;

use axum::body::Body;
use axum::http::Request;
use chromium::Browser;
use http_body_util::BodyExt;
use incident::{Incident, STARVED, TENANTS};
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::json;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::runtime::Runtime;
use tower::ServiceExt;
use weirpool::device::sim::SimDevice;
use weirpool::{Pool, Tag};
use weirpool_dashboard::{Frame, Recording};
use weirpool_observe::Record as _;
use weirpool_server::config::{ModelConfig, TenantConfig};
use weirpool_server::{Config, Server};

type Test = (&'static str, fn(&mut Browser));

const TESTS: [Test; 10] = [
    ("page_opened_late_shows_the_incident", incident),
    ("phone_shows_limit_waiting_and_refused", incident_on_a_phone),
    ("live_page_shows_what_the_service_does", live),
    ("page_works_by_keyboard", keyboard),
    ("page_fits_a_phone", phone),
    ("text_is_legible_in_light_and_in_dark", legible),
    ("page_that_nobody_sees_asks_for_nothing", unseen),
    ("page_finds_a_server_that_was_restarted", restarted),
    ("page_of_a_finished_run_plays_without_a_server", finished),
    ("hostile_names_are_shown_as_text", hostile),
];

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let path = chromium::find();
    if path.is_none() {
        eprintln!("ignored: there is no Chromium; install it, or name it in CHROMIUM");
    }
    let trials = TESTS.map(|(name, test)| {
        let browser = path.clone();
        let run = move || -> Result<(), Failed> {
            let mut browser = Browser::start(&browser.ok_or("no Chromium")?);
            browser.view(1240, 1400, false);
            test(&mut browser);
            Ok(())
        };
        Trial::test(name, run).with_ignored_flag(path.is_none())
    });
    libtest_mimic::run(&arguments, trials.into()).exit_code()
}

/// A server with requests in flight, until it is dropped.
struct Service {
    runtime: Runtime,
    server: Option<Server>,
    address: SocketAddr,
    stop: Arc<AtomicBool>,
}

fn config() -> Config {
    let standard = Config::default();
    let tenant = |name: &str, weight, quota| TenantConfig {
        name: name.to_owned(),
        key: format!("key of {name}"),
        quota,
        weight,
        queue: None,
    };
    Config {
        listen: ([127, 0, 0, 1], 0).into(),
        capacity: bytesize::ByteSize::mib(2),
        slowdown: 20.0,
        page: 8,
        batch: 16,
        rows: 64,
        model: ModelConfig {
            width: 64,
            layers: 2,
            context: 128,
            ..standard.model.clone()
        },
        tenants: vec![
            tenant("search", 3, None),
            tenant("chat", 1, Some(bytesize::ByteSize::kib(800))),
        ],
        ..standard
    }
}

impl Service {
    fn start(config: Config, clients: u64) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let server = runtime.block_on(Server::start(config)).expect("a server");
        let address = runtime.block_on(server.listen()).expect("an address");
        let stop = Arc::new(AtomicBool::new(false));
        for client in 0..clients {
            let (router, stop) = (server.router(), stop.clone());
            runtime.spawn(async move {
                let mut random = fastrand::Rng::with_seed(client);
                while !stop.load(Ordering::Relaxed) {
                    let tenant = if random.u8(..) < 160 {
                        "search"
                    } else {
                        "chat"
                    };
                    let shared = random.u32(..6);
                    let prompt: Vec<_> = (0..16)
                        .map(|token| (token * 7 + shared) % 256)
                        .chain((0..random.u32(4..48)).map(|_| random.u32(..256)))
                        .collect();
                    let body = json!({"prompt": prompt, "max_tokens": random.u32(8..64)});
                    let request = Request::post("/v1/completions")
                        .header("content-type", "application/json")
                        .header("authorization", format!("Bearer key of {tenant}"))
                        .body(Body::from(body.to_string()));
                    let answer = router.clone().oneshot(request.expect("a request")).await;
                    let answer = answer.unwrap_or_else(|never| match never {});
                    let _ = answer.into_body().collect().await;
                }
            });
        }
        Self {
            runtime,
            server: Some(server),
            address,
            stop,
        }
    }

    fn page(&self) -> String {
        format!("http://{}/", self.address)
    }

    fn pool(&self) -> &Pool {
        self.server.as_ref().expect("it runs").pool()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(server) = self.server.take() {
            let ended = self.runtime.block_on(server.shut_down());
            if !std::thread::panicking() {
                ended.expect("all memory is returned, with the page open");
            }
        }
    }
}

/// Takes the picture of the README, if pictures are wanted.
fn picture(browser: &mut Browser) {
    let mut config = config();
    config.capacity = bytesize::ByteSize::mib(6);
    config.tenants[1].quota = Some(bytesize::ByteSize::mib(2));
    let service = Service::start(config, 40);
    browser.view(1240, 1000, false);
    browser.open(&service.page());
    while browser.evaluate("frames.length").as_u64() < Some(100) {
        browser.evaluate("new Promise((done) => setTimeout(done, 500))");
    }
    browser.evaluate("byId('colours').value = 'tag'; drawMap()");
    browser.picture("dashboard.png");
    browser.view(1240, 2400, true);
    browser.until("frames.length > 84");
    browser.picture("dashboard-dark.png");
}

fn incident(browser: &mut Browser) {
    let service = Incident::start();
    browser.open(&service.page());
    browser.until("frames.length > 4");
    browser.picture("incident.png");
    browser.view(1240, 2600, true);
    browser.until("frames.length > 8");
    browser.picture("incident-dark.png");
    println!("{}", browser.evaluate("JSON.stringify([past.t.length, frames.at(-1).alerts, past.tags.size, Math.max(...past.pool.waiting)])"));
    assert_quiet(browser);
    let _ = (STARVED, TENANTS);
}

fn incident_on_a_phone(browser: &mut Browser) {
    let service = Incident::start();
    browser.view(390, 844, false);
    browser.open(&service.page());
    browser.until("frames.length > 4");
    browser.picture("phone.png");
    browser.view(390, 2600, false);
    browser.until("frames.length > 8");
    browser.picture("phone-long.png");
    assert_quiet(browser);
}

fn assert_quiet(browser: &mut Browser) {
    browser.evaluate("0");
    assert!(browser.problems.is_empty(), "{:#?}", browser.problems);
}

fn live(browser: &mut Browser) {
    let service = Service::start(config(), 24);
    browser.open(&service.page());
    browser.until("frames.length > 8");
    // Requests wait, and the page says for how long.
    browser.until("frames.some((frame) => frame.waiting.length > 0)");
    browser.until(
        "frames.some((frame) => frame.waiting.some(({ expected_ns }) => expected_ns !== null))",
    );
    browser.until("frames.at(-1).times.slice(0, 3).every(({ count }) => count > 0)");
    browser.until("frames.at(-1).counts.evictions > 0");
    // Figures are those of the pool.
    let reserved = service.pool().inspect().statistics().reserved.high;
    let shown = browser.evaluate("Math.max(...frames.map((frame) => frame.levels.reserved))");
    assert!(shown.as_u64() <= Some(reserved) && shown.as_u64() > Some(0));
    let text = browser.evaluate("document.body.innerText");
    let text = text.as_str().expect("text");
    for shown in [
        "weirpool-server",
        "serving",
        "search",
        "chat",
        "800 KiB",
        "Waiting requests",
        "Time to the first token",
        "Latest events",
    ] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
    // Blocks lie where the pool says, and each position of the map is painted.
    let drawn = browser.evaluate(
        "(() => { const canvas = byId('map'); const { data } = canvas.getContext('2d')
           .getImageData(0, 0, canvas.width, canvas.height);
           const colours = new Set(); for (let at = 0; at < data.length; at += 4) colours.add(data.slice(at, at + 3).join());
           return colours.size; })()",
    );
    assert!(drawn.as_u64() >= Some(3), "{drawn} colours");
    // All that was asked for came from the server.
    let origin = service.page();
    for address in &browser.requested {
        assert!(
            address.starts_with(&origin) || address == "about:blank",
            "{address}"
        );
    }
    // Under load a page is evicted as soon as it can be. Without requests the pages of their prompts stay.
    service.stop.store(true, Ordering::Relaxed);
    browser.until("frames.at(-1).waiting.length === 0 && frames.at(-1).levels.evictable > 0");
    assert_quiet(browser);
}

fn keyboard(browser: &mut Browser) {
    let service = Service::start(config(), 8);
    browser.open(&service.page());
    browser.until("frames.length > 3");
    let mut reached = Vec::new();
    for _ in 0..12 {
        browser.press("Tab");
        let focused = browser.evaluate("document.activeElement.id");
        reached.push(focused.as_str().unwrap_or_default().to_owned());
    }
    for id in ["play", "frame", "colours", "map", "events"] {
        assert!(
            reached.iter().any(|reached| reached == id),
            "{id}: {reached:?}"
        );
    }
    // Enter pauses, and the shown frame stays, while further frames arrive.
    browser.evaluate("byId('play').focus()");
    browser.press("Enter");
    browser.until("byId('play').textContent === 'Live'");
    let paused = browser.evaluate("frames[current].time_ns");
    browser.evaluate("window.mark = frames.at(-1).time_ns");
    browser.until("frames.at(-1).time_ns > window.mark");
    assert_eq!(browser.evaluate("frames[current].time_ns"), paused);
    // The arrow keys move through time, and from block to block.
    browser.evaluate("byId('frame').focus()");
    browser.press("ArrowLeft");
    let earlier = browser.evaluate("frames[current].time_ns");
    assert!(earlier.as_f64() < paused.as_f64(), "{earlier} {paused}");
    browser.evaluate("byId('map').focus()");
    browser.press("Home");
    let first = browser.evaluate("byId('block').textContent");
    assert!(
        first.as_str().is_some_and(|text| text.starts_with("0x")),
        "{first}"
    );
    browser.press("ArrowRight");
    let second = browser.evaluate("byId('block').textContent");
    assert_ne!(first, second);
    browser.press("ArrowLeft");
    assert_eq!(browser.evaluate("byId('block').textContent"), first);
    browser.press("Escape");
    let none = browser.evaluate("byId('block').textContent");
    assert!(
        none.as_str()
            .is_some_and(|text| text.contains("arrow keys")),
        "{none}"
    );
    browser.evaluate("byId('play').focus()");
    browser.press("Enter");
    browser.until("byId('play').textContent === 'Pause' && current === frames.length - 1");
    assert_quiet(browser);
}

fn phone(browser: &mut Browser) {
    let service = Service::start(config(), 16);
    browser.view(360, 740, true);
    browser.open(&service.page());
    browser.until("frames.length > 3 && frames.at(-1).waiting.length > 0");
    let overflow = "document.documentElement.scrollWidth - window.innerWidth";
    assert_eq!(browser.evaluate(overflow), 0);
    for id in ["levels", "map"] {
        let width = browser.evaluate(&format!("byId('{id}').clientWidth"));
        assert!(width.as_u64() > Some(300), "{id}: {width}");
    }
    browser.picture("dashboard-phone.png");
    assert_quiet(browser);
    drop(service);
    if std::env::var_os("WEIRPOOL_SCREENSHOTS").is_some() {
        picture(browser);
    }
}

fn legible(browser: &mut Browser) {
    let service = Service::start(config(), 8);
    browser.open(&service.page());
    browser.until("frames.length > 3");
    // The contrast of the Web Content Accessibility Guidelines, 1.4.3: at least 4.5.
    let contrast = "(() => {
        const channel = (value) => { const c = value / 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
        const light = (text) => { const [r, g, b] = text.match(/[0-9.]+/g).map(Number);
          return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b); };
        const paper = light(getComputedStyle(document.body).backgroundColor);
        return Math.min(...[...document.querySelectorAll('h1, h2, p, li, td, th, pre, #status')].map((element) => {
          const ink = light(getComputedStyle(element).color);
          return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05); })); })()";
    let paper = "getComputedStyle(document.body).backgroundColor";
    let mut papers = Vec::new();
    for is_dark in [false, true] {
        browser.view(1240, 1400, is_dark);
        let least = browser.evaluate(contrast);
        assert!(least.as_f64() >= Some(4.5), "dark {is_dark}: {least}");
        papers.push(browser.evaluate(paper));
    }
    assert_ne!(papers[0], papers[1]);
    assert_quiet(browser);
}

fn unseen(browser: &mut Browser) {
    let service = Service::start(config(), 4);
    browser.open(&service.page());
    browser.until("frames.length > 3");
    let hide = |is_hidden| {
        format!(
            "Object.defineProperty(document, 'hidden', {{ value: {is_hidden}, configurable: true }});
             document.dispatchEvent(new Event('visibilitychange'))"
        )
    };
    browser.evaluate(&hide(true));
    assert_eq!(browser.evaluate("source === null"), true);
    let asked = browser.requested.len();
    browser.evaluate("window.mark = frames.length");
    browser.evaluate(&hide(false));
    browser.until("frames.length > window.mark");
    assert_eq!(browser.requested.len(), asked + 1);
    assert_quiet(browser);
}

fn restarted(browser: &mut Browser) {
    let first = Service::start(config(), 4);
    let address = first.address;
    browser.open(&first.page());
    browser.until("frames.length > 3");
    drop(first);
    browser.until("byId('status').textContent.startsWith('not connected')");
    let begun = Config {
        listen: address,
        ..config()
    };
    let second = Service::start(begun, 4);
    browser.until("byId('status').textContent.startsWith('serving')");
    browser.until("frames.at(-1).counts.allocations > 0");
    drop(second);
}

fn recorded(name: &str) -> Recording {
    let device = SimDevice::new();
    let builder = Pool::builder(device.clone()).capacity(256 << 20);
    let pool = builder.history(100).build().expect("a pool");
    let stream = pool.create_stream().expect("a stream").named(name);
    let mut recording = Recording::new(name);
    let mut random = fastrand::Rng::with_seed(7);
    let mut held = Vec::new();
    for _ in 0..60 {
        recording.frames.push(Frame::of(&pool));
        device.advance(std::time::Duration::from_millis(1));
        let request = pool.allocate(&stream, random.u64(1..8 << 20));
        held.extend(request.tag(Tag::new(name)).try_now().ok());
        if random.bool() && !held.is_empty() {
            drop(held.swap_remove(random.usize(..held.len())));
        }
    }
    recording
}

/// Opens the page of a recording from a file.
fn open_file(browser: &mut Browser, recording: &Recording) {
    let name = format!(
        "weirpool-page-{}-{}.html",
        std::process::id(),
        fastrand::u64(..)
    );
    let file = std::env::temp_dir().join(name);
    std::fs::write(&file, recording.to_html()).expect("a file");
    browser.open(&format!("file://{}", file.display()));
    std::fs::remove_file(&file).expect("it was written");
}

fn finished(browser: &mut Browser) {
    open_file(browser, &recorded("a recording"));
    assert_eq!(browser.evaluate("frames.length"), 60);
    assert_eq!(browser.evaluate("document.title"), "a recording");
    browser.evaluate("show(0); byId('play').focus()");
    browser.press("Enter");
    browser.until("current === 59 && byId('play').textContent === 'Play'");
    let asked: Vec<_> = browser.requested.iter().collect();
    assert!(
        asked
            .iter()
            .all(|asked| asked.starts_with("file:") || *asked == "about:blank"),
        "{asked:?}"
    );
    browser.picture("recording.png");
    assert_quiet(browser);
}

fn hostile(browser: &mut Browser) {
    let name = "<img src=x onerror=\"document.title='taken'\"></script><script>document.title='taken'</script>";
    open_file(browser, &recorded(name));
    browser.until("frames.length === 60");
    browser.evaluate("byId('colours').value = 'tag'; drawMap()");
    assert_eq!(browser.evaluate("document.title"), name);
    assert_eq!(
        browser.evaluate("document.querySelectorAll('img').length"),
        0
    );
    let text = browser.evaluate(
        "byId('tags').textContent + byId('legend').textContent + byId('streams').textContent",
    );
    assert_eq!(
        text.as_str().map(|text| text.matches(name).count()),
        Some(3),
        "{text}"
    );
    assert_quiet(browser);
}
