//! Two processes of one pipeline: a standby disturbs nobody, takes over from one that stands still, and whoever was taken
//! over ends by itself. Records keep arriving all the time, and none is lost or counted twice.

use std::time::{Duration, Instant};

use crate::shop::{Shop, settle, sql, until_more_is_committed};
use crate::stand::{PATIENCE, Service, Stand, until};

/// Starts the service as an instance of this name.
fn start(stand: &Stand, instance: &str, takeover_after: &str) -> Service {
    stand.start_with(&sql(stand), &[("INSTANCE__ID", instance), ("STORE__TAKEOVER_AFTER", takeover_after)])
}

fn is_standby(service: &Service) -> bool {
    let waits =
        service.get("/readyz").is_some_and(|(code, why)| code == 503 && why.contains("this process is a standby"));
    let lives = service.get("/healthz").is_some_and(|(code, _)| code == 200);
    waits && lives && service.status()["board"]["supervisor"]["life"] == "standby"
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_process_is_taken_over_and_steps_down_when_it_wakes_up() {
    let stand = Stand::new(crate::shop::PARTITIONS).await;
    let shop = Shop::open(&stand.topic, 20_000, 2_000);
    let mut first = start(&stand, "first", "2s");
    until_more_is_committed(&stand, "the first process commits").await;
    first.signal("STOP");

    let begun = Instant::now();
    let second = start(&stand, "second", "2s");
    second.until_said("standby: instance first owns the pipeline").await;
    second.until_said("taking over from instance first").await;
    assert!(begun.elapsed() >= Duration::from_secs(2), "it waited for {:?} only", begun.elapsed());
    second.until_ready().await;
    until_more_is_committed(&stand, "the second process commits").await;

    let woken = Instant::now();
    first.signal("CONT");
    let (code, said) = first.end().await;
    eprintln!("it ended {:?} after it was woken up", woken.elapsed());
    assert_eq!(code, Some(75), "{said}");
    // Another thread may log behind it what it was about to do when it was frozen.
    let why = said.lines().rfind(|line| line.starts_with("strandline: ")).unwrap_or_default();
    assert!(why.starts_with("strandline: stepped down: shard "), "{said}");
    assert!(why.contains("another process took the pipeline over"), "{why}");

    until_more_is_committed(&stand, "the second process goes on").await;
    assert_eq!(second.status()["board"]["generation"], 2);
    let (truth, ends) = shop.close();
    settle(&stand, &truth, &ends).await;
    second.stop().await;
    settle(&stand, &truth, &ends).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_disturbs_nobody_and_goes_on_when_the_owner_is_gone() {
    // Longer than usual: on a machine that has much to do, a live owner may not be heard for a moment.
    let after = Duration::from_secs(5);
    let stand = Stand::new(crate::shop::PARTITIONS).await;
    let shop = Shop::open(&stand.topic, 20_000, 2_000);
    let first = start(&stand, "first", "5s");
    first.until_ready().await;
    until_more_is_committed(&stand, "the first process commits").await;

    let second = start(&stand, "second", "5s");
    until("the second process is a standby", PATIENCE, async || is_standby(&second)).await;
    let begun = Instant::now();
    while begun.elapsed() < after * 2 {
        until_more_is_committed(&stand, "the first process commits beside a standby").await;
        assert!(is_standby(&second), "{}", second.said());
    }
    assert_eq!(first.status()["board"]["generation"], 1);
    assert_eq!(first.status()["board"]["committer"]["actor"]["restarts"], 0);

    // One that is told to stop while it waits ends well, and at once.
    let third = start(&stand, "third", "1h");
    until("the third process is a standby", PATIENCE, async || is_standby(&third)).await;
    let told = Instant::now();
    third.stop().await;
    assert!(told.elapsed() < Duration::from_secs(5), "it ended after {:?}", told.elapsed());

    first.kill();
    second.until_ready().await;
    assert!(second.said().contains("taking over from instance first (generation 1)"), "{}", second.said());
    until_more_is_committed(&stand, "the second process commits").await;

    // Whoever stops in good order lets go, and nobody waits.
    second.stop().await;
    let fourth = start(&stand, "fourth", "1h");
    fourth.until_ready().await;
    let (truth, ends) = shop.close();
    settle(&stand, &truth, &ends).await;
    fourth.stop().await;
    settle(&stand, &truth, &ends).await;
}

/// Several see at the same time that nobody owns the pipeline: one takes it, and none of the others has to end.
#[tokio::test(flavor = "multi_thread")]
async fn of_several_standbys_one_takes_over_and_the_others_go_on_waiting() {
    let stand = Stand::new(crate::shop::PARTITIONS).await;
    let shop = Shop::open(&stand.topic, 20_000, 2_000);
    // At once, over a pipeline that nobody has owned yet. Longer than usual, since three start at the same time: whoever has
    // won must be heard by then.
    let mut services: Vec<Service> = ["a", "b", "c"].map(|name| start(&stand, name, "8s")).into();
    for owners in 0..3 {
        let ready = |service: &Service| service.get("/readyz").is_some_and(|(code, _)| code == 200);
        let one_works = async || services.iter().filter(|service| ready(service)).count() == 1;
        until("one works", PATIENCE, one_works).await;
        let waits = |service: &Service| ready(service) || is_standby(service);
        until("the others wait", PATIENCE, async || services.iter().all(waits)).await;
        until_more_is_committed(&stand, "the owner commits").await;
        assert_eq!(services.iter().filter(|service| ready(service)).count(), 1);
        if owners < 2 {
            let owner = services.iter().position(ready).unwrap();
            // Whoever stepped down would have ended by itself, and could not be killed.
            services.remove(owner).kill();
            services.push(start(&stand, &format!("d{owners}"), "8s"));
        }
    }
    let (truth, ends) = shop.close();
    settle(&stand, &truth, &ends).await;
    for service in services {
        service.stop().await;
    }
    settle(&stand, &truth, &ends).await;
}
