//! Cassandra's clock runs ahead and behind, and jumps back between two lives of it and of the service. Conditional writes
//! carry its time and plain ones ours or none at all: neither loses against the other, nor against its own kind.

use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::own_server::OwnServer;
use crate::shop::{PARTITIONS, Shop, committed, settle, sql};
use crate::stand::{PATIENCE, Stand, until};

/// Puts a clock into a folder that is as far ahead of the machine's as a file there says. Answers the options of Java that
/// make Cassandra take it.
fn shifted_clock(folder: &Path) -> String {
    let services = std::env::var("TEST_SERVICES").expect("TEST_SERVICES is not set: start the tests with tests/run");
    let build = r#"
        here=$(dirname "$(realpath "$1")") && cd "$2"
        for part in say cache; do source "$here/lib/$part.sh"; done
        java=$(realpath "$(java17)")
        "${java%java}javac" -cp "$(jars cassandra)/*" ShiftedClock.java
        printf 'Premain-Class: ShiftedClock\n' >manifest
        "${java%java}jar" --create --file clock.jar --manifest manifest ShiftedClock.class
    "#;
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("ShiftedClock.java"), include_str!("clock/ShiftedClock.java")).unwrap();
    let built = Command::new("bash").args(["-ec", build, "bash", &services]).arg(folder).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let (agent, shift) = (folder.join("clock.jar"), folder.join("shift"));
    format!("-javaagent:{} -Dcassandra.clock=ShiftedClock -Dclock.shift={}", agent.display(), shift.display())
}

fn shift(folder: &Path, seconds: i64) {
    std::fs::write(folder.join("shift"), (seconds * 1000).to_be_bytes()).unwrap();
}

/// How many seconds Cassandra's clock is ahead of ours, once it answers.
async fn ahead(stand: &Stand) -> Option<i64> {
    let now = "SELECT toUnixTimestamp(now()) FROM system.local";
    let rows = stand.session.query_unpaged(now, ()).await.ok()?.into_rows_result().unwrap();
    let theirs = rows.single_row::<(i64,)>().unwrap().0;
    let ours = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
    Some((theirs - ours + 60_500) / 1000 - 60)
}

struct Folder(std::path::PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_of_cassandra_that_is_wrong_or_jumps_back_loses_nothing() {
    let folder = Folder(std::env::temp_dir().join(format!("strandline-clock-{}", uuid::Uuid::new_v4())));
    let java = shifted_clock(&folder.0);
    shift(&folder.0, 5);
    let cassandra = OwnServer::start_with("cassandra", &java, &[]).await;
    let stand = Stand::on(&cassandra.address(), PARTITIONS).await;
    let shop = Shop::open(&stand.topic, 20_000, 2_000);
    let mut service = stand.start(&sql(&stand));
    for seconds in [5, -5] {
        if seconds != 5 {
            // The service sees the clock jump while it works.
            cassandra.does("kill").await;
            shift(&folder.0, seconds);
            cassandra.does("start").await;
        }
        let right = async || ahead(&stand).await.is_some_and(|ahead| (ahead - seconds).abs() <= 1);
        until("Cassandra's clock is as wrong as it should be", PATIENCE, right).await;
        let before = committed(&stand).await;
        until("it commits", PATIENCE, async || committed(&stand).await > before).await;
        // And a life begins under the same clock.
        service.kill();
        service = stand.start(&sql(&stand));
        service.until_each_shard_has_committed(5).await;
        let (truth, ends) = shop.pause().await;
        settle(&stand, &truth, &ends).await;
        shop.go_on();
    }
    let (truth, ends) = shop.close();
    settle(&stand, &truth, &ends).await;
    service.stop().await;
    settle(&stand, &truth, &ends).await;
}
