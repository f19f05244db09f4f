//! Extended attributes, and the access control lists that lie in them.

use super::{Fs, owners};
use crate::attr::{self, AttrName, SetMode};
use crate::error::{Error, Result};
use crate::file::IoMode;
use crate::inode::Inode;
use std::sync::Arc;
use uxfs_format::acl::{self, Acl};
use uxfs_format::attr::flag;
use uxfs_format::inode::mode;

/// Where a file's capabilities are.
const CAPABILITY: AttrName<'static> = AttrName { namespace: flag::SECURE, name: b"capability" };
/// The attribute in which a file says how it wishes to be read and written.
const IO_MODE: AttrName<'static> = AttrName { namespace: 0, name: b"uxfs.iomode" };

fn parse_io_mode(value: &[u8]) -> Option<IoMode> {
    std::str::from_utf8(value).ok()?.trim_end().parse().ok()
}

/// Access control lists of a new inode.
#[derive(Default)]
pub(super) struct Lists {
    pub access: Option<Acl>,
    pub default: Option<Acl>,
}

/// The attribute that holds an access control list.
pub fn acl_name(default: bool) -> AttrName<'static> {
    AttrName { namespace: flag::ROOT, name: if default { acl::DEFAULT } else { acl::ACCESS } }
}

pub(super) fn read_acl(inode: &Arc<Inode>, default: bool) -> Result<Option<Acl>> {
    let found = {
        let _l = inode.lock_shared();
        attr::get(inode, acl_name(default))
    };
    match found {
        Ok(b) => Acl::decode(&b).map(Some).map_err(|what| Error::Invalid { what }),
        Err(Error::NoAttribute) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Users' attributes lie in one of three namespaces.
fn check_name(name: AttrName<'_>) -> Result<()> {
    match name.namespace {
        _ if name.name.is_empty() => Err(Error::Invalid { what: "an attribute needs a name" }),
        0 | flag::ROOT | flag::SECURE => Ok(()),
        _ => Err(Error::Invalid { what: "no such namespace of attributes" }),
    }
}

impl Fs {
    /// The value of an attribute.
    ///
    /// # Errors
    /// [`Error::NoAttribute`].
    pub fn get_attr(&self, ino: u64, name: AttrName<'_>) -> Result<Vec<u8>> {
        let _open = self.enter()?;
        check_name(name)?;
        let i = self.inode(ino)?;
        let _l = i.lock_shared();
        attr::get(&i, name)
    }

    /// All attributes: namespace, name, bytes of the value. Parent pointers are none of the users'.
    ///
    /// # Errors
    /// The attributes are corrupt.
    pub fn list_attrs(&self, ino: u64) -> Result<Vec<(u8, Vec<u8>, usize)>> {
        let _open = self.enter()?;
        let i = self.inode(ino)?;
        let _l = i.lock_shared();
        let mut all = attr::list(&i)?;
        all.retain(|a| a.0 & flag::PARENT == 0);
        Ok(all)
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Exists`], [`Error::NoAttribute`] as `mode` says; [`Error::Invalid`] for a value of `user.uxfs.iomode`
    /// that names none.
    pub fn set_attr(&self, ino: u64, name: AttrName<'_>, value: &[u8], mode: SetMode) -> Result<()> {
        let _open = self.enter()?;
        if name == IO_MODE && parse_io_mode(value).is_none() {
            return Err(Error::Invalid { what: "user.uxfs.iomode is buffered, dontcache or direct" });
        }
        check_name(name)?;
        let i = self.inode(ino)?;
        self.mount.vol().check_writable()?;
        i.check_removable()?;
        self.with_retry(|| attr::set(&i, name, value, mode))
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// [`Error::NoAttribute`].
    pub fn remove_attr(&self, ino: u64, name: AttrName<'_>) -> Result<()> {
        let _open = self.enter()?;
        check_name(name)?;
        let i = self.inode(ino)?;
        self.mount.vol().check_writable()?;
        i.check_removable()?;
        attr::remove(&i, name)
    }

    /// Takes a file's capabilities away, if it has any, as Linux does before it is written.
    ///
    /// # Errors
    /// As [`Fs::remove_attr`].
    pub fn remove_capabilities(&self, ino: u64) -> Result<()> {
        // Another writer may be faster.
        match self.get_attr(ino, CAPABILITY).and_then(|_| self.remove_attr(ino, CAPABILITY)) {
            Err(Error::NoAttribute) => Ok(()),
            r => r,
        }
    }

    /// How a file wishes to be read and written where nobody says otherwise: what its attribute `user.uxfs.iomode` names.
    ///
    /// # Errors
    /// The attributes are corrupt.
    pub fn io_mode(&self, ino: u64) -> Result<Option<IoMode>> {
        match self.get_attr(ino, IO_MODE) {
            Ok(v) => Ok(parse_io_mode(&v)),
            Err(Error::NoAttribute) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The access control list of an inode, or the one that new entries of a directory inherit.
    ///
    /// # Errors
    /// [`Error::NoAttribute`] if it has none; [`Error::Invalid`] if what it has is none.
    pub fn get_acl(&self, ino: u64, default: bool) -> Result<Acl> {
        let _open = self.enter()?;
        read_acl(&*self.inode(ino)?, default)?.ok_or(Error::NoAttribute)
    }

    /// Sets or removes an access control list; the permission bits follow.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for what has none; as [`Fs::set_attr`].
    pub fn set_acl(&self, ino: u64, default: bool, acl: Option<&Acl>) -> Result<()> {
        owners(acl.into_iter().flat_map(Acl::named))?;
        let _open = self.enter()?;
        let i = self.inode(ino)?;
        self.mount.vol().check_writable()?;
        i.check_removable()?;
        let _permissions = self.permissions(&i);
        let core = i.core();
        if core.kind() == mode::LNK || (default && core.kind() != mode::DIR) {
            return Err(Error::NotPermitted);
        }
        let mut keep = acl;
        if let Some(a) = acl.filter(|_| !default) {
            let (bits, all) = a.mode();
            self.change(&i, |c| c.mode = c.mode & !0o777 | bits)?;
            keep = acl.filter(|_| !all);
        }
        match keep {
            Some(a) => self.with_retry(|| attr::set(&i, acl_name(default), &a.encode(), SetMode::Any)),
            None => match attr::remove(&i, acl_name(default)) {
                Err(Error::NoAttribute) => Ok(()),
                r => r,
            },
        }
    }

    pub(super) fn give_lists(&self, inode: &Arc<Inode>, lists: Lists) -> Result<()> {
        for (acl, default) in [(lists.access, false), (lists.default, true)] {
            if let Some(a) = acl {
                let _permissions = self.permissions(inode);
                self.with_retry(|| attr::set(inode, acl_name(default), &a.encode(), SetMode::Any))?;
            }
        }
        Ok(())
    }
}
