//! The printed rules, read back and followed.

mod netfilter;
