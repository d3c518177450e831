//! Files beside a socket that no other user can plant, replace, read or write.
//!
//! Other users of the machine may create files with predictable names in directories that they can write: a symbolic
//! link, which lets the next write change a file of this user; a FIFO, at which an open waits for ever; or a plain file.
//! So the directory itself is refused, unless only this user and root can change it and each directory above it. The
//! files are opened without following links or waiting, are created exclusively with mode 0600, and must be regular files
//! of this user.

use crate::Error;
use crate::allowed::own_uid;
use crate::connection::retry;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

/// The most links on the way to a directory, as in the kernel.
const LINKS: usize = 40;

/// How often a file that appears again at the name of a new one is removed.
const ATTEMPTS: usize = 8;

/// Reads a file of this user, if there is one.
///
/// # Errors
/// Returns [`Error::OpenDirectory`] if other users can change the directory, [`Error::NotAFile`] if the path is not a
/// regular file of this user that others cannot write, [`Error::LongFile`] if it has more than `most` bytes, and
/// [`Error::System`].
pub fn read(path: impl AsRef<Path>, most: u64) -> Result<Option<Vec<u8>>, Error> {
    let path = path.as_ref();
    check_directory_of(path)?;
    let Some(file) = open(path, OFlags::RDONLY)? else {
        return Ok(None);
    };
    let mut bytes = Vec::new();
    let call = || format!("reading {}", path.display());
    let mut rest = File::from(file).take(most.saturating_add(1));
    rest.read_to_end(&mut bytes)
        .map_err(|error| Error::System {
            call: call(),
            error,
        })?;
    match bytes.len() as u64 > most {
        true => Err(Error::LongFile {
            path: path.into(),
            most,
        }),
        false => Ok(Some(bytes)),
    }
}

/// Replaces a file as a whole, by way of a new file with the ending `.new`: a process that ends in between leaves the
/// earlier contents. Something that has the name of the new file, of a process that ended or planted, is removed.
///
/// Does not look at the directory, as [`read`] and [`Listener::bind`](crate::Listener::bind) do: call one of them first.
///
/// # Errors
/// Returns [`Error::System`].
pub fn replace(path: impl AsRef<Path>, contents: &[u8]) -> Result<(), Error> {
    let path = path.as_ref();
    let new = beside(path, ".new");
    let call = || format!("writing {}", new.display());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut attempts = 0..ATTEMPTS;
    let file = loop {
        match retry(|| rustix::fs::open(&new, flags, Mode::RUSR | Mode::WUSR)) {
            // Removes the link, not the file that it leads to.
            Err(Errno::EXIST) if attempts.next().is_some() => match rustix::fs::unlink(&new) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => {
                    return Err(Error::system(format!("removing {}", new.display()))(error));
                }
            },
            opened => break opened.map_err(Error::system(call()))?,
        }
    };
    File::from(file)
        .write_all(contents)
        .map_err(|error| Error::System {
            call: call(),
            error,
        })?;
    rustix::fs::rename(&new, path).map_err(Error::system(format!("replacing {}", path.display())))
}

/// Opens a regular file of this user; `None` if there is none. Creates it with `CREATE`.
pub(crate) fn open(path: &Path, access: OFlags) -> Result<Option<OwnedFd>, Error> {
    // Without NONBLOCK, opening a FIFO waits for its other end.
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match retry(|| rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        // A link; a directory that is opened for writing; a socket, or a FIFO without a reader.
        Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => return Err(Error::NotAFile(path.into())),
        Err(error) => return Err(Error::system(format!("opening {}", path.display()))(error)),
    };
    let state = rustix::fs::fstat(&file)
        .map_err(Error::system(format!("looking at {}", path.display())))?;
    let is_file = FileType::from_raw_mode(state.st_mode) == FileType::RegularFile;
    match is_file && state.st_uid == own_uid() && !others_write(&state) {
        true => Ok(Some(file)),
        false => Err(Error::NotAFile(path.into())),
    }
}

/// Returns the path with an ending behind its name.
pub(crate) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

pub(crate) fn file_at(path: &Path) -> Result<Option<Stat>, Error> {
    match rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(file) => Ok(Some(file)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(Error::system(format!("looking at {}", path.display()))(
            error,
        )),
    }
}

fn others_write(state: &Stat) -> bool {
    Mode::from_raw_mode(state.st_mode).intersects(Mode::WGRP | Mode::WOTH)
}

/// Checks that only this user and root can create, rename and remove files in the directory of a path, and that they
/// alone can put another directory in its place.
///
/// A directory above it may be sticky, as `/tmp` is: there only the owner of the next component can rename it, and the
/// component belongs to this user or root. The directory itself may not: others could create files in it.
pub(crate) fn check_directory_of(path: &Path) -> Result<(), Error> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let call = || format!("looking at {}", directory.display());
    let absolute = std::path::absolute(directory).map_err(|error| Error::System {
        call: call(),
        error,
    })?;
    // The components that are left to walk, the next one last. Links are walked as well: who can replace one chooses the
    // directory.
    let mut left = components(&absolute);
    let mut walked = PathBuf::from("/");
    let mut links = 0;
    check_owned(&walked, left.is_empty())?;
    while let Some(next) = left.pop() {
        if next == ".." {
            walked.pop();
            check_owned(&walked, left.is_empty())?;
            continue;
        }
        let at = walked.join(&next);
        let state = file_at(&at)?.ok_or(Errno::NOENT);
        let state = state.map_err(Error::system(call()))?;
        if FileType::from_raw_mode(state.st_mode) == FileType::Symlink {
            links += 1;
            if links > LINKS {
                return Err(Error::system(call())(Errno::LOOP));
            }
            check_owner(&at, &state)?;
            let target = rustix::fs::readlink(&at, Vec::new()).map_err(Error::system(call()))?;
            let target = PathBuf::from(<OsString as std::os::unix::ffi::OsStringExt>::from_vec(
                target.into_bytes(),
            ));
            if target.is_absolute() {
                walked = PathBuf::from("/");
            }
            left.extend(components(&target));
        } else {
            walked = at;
        }
        check_owned(&walked, left.is_empty())?;
    }
    Ok(())
}

/// Returns the components of a path, the first one last.
fn components(path: &Path) -> Vec<OsString> {
    let components = path.components().rev();
    let named = components.filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    named.collect()
}

fn check_owner(path: &Path, state: &Stat) -> Result<(), Error> {
    match state.st_uid == own_uid() || state.st_uid == 0 {
        true => Ok(()),
        false => Err(Error::OpenDirectory(path.into())),
    }
}

/// Checks a directory on the way, or the last one.
fn check_owned(path: &Path, is_last: bool) -> Result<(), Error> {
    let state =
        rustix::fs::stat(path).map_err(Error::system(format!("looking at {}", path.display())))?;
    check_owner(path, &state)?;
    let is_sticky = Mode::from_raw_mode(state.st_mode).contains(Mode::SVTX);
    match !others_write(&state) || is_sticky && !is_last {
        true => Ok(()),
        false => Err(Error::OpenDirectory(path.into())),
    }
}
