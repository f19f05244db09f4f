//! Who forces the open checkpoint: one leads and has it written, the others join. How many are worth waiting for is learnt.

use std::time::Duration;

#[derive(Debug, Default)]
pub(crate) struct Crowd {
    /// Callers that wait for durability now.
    forcing: u64,
    /// The checkpoint that somebody is about to write; 0 for none.
    led: u64,
    /// Callers that force the open checkpoint.
    present: u64,
    /// How many the next leader waits for.
    wanted: u64,
    /// How long a checkpoint takes to become durable, lately.
    cost: Duration,
}

impl Crowd {
    pub(crate) fn enter(&mut self) {
        self.forcing += 1;
    }

    pub(crate) fn leave(&mut self) {
        self.forcing -= 1;
    }

    /// True if this caller is to write checkpoint `seq`; else somebody else does. `joins` at its first call.
    pub(crate) fn lead(&mut self, seq: u64, joins: bool) -> bool {
        if self.led == seq {
            self.present += u64::from(joins);
            return false;
        }
        self.led = seq;
        self.present = 1;
        // One more than came before, as long as there is one.
        if self.forcing > self.wanted {
            self.wanted += 1;
        }
        true
    }

    /// True while fewer are there than were lately.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.present < self.wanted
    }

    /// The leader waits no longer: if some did not come, it does not wait for so many again.
    pub(crate) fn gathered(&mut self) {
        if self.is_incomplete() {
            self.wanted = self.present;
        }
    }

    pub(crate) fn cost(&self) -> Duration {
        self.cost
    }

    /// The leader of `seq` is done with it, which took so long.
    pub(crate) fn led(&mut self, seq: u64, took: Duration) {
        if self.led == seq {
            self.led = 0;
        }
        self.cost = (self.cost * 7 + took) / 8;
    }
}
