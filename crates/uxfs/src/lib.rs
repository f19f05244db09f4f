//! The engine: its rooms come with the next change.
