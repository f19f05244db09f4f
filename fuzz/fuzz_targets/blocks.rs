//! Every parser of what lies on disk.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uxfs_sim::fuzz::blocks(data));
