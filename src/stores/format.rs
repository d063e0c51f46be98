//! The version of the format in which pointers, and the segments that they list, are stored.
//!
//! What a later version of this program has written may mean something that this one does not know, so it is refused before
//! anything of it is used: an earlier version that is started again by mistake changes nothing.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use strandline_actors::pointer::ShardId;

/// The version that is written, and the highest that is read.
const VERSION: u32 = 1;

/// Something with its version beside its own fields.
#[derive(Serialize)]
struct Stamped<'a, T> {
    version: u32,
    #[serde(flatten)]
    body: &'a T,
}

/// The version alone. What has none is of the first.
#[derive(Deserialize)]
struct Stamp {
    #[serde(default = "first")]
    version: u32,
}

fn first() -> u32 {
    1
}

/// Why a pointer cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// A later version wrote it.
    Newer(String),
    /// It cannot be right.
    Wrong(String),
}

/// JSON with the version in it.
pub(super) fn write(body: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string(&Stamped { version: VERSION, body })
}

/// Reads what [`write`] has written, now or in an earlier version.
pub(super) fn read<T: DeserializeOwned>(shard: ShardId, json: &[u8]) -> Result<T, Unreadable> {
    let wrong = |error: serde_json::Error| Unreadable::Wrong(error.to_string());
    let Stamp { version } = serde_json::from_slice(json).map_err(wrong)?;
    if version > VERSION {
        return Err(Unreadable::Newer(format!(
            "the pointer of shard {shard} has format {version}, and this version of Strandline ({}) reads formats up to \
             {VERSION}: a newer version has written the state of this pipeline. Nothing was changed. Start that version, or \
             let this one compute everything anew under another STRANDLINE_PIPELINE__NAME",
            env!("CARGO_PKG_VERSION")
        )));
    }
    serde_json::from_slice(json).map_err(wrong)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Body {
        number: i64,
    }

    #[test]
    fn what_a_later_version_wrote_is_refused_whatever_it_is() {
        let text = write(&Body { number: 7 }).unwrap();
        assert_eq!(text, r#"{"version":1,"number":7}"#);
        assert_eq!(read::<Body>(0, text.as_bytes()), Ok(Body { number: 7 }));
        // From before there were versions.
        assert_eq!(read::<Body>(0, br#"{"number":7}"#), Ok(Body { number: 7 }));
        for later in [r#"{"version":2,"number":7}"#, r#"{"version":3,"numbers":[7]}"#] {
            match read::<Body>(4, later.as_bytes()) {
                Err(Unreadable::Newer(why)) => assert!(why.starts_with("the pointer of shard 4 has format "), "{why}"),
                other => panic!("{other:?}"),
            }
        }
        for wrong in ["", "{", r#"{"version":1}"#, r#"{"version":"1","number":7}"#, r#"{"version":-1,"number":7}"#] {
            assert!(matches!(read::<Body>(0, wrong.as_bytes()), Err(Unreadable::Wrong(_))), "{wrong}");
        }
    }
}
