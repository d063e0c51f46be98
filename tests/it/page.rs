//! The status page in a real Chromium: what a pipeline does is seen there, moves, and can be read by everybody.

use std::net::TcpListener;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::browser::Browser;
use crate::shop::{PARTITIONS, Shop, sql};
use crate::stand::{Service, Stand};

fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Whether each actor and connector of the flow works.
const ALL_RUN: &str = "[...document.querySelectorAll('.node')].every(node => node.dataset.life === 'running')";

/// Functions that the test asks with.
const HELP: &str = "
    window.cells = (table, column) =>
      [...document.querySelectorAll(`#${table} tbody tr`)].map(row => (row.children[column] || {}).innerText);
    window.number = text => Number(text.replaceAll(',', ''));
    window.total = (table, column) => cells(table, column).map(number).reduce((a, b) => a + b, 0);
    window.light = color => {
      const parts = color.match(/[0-9.]+/g).map(Number).slice(0, 3).map(c => c / 255)
        .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
      return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
    };
    window.ground = node => {
      for (; node; node = node.parentElement) {
        const color = getComputedStyle(node).backgroundColor;
        if (!/rgba\\(.*, 0\\)/.test(color)) return color;
      }
      return 'rgb(255, 255, 255)';
    };
    window.contrast = node => {
      const [a, b] = [light(getComputedStyle(node).color), light(ground(node))];
      return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    };
    window.faint = () => [...document.querySelectorAll('body *')]
      .filter(node => node.checkVisibility() && [...node.childNodes].some(c => c.nodeType === 3 && c.textContent.trim()))
      .filter(node => contrast(node) < 4.5).map(node => node.outerHTML.slice(0, 100));
    true";

#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_in_a_browser_what_a_pipeline_does() {
    let stand = Stand::new(PARTITIONS).await;
    stand.topic.fill(0, ["no record".to_owned()]).await;
    let shop = Shop::open(&stand.topic, 20_000, 1_000);
    let address = free_address();
    let variables = [("STRANDLINE_HTTP__LISTEN", address.as_str()), ("PANIC_AT", "aggregated:1500")];
    let service = stand.start_in(&sql(&stand), &variables);
    service.until_ready().await;
    let mut browser = Browser::open(&format!("http://{address}/"));
    browser.until("it is healthy", "document.querySelector('#health').innerText === 'healthy'").await;
    browser.say(HELP);

    everything_is_there(&mut browser, &stand).await;
    numbers_move(&mut browser).await;
    // An actor dies: that shows, with its cause, and heals.
    browser
        .until("the panic shows", "cells('restarts', 2).join().includes('told to panic at the point aggregated')")
        .await;
    assert!(browser.say("cells('restarts', 1).join()").as_str().unwrap().contains("aggregation "));
    browser
        .until("the restart is counted", "number(document.querySelector('#tile-restarts .value').innerText) > 0")
        .await;
    browser
        .until("the flow counts it", "document.querySelector('.node .restarts').innerText.includes('1 restart')")
        .await;
    browser.until("all is healed", ALL_RUN).await;
    browser.until("the plots know of it", "document.querySelector('#rate-plot path.fell')").await;
    if let Some(into) = std::env::var_os("PAGE_PICTURE") {
        browser.until("the plots have something to show", "samples.length > 90").await;
        browser.picture(into.as_ref());
    }

    everybody_can_read_it(&mut browser);
    the_keyboard_is_enough(&mut browser);

    // Everything is counted once, and whoever opens the page later sees what was before.
    let (_, ends) = shop.close();
    let all: i64 = ends.iter().sum::<i64>() + 1;
    browser.until("all is counted", &format!("total('balance', 1) === {all} && total('balance', 2) === {all}")).await;
    browser.until("it adds up", "cells('balance', 3).every(text => text === 'adds up')").await;
    browser.until("nothing is behind", "document.querySelector('#tile-lag .value').innerText === '0'").await;
    assert_eq!(browser.faults(), Vec::<String>::new());
    browser.say("window.before = true, location.reload(), true");
    browser.until("the history is there at once", "!window.before && samples.length > 10").await;

    // The process dies: the page says so, and goes on with the next.
    service.kill();
    browser.until("nobody answers", "document.querySelector('#health').innerText === 'no answer'").await;
    let service = stand.start_in(&sql(&stand), &variables[..1]);
    browser.until("it is back", "document.querySelector('#health').innerText === 'healthy'").await;
    browser.until("all run again", ALL_RUN).await;
    service.stop().await;
}

async fn everything_is_there(browser: &mut Browser, stand: &Stand) {
    let nodes = "[...document.querySelectorAll('.stage')].map(s => s.querySelectorAll('.node').length).join()";
    browser.until("the flow is whole", &format!("{nodes} === '1,{PARTITIONS},2,1,2'")).await;
    let flow = browser.text("#flow");
    for part in [&stand.topic.name, &stand.table, "offset committer", "cassandra", "shard 1"] {
        assert!(flow.contains(part), "{part} in {flow}");
    }
    assert!(browser.text("#supervisor").contains("running"));
    assert!(browser.text("#sql").contains("INSERT INTO totals SELECT item, count(*)"));
    let plan = browser.text("#plan");
    assert!(plan.contains("sum(") && plan.contains(&stand.topic.name), "{plan}");
    browser.until("all connectors run", "cells('connectors', 2).join() === 'running,running,running'").await;
    browser
        .until("the dead letter is shown", "cells('letters', 1).length === 1 && cells('letters', 2)[0] === '0'")
        .await;
    assert_eq!(browser.say("cells('letters', 1)[0]"), format!("{}-0", stand.topic.name));
    browser.until("both shards are listed", "cells('shards', 0).join() === '0,1'").await;
    // The page loads what it needs from where it is, and nothing else.
    let loaded = browser
        .say("performance.getEntriesByType('resource').map(r => new URL(r.name).host).every(h => h === location.host)");
    assert_eq!(loaded, true);
}

/// Positions, rates and the age of checkpoints are those of now, and again in the next moment.
async fn numbers_move(browser: &mut Browser) {
    for _ in 0..2 {
        let before = browser.say("total('partitions', 2)").as_f64().unwrap();
        browser.until("positions move", &format!("total('partitions', 2) > {before}")).await;
        let epoch = browser.say("total('shards', 1)").as_f64().unwrap();
        browser.until("checkpoints are taken", &format!("total('shards', 1) > {epoch}")).await;
    }
    browser
        .until(
            "records have a rate",
            "number(document.querySelector('#tile-records .value').innerText.replace('k', '')) > 0",
        )
        .await;
    browser
        .until(
            "each way has a rate",
            "[...document.querySelectorAll('.way b')].every(b => parseFloat(b.innerText) > 0)",
        )
        .await;
    let line = "document.querySelector('#rate-plot path.line')";
    browser.until("the plot has a line", &format!("{line} && {line}.getAttribute('d').split('L').length > 3")).await;
}

/// On a desk and on a phone, in light and in dark.
fn everybody_can_read_it(browser: &mut Browser) {
    let mut grounds = Vec::new();
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        grounds.push(browser.say("ground(document.body)"));
        assert_eq!(browser.say("faint()"), Value::Array(Vec::new()), "too faint in {scheme}");
    }
    assert_ne!(grounds[0], grounds[1]);
    let first = "const [a, b] = [...document.querySelectorAll('.stage')].map(s => s.getBoundingClientRect());";
    assert_eq!(browser.say(&format!("(() => {{ {first} return a.right <= b.left; }})()")), true, "from left to right");
    browser.screen(375, 700, true);
    assert_eq!(browser.say(&format!("(() => {{ {first} return a.bottom <= b.top; }})()")), true, "from top to bottom");
    assert_eq!(browser.say("document.documentElement.scrollWidth"), 375, "nothing sticks out");
    let small = browser.say(
        "[...document.querySelectorAll('nav a, summary')].filter(a => a.getBoundingClientRect().height < 28).length",
    );
    assert_eq!(small, 0, "a finger finds the links");
    browser.screen(1200, 900, false);
    browser.prefer("light");
}

/// Tab goes to every link and to whatever scrolls, and shows where it is.
fn the_keyboard_is_enough(browser: &mut Browser) {
    browser.say("document.activeElement.blur(), window.scrollTo(0, 0), true");
    browser.press("Tab", 9);
    assert_eq!(browser.say("document.activeElement.className"), "skip");
    browser.press("Enter", 13);
    assert_eq!(browser.say("location.hash"), "#flow-section");
    browser.say("history.replaceState(null, '', location.pathname), document.querySelector('.skip').focus(), true");
    let wanted = "document.querySelectorAll('a, summary, [tabindex]').length";
    let wanted = browser.say(wanted).as_u64().unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..wanted + 5 {
        let here = "[...document.querySelectorAll('*')].indexOf(document.activeElement)";
        seen.insert(browser.say(here).as_i64().unwrap());
        let ring =
            browser.say("getComputedStyle(document.activeElement).outlineStyle + document.activeElement.tagName");
        assert!(ring == "noneBODY" || !ring.as_str().unwrap().starts_with("none"), "no ring around {ring}");
        browser.press("Tab", 9);
    }
    let hidden = browser
        .say("[...document.querySelectorAll('a, summary, [tabindex]')].filter(n => !n.checkVisibility()).length");
    assert!(seen.len() as u64 >= wanted - hidden.as_u64().unwrap(), "{} of {wanted} are reached", seen.len());
}

/// In the demo anybody may kill an actor, by the keyboard too: it shows while it waits for its next life, and heals.
#[tokio::test(flavor = "multi_thread")]
async fn an_actor_that_is_killed_on_the_page_shows_and_heals() {
    let address = free_address();
    let mut command = Command::new(env!("CARGO_BIN_EXE_strandline"));
    command.args(["demo", "--duration", "10h", "--rate", "500"]).stdout(Stdio::null());
    // The first restart is at once, the second after this.
    command.env("STRANDLINE_HTTP__LISTEN", &address).env("STRANDLINE_SUPERVISION__INITIAL_PAUSE", "20s");
    let _demo = Service::start(command);
    let page = || std::net::TcpStream::connect(&address).is_ok();
    crate::stand::until("the demo has a page", crate::stand::PATIENCE, async || page()).await;
    let mut browser = Browser::open(&format!("http://{address}/"));
    let running = format!("document.querySelectorAll('.node').length > 6 && {ALL_RUN}");
    browser.until("all run", &running).await;
    browser.say(HELP);
    let committer = "document.querySelectorAll('.stage')[3].querySelector('.node')";
    for (deaths, shown) in [(1, "1 restart"), (2, "2 restarts")] {
        browser.say("document.querySelector('#kill-committer').focus(), true");
        browser.press("Enter", 13);
        if deaths == 2 {
            let waits = format!(
                "{committer}.dataset.life === 'backing_off' && {committer}.className.includes('warn')
                 && {committer}.innerText.includes('told to panic')"
            );
            browser.until("it shows that it waits, and why", &waits).await;
        }
        browser.until("the restart is shown", &format!("{committer}.innerText.includes('{shown}')")).await;
        browser.until("it is healed", ALL_RUN).await;
        let causes =
            format!("cells('restarts', 2).filter(cause => cause.includes('told to panic')).length === {deaths}");
        browser.until("the cause is listed", &causes).await;
    }
    // What is counted goes on, and is right.
    let before = browser.say("total('truth', 2)").as_f64().unwrap();
    browser.until("orders are counted again", &format!("total('truth', 2) > {before}")).await;
    assert_eq!(browser.say("cells('truth', 3).includes('too many')"), false);
    assert_eq!(browser.faults(), Vec::<String>::new());
}
