//! Operations on volumes whose metadata was changed.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uxfs_sim::fuzz::operations(data));
