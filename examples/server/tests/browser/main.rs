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
use weirpool_server::config::{ModelConfig, Secret, TenantConfig};
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
        operator_key: Some(Secret("opens-the-page".to_owned())),
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
        format!("http://operator:opens-the-page@{}/", self.address)
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

/// Returns the text of an element.
fn text_of(browser: &mut Browser, id: &str) -> String {
    let text = browser.evaluate(&format!("byId('{id}').innerText"));
    text.as_str().expect("text").to_owned()
}

/// Returns the labels that a drawing of the charts writes.
fn labels(browser: &mut Browser) -> Vec<String> {
    let labels = browser.evaluate(
        "(() => { const labels = []; const { prototype } = CanvasRenderingContext2D; const { fillText } = prototype;
           prototype.fillText = function (text, ...at) { labels.push(text); return fillText.call(this, text, ...at); };
           drawCharts(); prototype.fillText = fillText; return labels; })()",
    );
    let labels = labels.as_array().expect("a list").iter();
    labels
        .map(|label| label.as_str().expect("text").to_owned())
        .collect()
}

fn incident(browser: &mut Browser) {
    let service = Incident::start();
    browser.open(&service.page());
    browser.until("frames.length > 2");
    // The page was opened after the overload, and shows all of it.
    assert!(browser.evaluate("past.t.length").as_u64() > Some(590));
    let overload = "past.t.filter((t, row) => past.pool.waiting[row] > 50 && past.pool.refused[row] > 0).length";
    let seconds = browser.evaluate(overload);
    assert!(seconds.as_u64() > Some(30), "{seconds} s");
    let mark = browser.evaluate(
        "[past.t[300], past.tags.get('vision').used[300], past.pool.waiting[450]].join()",
    );
    browser.picture("dashboard.png");
    // A reload loses nothing.
    browser.open(&service.page());
    browser.until("frames.length > 2");
    let (parts, mark) = (mark.as_str().expect("text"), mark.clone());
    let t = parts.split(',').next().expect("a time");
    browser.evaluate(&format!("window.row = past.t.indexOf({t})"));
    let again =
        "[past.t[row], past.tags.get('vision').used[row], past.pool.waiting[row + 150]].join()";
    assert_eq!(browser.evaluate(again), mark);

    // What needs attention is at the top.
    let alerts = text_of(browser, "alerts");
    assert!(
        alerts.to_lowercase().contains("starving") && alerts.contains(STARVED),
        "{alerts}"
    );
    // Ticks are round.
    let shown = labels(browser);
    for label in ["4 GiB", "8 GiB", "12 GiB", "5 min ago", "1 min ago", "now"] {
        assert!(
            shown.iter().any(|shown| shown == label),
            "{label}: {shown:?}"
        );
    }
    // Ranges, and a zoom by dragging: ticks are times of day then.
    let span = "(() => { const [from, to] = view(); return Math.round((to - from) / 1000); })()";
    for (range, seconds) in [(0, 60), (1, 300), (2, 600)] {
        browser.click(&format!("byId('ranges').children[{range}]"));
        let shown = browser.evaluate(span).as_i64().expect("a number");
        assert!(
            (seconds - 2..=seconds).contains(&shown),
            "{shown} s of {seconds}"
        );
    }
    let place = browser.evaluate(
        "(() => { byId('levels').scrollIntoView({ block: 'center' }); const box = byId('levels').getBoundingClientRect();
           return [box.left + LEFT, box.width - LEFT - RIGHT, box.top + box.height / 2]; })()",
    );
    let [left, width, y] = [0, 1, 2].map(|at| place[at].as_f64().expect("a number"));
    browser.drag((left + 0.6 * width, y), (left + 0.8 * width, y));
    let zoomed = browser.evaluate(span);
    assert!(
        (110..=130).contains(&zoomed.as_i64().expect("a number")),
        "{zoomed}"
    );
    let is_time = |label: &String| label.len() == 8 && label.matches(':').count() == 2;
    assert!(labels(browser).iter().any(is_time));
    // A click stays at a moment, whose blocks are not kept.
    browser.drag((left + 0.5 * width, y), (left + 0.5 * width, y));
    browser.until("pinned !== null && !byId('gone').hidden && byId('details').hidden");
    let then = text_of(browser, "time");
    assert!(then.contains(" min ") && then.contains(':'), "{then}");
    let figures = text_of(browser, "now");
    browser.evaluate("window.mark = frames.length");
    browser.until("frames.length > window.mark + 4");
    assert_eq!(text_of(browser, "now"), figures);
    browser.picture("zoomed.png");
    browser.click("byId('play')");
    browser.until("pinned === null && zoom === null && byId('gone').hidden");

    // The legend is whole, and no two tags have one colour.
    let legend = text_of(browser, "tenants-legend");
    for tenant in TENANTS {
        assert!(legend.contains(tenant), "{tenant}: {legend}");
    }
    let colours = "new Set([...byId('tenants-legend').querySelectorAll('.key')].map((key) => getComputedStyle(key, '::before').backgroundColor)).size";
    assert!(browser.evaluate(colours).as_u64() >= Some(TENANTS.len() as u64));
    // A tag is chosen by a click, and tags are found by their names.
    let shown = "[...byId('tags').querySelectorAll('td:first-child')].map((cell) => cell.textContent).join()";
    browser.click("[...byId('tenants-legend').querySelectorAll('button')].find((one) => one.dataset.name === 'vision')");
    browser.until("chosen.size === 1");
    assert_eq!(browser.evaluate(shown), "vision");
    browser.click("[...byId('tenants-legend').querySelectorAll('button')].find((one) => one.dataset.name === 'vision')");
    browser
        .evaluate("byId('filter').value = 'S'; byId('filter').dispatchEvent(new Event('input'))");
    let found = browser.evaluate(shown);
    let found = found.as_str().expect("text");
    assert!(
        found.split(',').count() > 3 && found.split(',').all(|name| name.contains('s')),
        "{found}"
    );
    browser.evaluate("byId('filter').value = ''; byId('filter').dispatchEvent(new Event('input'))");
    for measure in ["waiting", "wait", "granted", "refused", "used"] {
        browser.evaluate(&format!("byId('measure').value = '{measure}'; byId('measure').dispatchEvent(new Event('change'))"));
    }
    // Tables sort, by the keyboard, too, and stay sorted.
    browser.click("byId('tags').querySelectorAll('th button')[1]");
    browser.evaluate("window.mark = frames.length");
    browser.until("frames.length > window.mark + 2");
    let order = "[...frames.at(-1).tags].sort((a, b) => b.used - a.used).every(({ used }, at) =>
        byId('tags').rows[at + 1].cells[1].textContent === bytes(used))";
    assert_eq!(browser.evaluate(order), true);
    assert_eq!(
        browser.evaluate("byId('tags').querySelectorAll('th')[1].getAttribute('aria-sort')"),
        "descending"
    );
    browser.press("Enter");
    assert_eq!(
        browser.evaluate("byId('tags').querySelectorAll('th')[1].getAttribute('aria-sort')"),
        "ascending"
    );
    // Events have times of day.
    let events = text_of(browser, "events");
    let first = events.lines().next().expect("an event");
    assert!(
        first.len() > 14 && &first[2..3] == ":" && &first[5..6] == ":" && &first[8..9] == ".",
        "{first}"
    );
    browser.view(1240, 2600, true);
    browser.evaluate("scrollTo(0, 0); window.mark = frames.length");
    browser.until("frames.length > window.mark + 1");
    browser.picture("dashboard-dark.png");
    assert_quiet(browser);
}

fn incident_on_a_phone(browser: &mut Browser) {
    let service = Incident::start();
    browser.view(390, 844, false);
    browser.open(&service.page());
    browser.until("frames.length > 2");
    let overflow = "document.documentElement.scrollWidth - window.innerWidth";
    assert_eq!(browser.evaluate(overflow), 0);
    // Without scrolling: the pool's figures; and those of each tag, without scrolling to the side.
    for name in ["limit", "waiting", "refused"] {
        let bottom = format!(
            "[...byId('now').children].find((item) => item.textContent.startsWith('{name}')).getBoundingClientRect().bottom"
        );
        let bottom = browser.evaluate(&bottom);
        assert!(bottom.as_f64() < Some(844.0), "{name}: {bottom}");
        let right = format!(
            "[...byId('tags').querySelectorAll('th')].find((head) => head.textContent === '{name}').getBoundingClientRect().right"
        );
        let right = browser.evaluate(&right);
        assert!(
            right.as_f64() <= Some(390.0) && right.as_f64() > Some(50.0),
            "{name}: {right}"
        );
    }
    browser.picture("dashboard-phone.png");
    browser.view(390, 2600, false);
    browser.until("frames.length > 6");
    browser.picture("dashboard-phone-long.png");
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
    let origin = format!("http://{}/", service.address);
    for address in &browser.requested {
        assert!(
            [&*service.page(), &*origin]
                .iter()
                .any(|page| address.starts_with(page))
                || address == "about:blank",
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
    browser.until("frames.length > 12 && past.t.length > 3");
    let mut reached = Vec::new();
    for _ in 0..50 {
        browser.press("Tab");
        let focused = browser.evaluate("document.activeElement.id");
        reached.push(focused.as_str().unwrap_or_default().to_owned());
    }
    for id in [
        "play", "frame", "measure", "filter", "colours", "map", "events",
    ] {
        assert!(
            reached.iter().any(|reached| reached == id),
            "{id}: {reached:?}"
        );
    }
    // Enter pauses, and the shown frame stays, while further frames arrive.
    browser.evaluate("byId('play').focus()");
    // A step is a row of figures. On a busy machine, two rows may have no frame between them.
    let has_frames = "(() => {
      const before = past.t[past.t.indexOf(pinned) - 1];
      const isBetween = (frame) => before < timeOf(frame) && timeOf(frame) <= pinned;
      return timeOf(frames[0]) <= before && frames.some(isBetween);
    })()";
    loop {
        browser.press("Enter");
        browser.until("byId('play').textContent === 'Live'");
        if browser.evaluate(has_frames) == true {
            break;
        }
        let last = browser.evaluate("pinned");
        browser.press("Enter");
        browser.until(&format!("past.t.at(-1) > {last}"));
    }
    let paused = browser.evaluate("frames[current].time_ns");
    browser.evaluate("window.mark = frames.at(-1).time_ns");
    browser.until("frames.at(-1).time_ns > window.mark");
    assert_eq!(browser.evaluate("frames[current].time_ns"), paused);
    // The arrow keys move through time, and from block to block.
    browser.evaluate("byId('frame').focus()");
    browser.press("ArrowLeft");
    // The slider tells of its change after the key was handled.
    browser.until(&format!("frames[current].time_ns < {paused}"));
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
    // A tag is chosen, and a table is sorted.
    browser.evaluate("byId('tenants-legend').querySelector('button').focus()");
    browser.press("Enter");
    browser.until("chosen.size === 1");
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
    assert_quiet(browser);
    drop(service);
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
    // A series whose colour has no name in the styles is drawn in black, and has no key.
    let keyless = "[...document.querySelectorAll('[id$=\"-legend\"] li')].filter((item) => !item.querySelector('.key'))
        .map((item) => item.textContent).join()";
    let paper = "getComputedStyle(document.body).backgroundColor";
    let mut papers = Vec::new();
    for is_dark in [false, true] {
        browser.view(1240, 1400, is_dark);
        let least = browser.evaluate(contrast);
        assert!(least.as_f64() >= Some(4.5), "dark {is_dark}: {least}");
        assert_eq!(browser.evaluate(keyless), "", "dark {is_dark}");
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
    browser.evaluate("stay(past.t[0]); byId('play').focus()");
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
