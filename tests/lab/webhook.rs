//! A webhook under test, the API server's side of it, and what hostile clients send.

pub mod ask;
pub mod attacks;
pub mod certificates;
pub mod client;
pub mod server;
