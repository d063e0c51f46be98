//! The actors of Strandline, the messages between them, and the ports they need.

pub mod pointer;
pub mod ports;
pub mod position;
