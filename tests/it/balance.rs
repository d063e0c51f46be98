//! The balance that every scenario leaves: each offset that was passed is in exactly one counter, by what is stored.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use strandline::settings::load;
use strandline::stores::existing::Existing;
use strandline_actors::balance::Balance;
use strandline_actors::ports::StoreError;
use strandline_actors::position::{Offset, PartitionKey};

/// How long a store may take to answer on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// What is stored of the pipeline that an environment names.
pub(crate) async fn stored(environment: impl IntoIterator<Item = (String, String)>) -> Existing {
    let given = environment.into_iter().map(|(name, value)| (name.into(), value.into()));
    let settings = load(&[], given).unwrap().settings;
    Existing::open(&settings).await.unwrap_or_else(|error| panic!("{error}"))
}

async fn patiently<T>(request: impl AsyncFn() -> Result<T, StoreError>) -> T {
    let begun = Instant::now();
    loop {
        match request().await {
            Err(StoreError::Unavailable(_)) if begun.elapsed() < PATIENCE => {}
            answer => return answer.unwrap(),
        }
    }
}

/// What became of the offsets of each partition, by the pointers of all shards.
pub(crate) async fn of(existing: &Existing) -> BTreeMap<PartitionKey, Balance> {
    let store = existing.store();
    let mut pointers = Vec::new();
    for shard in 0..existing.row.shards {
        pointers.push(patiently(async || store.read_pointer(shard).await).await);
    }
    let starts = patiently(async || existing.starts().await).await;
    let of = |(key, (_, start)): (&PartitionKey, &(String, Offset))| {
        let positions = pointers.iter().map(|pointer| pointer.as_ref()?.content.vector.get(key));
        (*key, Balance::new(*start, positions).unwrap())
    };
    starts.iter().map(of).collect()
}

/// Whether nothing was counted that was not passed, or passed and not counted.
pub(crate) async fn holds(existing: &Existing) {
    let balances = of(existing).await;
    assert!(!balances.is_empty(), "nothing was read");
    for (key, balance) in balances {
        assert_eq!(balance.off, 0, "partition {} is out of balance: {balance:?}", key.partition);
    }
}
