//! Open files by their handles.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use uxfs::OpenFile;

/// The files that are open. Handle 0 is nobody's: it stands for files that the kernel opens without asking.
#[derive(Default)]
pub struct Handles {
    files: RwLock<HashMap<u64, Arc<OpenFile>>>,
    last: AtomicU64,
}

impl Handles {
    /// Keeps a file; its handle.
    pub fn add(&self, file: OpenFile) -> u64 {
        let handle = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.files.write().unwrap_or_else(PoisonError::into_inner).insert(handle, Arc::new(file));
        handle
    }

    /// The file of a handle.
    pub fn get(&self, handle: u64) -> Option<Arc<OpenFile>> {
        if handle == 0 {
            return None;
        }
        self.files.read().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned()
    }

    /// Closes a file, when nobody uses it any more.
    pub fn remove(&self, handle: u64) {
        let file = self.files.write().unwrap_or_else(PoisonError::into_inner).remove(&handle);
        // Without the lock: it may have been the last to refer to the inode.
        drop(file);
    }
}
