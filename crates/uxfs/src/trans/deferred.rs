//! Operations that a transaction leaves for a link of its own, and the intents that make them survive a crash between.

use super::Trans;
use crate::error::Result;
use crate::volume::Volume;
use std::sync::{Arc, Weak};
use uxfs_format::Lsn;
use uxfs_format::log::{Intent, IntentExtent, item};
use uxfs_journal::{ItemState, LogItem, Push, Regions};

/// How a deferred operation is finished. It may defer more.
pub type Finish = fn(&mut Trans, &IntentExtent) -> Result<()>;

/// An operation on one extent.
pub struct Deferred {
    /// Type of its intent.
    kind: u16,
    extent: IntentExtent,
    finish: Finish,
    intent: Option<Arc<IntentItem>>,
}

impl Deferred {
    /// An operation on `extent` whose intent is of type `kind`.
    pub fn new(kind: u16, extent: IntentExtent, finish: Finish) -> Deferred {
        Deferred { kind, extent, finish, intent: None }
    }

    pub(super) fn log_intent(&mut self, tp: &mut Trans) {
        if self.intent.is_some() {
            return;
        }
        let i = IntentItem::new(&tp.vol, Intent { kind: self.kind, id: 0, extents: vec![self.extent] });
        tp.log_regions(i.clone(), [i.intent.build()].into());
        self.intent = Some(i);
    }

    /// Logs that there is nothing left to be done.
    pub(super) fn log_done(&self, tp: &mut Trans) {
        if let Some(i) = &self.intent {
            tp.log_done(i);
        }
    }

    /// Does the operation and logs that it is done.
    pub(super) fn finish(self, tp: &mut Trans) -> Result<()> {
        self.log_done(tp);
        (self.finish)(tp, &self.extent)
    }
}

/// An intent in the log. It leaves the AIL when its completion is durable.
pub struct IntentItem {
    state: ItemState,
    /// What it says.
    pub intent: Intent,
    vol: Weak<Volume>,
    me: Weak<IntentItem>,
}

impl IntentItem {
    /// A new intent; its identity is unique within this mount.
    pub fn new(vol: &Arc<Volume>, mut intent: Intent) -> Arc<IntentItem> {
        Arc::new_cyclic(|me| {
            let state = ItemState::default();
            if intent.id == 0 {
                intent.id = state.id;
            }
            IntentItem { state, intent, vol: Arc::downgrade(vol), me: me.clone() }
        })
    }

    /// The item that says that this one is done.
    pub(super) fn done(&self) -> (Arc<dyn LogItem>, Regions) {
        let kind = item::completion(self.intent.kind).unwrap_or_default();
        let i = Intent { kind, id: self.intent.id, extents: self.intent.extents.clone() };
        let d = DoneItem { state: ItemState::default(), intent: self.me.clone(), vol: self.vol.clone() };
        (Arc::new(d), [i.build()].into())
    }
}

impl LogItem for IntentItem {
    fn state(&self) -> &ItemState {
        &self.state
    }
    fn committed(&self, lsn: Lsn, _: &Regions) -> Option<Lsn> {
        Some(lsn)
    }
    fn push(&self) -> Push {
        Push::Nothing
    }
}

struct DoneItem {
    state: ItemState,
    intent: Weak<IntentItem>,
    vol: Weak<Volume>,
}

impl LogItem for DoneItem {
    fn state(&self) -> &ItemState {
        &self.state
    }
    fn committed(&self, _: Lsn, _: &Regions) -> Option<Lsn> {
        if let (Some(i), Some(v)) = (self.intent.upgrade(), self.vol.upgrade()) {
            v.journal.ail.remove(i.as_ref());
        }
        None
    }
    fn push(&self) -> Push {
        Push::Nothing
    }
}
