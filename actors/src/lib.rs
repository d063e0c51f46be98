//! The actors of Strandline, the messages between them, and the ports they need.

pub mod board;
pub mod clock;
pub mod compaction;
pub mod credit;
pub mod lane;
pub mod pointer;
pub mod ports;
pub mod position;
pub mod recovery;
pub mod restart;
pub mod segment;
