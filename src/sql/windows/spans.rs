//! Windows that no statement writes, by which state is removed: the life of a group, and the one instant of a time.

use arrow::datatypes::DataType;

use super::{Kind, Window, bound_type, tick};

impl Window {
    /// The life of a group that is forgotten so many nanoseconds after its last row: a session of its rows.
    pub(in crate::sql) fn life(ttl: i64) -> Self {
        Self { kind: Kind::Session { gap: Some(ttl) }, tick: 1, lag: 0 }
    }

    /// The one tick of a time. It is closed when no row of that time can come any more that is not late.
    pub(in crate::sql) fn instant(time: &DataType) -> Self {
        Self { kind: Kind::Sliding { size: 1, slide: 1, offset: 0 }, tick: tick(bound_type(time)), lag: 0 }
    }
}
