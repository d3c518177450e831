//! Chromium without a window, over the DevTools protocol: <https://chromedevtools.github.io/devtools-protocol>.

use serde_json::{Value, json};
use std::collections::HashMap;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tungstenite::{Message, WebSocket};

/// No answer takes longer than this.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the path of the browser, if there is one: `CHROMIUM`, or `chromium` in the `PATH`.
pub(crate) fn find() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("CHROMIUM") {
        return Some(path.into());
    }
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser"];
    std::env::split_paths(&path)
        .flat_map(|folder| names.map(|name| folder.join(name)))
        .find(|file| file.is_file())
}

/// A browser with one page.
pub(crate) struct Browser {
    process: Child,
    profile: PathBuf,
    socket: WebSocket<TcpStream>,
    session: Option<String>,
    last: u64,
    /// What the page reported: exceptions, violations of its policy, resources that were not found.
    pub(crate) problems: Vec<String>,
    /// The addresses that the page asked for.
    pub(crate) requested: Vec<String>,
}

impl Browser {
    pub(crate) fn start(path: &Path) -> Self {
        let profile = std::env::temp_dir().join(format!(
            "weirpool-browser-{}-{}",
            std::process::id(),
            fastrand::u64(..)
        ));
        let process = Command::new(path)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--hide-scrollbars",
                "--remote-debugging-port=0",
            ])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg("about:blank")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the browser starts");
        let (port, path) = endpoint(&profile);
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("the browser listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let address = format!("ws://127.0.0.1:{port}{path}");
        let (socket, _) = tungstenite::client(address, stream).expect("a web socket");
        let mut browser = Self {
            process,
            profile,
            socket,
            session: None,
            last: 0,
            problems: Vec::new(),
            requested: Vec::new(),
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attached = browser.call(
            "Target.attachToTarget",
            json!({"targetId": target["targetId"], "flatten": true}),
        );
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Calls a method, and returns its result.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let message = Message::text(message.to_string());
        self.socket.send(message).expect("the browser lives");
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < PATIENCE, "no answer to {method}");
            let message = self.socket.read().expect("the browser answers");
            let Message::Text(text) = message else {
                continue;
            };
            let mut message: Value = serde_json::from_str(&text).expect("JSON");
            if message["id"] == self.last {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].take();
            }
            self.note(&message);
        }
    }

    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => {
                self.problems.push(params["exceptionDetails"].to_string());
            }
            Some("Log.entryAdded") if params["entry"]["level"] == "error" => {
                self.problems.push(params["entry"].to_string());
            }
            Some("Network.requestWillBeSent") => {
                let address = params["request"]["url"].as_str().unwrap_or_default();
                self.requested.push(address.to_owned());
            }
            _ => {}
        }
    }

    /// Sets the size of the window in CSS pixels, and the colours that the user prefers.
    pub(crate) fn view(&mut self, width: u32, height: u32, is_dark: bool) {
        let is_phone = width < 600;
        self.call(
            "Emulation.setDeviceMetricsOverride",
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone}),
        );
        let scheme = if is_dark { "dark" } else { "light" };
        let feature = json!({"name": "prefers-color-scheme", "value": scheme});
        self.call("Emulation.setEmulatedMedia", json!({"features": [feature]}));
    }

    pub(crate) fn open(&mut self, address: &str) {
        self.call("Page.navigate", json!({"url": address}));
        self.until("document.readyState === 'complete'");
    }

    /// Evaluates an expression. A promise is awaited.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut result = self.call("Runtime.evaluate", params);
        let failure = &result["exceptionDetails"];
        assert!(failure.is_null(), "{expression}: {failure}");
        result["result"]["value"].take()
    }

    /// Waits until an expression is true.
    pub(crate) fn until(&mut self, condition: &str) {
        let seconds = PATIENCE.as_secs() / 2;
        let waiting = format!(
            "new Promise((done) => {{
               const end = Date.now() + {seconds}000;
               const look = () => {{
                 if ({condition}) done(true); else if (Date.now() > end) done(false); else setTimeout(look, 20);
               }};
               look();
             }})"
        );
        let is_so = self.evaluate(&waiting);
        assert_eq!(is_so, true, "never: {condition}; {:?}", self.problems);
    }

    /// Presses and releases a key, by its name in `KeyboardEvent.key`.
    pub(crate) fn press(&mut self, key: &str) {
        let codes: HashMap<_, _> = [
            ("Tab", 9),
            ("Enter", 13),
            ("Escape", 27),
            ("End", 35),
            ("Home", 36),
            ("ArrowLeft", 37),
            ("ArrowUp", 38),
            ("ArrowRight", 39),
            ("ArrowDown", 40),
        ]
        .into();
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            self.call(
                "Input.dispatchKeyEvent",
                json!({"type": kind, "key": key, "code": key, "text": if kind == "keyDown" { text } else { "" },
                       "windowsVirtualKeyCode": codes[key]}),
            );
        }
    }

    /// Presses the button of the mouse at one point, and releases it at another one: in CSS pixels.
    pub(crate) fn drag(&mut self, from: (f64, f64), to: (f64, f64)) {
        let middle = ((from.0 + to.0) / 2.0, (from.1 + to.1) / 2.0);
        for (kind, (x, y), buttons) in [
            ("mouseMoved", from, 0),
            ("mousePressed", from, 1),
            ("mouseMoved", middle, 1),
            ("mouseMoved", to, 1),
            ("mouseReleased", to, 0),
        ] {
            self.call(
                "Input.dispatchMouseEvent",
                json!({"type": kind, "x": x, "y": y, "button": "left", "buttons": buttons, "clickCount": 1}),
            );
        }
    }

    /// Clicks an element, given by an expression.
    pub(crate) fn click(&mut self, element: &str) {
        let middle = format!(
            "(() => {{ const element = {element}; element.scrollIntoView({{ block: 'center' }});
               const box = element.getBoundingClientRect(); return [box.left + box.width / 2, box.top + box.height / 2]; }})()"
        );
        let middle = self.evaluate(&middle);
        let middle = (
            middle[0].as_f64().expect("a number"),
            middle[1].as_f64().expect("a number"),
        );
        self.drag(middle, middle);
    }

    /// Writes a picture of the page, if `WEIRPOOL_SCREENSHOTS` names a folder.
    pub(crate) fn picture(&mut self, name: &str) {
        use base64::Engine;
        let Some(folder) = std::env::var_os("WEIRPOOL_SCREENSHOTS") else {
            return;
        };
        let params = json!({"format": "png", "captureBeyondViewport": false});
        let picture = self.call("Page.captureScreenshot", params);
        let data = picture["data"].as_str().expect("a picture");
        let bytes = base64::engine::general_purpose::STANDARD.decode(data);
        let file = PathBuf::from(folder).join(name);
        std::fs::write(file, bytes.expect("base64")).expect("the folder exists");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}

/// Waits for the file in which the browser says where it listens.
fn endpoint(profile: &Path) -> (u16, String) {
    let begin = Instant::now();
    loop {
        let text = std::fs::read_to_string(profile.join("DevToolsActivePort"));
        let text = text.unwrap_or_default();
        let mut lines = text.lines();
        if let (Some(Ok(port)), Some(path)) = (lines.next().map(str::parse), lines.next()) {
            return (port, path.to_owned());
        }
        assert!(begin.elapsed() < PATIENCE, "the browser does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
}
