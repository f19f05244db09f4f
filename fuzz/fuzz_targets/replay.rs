//! Recovery of logs whose records were changed.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uxfs_sim::fuzz::replay(data));
