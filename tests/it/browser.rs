//! A real Chromium without a window, told what to do by its DevTools protocol, over a pair of pipes.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long anything may take, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// The script that finds a Chromium, or installs one.
const FINDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/local/browser");

/// A Chromium with one page.
pub(crate) struct Browser {
    process: Child,
    to: File,
    from: Receiver<Vec<u8>>,
    folder: PathBuf,
    session: Option<String>,
    number: u64,
    /// What the page said on its console that is a fault.
    faults: Vec<String>,
}

impl Browser {
    /// Opens a page.
    pub(crate) fn open(url: &str) -> Self {
        let found = Command::new(FINDER).stderr(Stdio::inherit()).output().unwrap();
        assert!(
            found.status.success(),
            "there is no Chromium, and none can be installed: see above what {FINDER} says"
        );
        let program = String::from_utf8(found.stdout).unwrap().lines().last().unwrap().to_owned();
        let folder = std::env::temp_dir().join(format!("strandline-browser-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&folder).unwrap();
        let pipes = [folder.join("to"), folder.join("from")];
        assert!(Command::new("mkfifo").args(&pipes).status().unwrap().success());
        // Chromium reads from 3 and writes to 4.
        let mut command = Command::new("bash");
        command.args(["-c", "exec \"$@\" 3<\"$TO\" 4>\"$FROM\"", "browser", &program, "--remote-debugging-pipe"]);
        command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]);
        command.args(["--disable-extensions", "--disable-background-networking", "--hide-scrollbars"]);
        command.arg(format!("--user-data-dir={}", folder.join("profile").display())).arg("about:blank");
        command.env("TO", &pipes[0]).env("FROM", &pipes[1]).env("HOME", &folder);
        let log = File::create(folder.join("log")).unwrap();
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let to = OpenOptions::new().write(true).open(&pipes[0]).unwrap();
        let mut pipe = BufReader::new(File::open(&pipes[1]).unwrap());
        let (heard, from) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while matches!(pipe.read_until(0, &mut message), Ok(1..)) && message.pop() == Some(0) {
                if heard.send(std::mem::take(&mut message)).is_err() {
                    break;
                }
            }
        });
        let mut browser = Self { process, to, from, folder, session: None, number: 0, faults: Vec::new() };
        let page = browser.ask("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": page["targetId"], "flatten": true });
        let session = browser.ask("Target.attachToTarget", attach);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        browser.ask("Runtime.enable", json!({}));
        browser.ask("Page.enable", json!({}));
        browser.screen(1200, 900, false);
        browser.ask("Page.navigate", json!({ "url": url }));
        browser
    }

    /// Asks for something, and waits for the answer.
    fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.number += 1;
        let mut request = json!({ "id": self.number, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            request["sessionId"] = session.as_str().into();
        }
        self.to.write_all(format!("{request}\0").as_bytes()).unwrap();
        loop {
            let message = self.from.recv_timeout(PATIENCE);
            let message =
                message.unwrap_or_else(|why| panic!("{method}: Chromium does not answer: {why}: {}", self.log()));
            let message: Value = serde_json::from_slice(&message).unwrap();
            self.hear(&message);
            if message["id"] == self.number {
                assert_eq!(message["error"], Value::Null, "{method}: {message}");
                return message["result"].clone();
            }
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Notes what went wrong in the page.
    fn hear(&mut self, message: &Value) {
        let parameters = &message["params"];
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.faults.push(parameters["exceptionDetails"].to_string()),
            Some("Runtime.consoleAPICalled") if parameters["type"] == "error" => {
                self.faults.push(parameters["args"].to_string());
            }
            _ => {}
        }
    }

    /// What the page has complained of so far.
    pub(crate) fn faults(&self) -> &[String] {
        &self.faults
    }

    /// What an expression says in the page.
    pub(crate) fn say(&mut self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let said = self.ask("Runtime.evaluate", parameters);
        assert_eq!(said["exceptionDetails"], Value::Null, "{expression}: {said}");
        said["result"]["value"].clone()
    }

    /// The text of an element; empty if there is none.
    pub(crate) fn text(&mut self, selector: &str) -> String {
        let selector = json!(selector);
        let said = self.say(&format!("(document.querySelector({selector}) || {{}}).innerText || ''"));
        said.as_str().unwrap().to_owned()
    }

    /// Waits until an expression is true in the page.
    pub(crate) async fn until(&mut self, what: &str, expression: &str) {
        let begun = Instant::now();
        // What it asks for may not be there yet.
        let tried = format!("(() => {{ try {{ return Boolean({expression}); }} catch {{ return false; }} }})()");
        while self.say(&tried) != true {
            if begun.elapsed() > PATIENCE {
                let body = self.text("body");
                panic!(
                    "waited {PATIENCE:?} in vain until {what}; the page complains of {:?} and says:\n{body}",
                    self.faults
                );
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Gives the page another size, as a phone or a desk has it.
    pub(crate) fn screen(&mut self, width: u32, height: u32, phone: bool) {
        let scale = if phone { 2 } else { 1 };
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": scale, "mobile": phone });
        self.ask("Emulation.setDeviceMetricsOverride", size);
    }

    /// Lets the reader prefer `light` or `dark`.
    pub(crate) fn prefer(&mut self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.ask("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// Presses a key.
    pub(crate) fn press(&mut self, key: &str, code: u32) {
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let event = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text });
            self.ask("Input.dispatchKeyEvent", event);
        }
    }

    /// Takes a picture of the whole page.
    pub(crate) fn picture(&mut self, into: &Path) {
        let size = self.ask("Page.getLayoutMetrics", json!({}));
        let size = &size["cssContentSize"];
        let clip = json!({ "x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1 });
        let taken =
            self.ask("Page.captureScreenshot", json!({ "format": "png", "captureBeyondViewport": true, "clip": clip }));
        std::fs::write(into, base64(taken["data"].as_str().unwrap())).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("Chromium said:\n{}", self.log());
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// What a text in base 64 stands for.
fn base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for byte in text.bytes().filter(|byte| *byte != b'=') {
        (bits, count) = (bits << 6 | u32::from(digit(byte)), count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
