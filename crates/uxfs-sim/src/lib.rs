//! Comes with the engine.
