//! The service kills itself by SIGKILL at each named point (see `actors/src/points.rs`), with records still arriving, and is
//! started again: each time the table and `kafka_offsets` must be what an independent count says.

use strandline_actors::points::Point;

use crate::shop::{PARTITIONS, Shop, settle, sql};
use crate::stand::Stand;

/// How often a point is reached until the process dies there. Both shards are claimed first, and each claim moves a pointer
/// and delivers the last output again: so 1 is in a claim, and more than 2 in the work.
fn times(point: Point) -> &'static [u32] {
    match point {
        Point::Fetched => &[1, 20],
        Point::Aggregated => &[1, 40],
        Point::Segments => &[1, 4],
        Point::PointerSent => &[1, 5],
        Point::PointerApplied => &[1, 4],
        Point::BeforeOutput => &[1, 5],
        Point::AfterOutput => &[1, 5],
        Point::Claim => &[1, 2],
        Point::BeforeOffsets => &[1, 3],
        Point::AfterOffsets => &[1, 3],
        Point::Compaction => &[1, 3],
        Point::Restore => &[1, 2],
        // Of commands: see `operations`; of several sinks: see `queries::inserts`.
        Point::Rewound | Point::Replayed | Point::PartDelivered => &[],
    }
}

async fn killed_at(stand: &Stand, point: Point, n: u32) {
    let name = point.name();
    let said = stand.start_to_die(&sql(stand), name, n).killed_itself().await;
    assert!(said.contains(&format!("killed at the point {name}")), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_each_named_point_no_row_is_lost_or_counted_twice() {
    let stand = Stand::new(PARTITIONS).await;
    let shop = Shop::open(&stand.topic, 20_000, 2_000);
    // The first life leaves state to restore and output to deliver again.
    let service = stand.start(&sql(&stand));
    service.until_each_shard_committed().await;
    service.kill();
    for point in Point::ALL {
        for n in times(point) {
            let begun = std::time::Instant::now();
            killed_at(&stand, point, *n).await;
            let dead = begun.elapsed();
            let service = stand.start(&sql(&stand));
            service.until_each_shard_committed().await;
            let (truth, ends) = shop.pause().await;
            settle(&stand, &truth, &ends).await;
            service.kill();
            shop.go_on();
            eprintln!("{}:{n} killed after {dead:?}, exact after {:?}", point.name(), begun.elapsed());
        }
    }
    let _ = shop.close();
}

/// Nothing has time to heal between two deaths.
#[tokio::test(flavor = "multi_thread")]
async fn killed_at_one_point_after_another_no_row_is_lost_or_counted_twice() {
    let stand = Stand::new(PARTITIONS).await;
    let shop = Shop::open(&stand.topic, 20_000, 2_000);
    for point in Point::ALL {
        let n = if matches!(point, Point::Claim | Point::Restore) { 1 } else { times(point)[1] };
        killed_at(&stand, point, n).await;
        // The claim that follows a death dies, too, before and after it moves a pointer, and before and after the output.
        for (next, n) in [(Point::PointerSent, 1), (Point::Claim, 2), (Point::AfterOutput, 1)] {
            killed_at(&stand, next, n).await;
        }
    }
    let service = stand.start(&sql(&stand));
    let (truth, ends) = shop.close();
    settle(&stand, &truth, &ends).await;
    service.stop().await;
    settle(&stand, &truth, &ends).await;
}
