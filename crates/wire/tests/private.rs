//! Directories that other users can change, and files that they may have planted, are refused.
#![cfg(target_os = "linux")]

use rustix::fs::{CWD, FileType, Mode};
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use weirpool_wire::{Allowed, Error, Listener, private};

/// Puts something at a path; a link leads to the first one.
type Plant = fn(&Path, &Path);

/// A folder of a test's own, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("wire-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        create(&path, 0o700);
        Self(path)
    }

    fn folder(&self, name: &str, mode: u32) -> PathBuf {
        let path = self.0.join(name);
        create(&path, mode);
        path
    }

    fn file(&self) -> PathBuf {
        self.0.join("record")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn create(path: &Path, mode: u32) {
    fs::DirBuilder::new().create(path).unwrap();
    // The mask of the process does not apply.
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn fifo(path: &Path) {
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(CWD, path, FileType::Fifo, mode, 0).unwrap();
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Asserts that neither a socket nor a file is used in a folder, because others can change `open`.
fn assert_refused(folder: &Path, open: &Path) {
    let bound = Listener::bind(folder.join("socket"), Allowed::own());
    let refused = |error: &Error| matches!(error, Error::OpenDirectory(path) if path == open);
    assert!(bound.as_ref().is_err_and(refused), "{bound:?}");
    let read = private::read(folder.join("record"), 10);
    assert!(read.as_ref().is_err_and(refused), "{read:?}");
    assert_eq!(
        fs::read_dir(folder).unwrap().count(),
        0,
        "nothing is created"
    );
}

fn assert_accepted(folder: &Path) {
    Listener::bind(folder.join("socket"), Allowed::own()).unwrap();
    assert_eq!(private::read(folder.join("record"), 10).unwrap(), None);
}

#[test]
fn directory_that_others_can_write_is_refused_also_if_it_is_sticky() {
    let base = Folder::new("open");
    for open in [0o777, 0o770, 0o702, 0o1777, 0o1770] {
        let folder = base.folder(&format!("{open:o}"), open);
        assert_refused(&folder, &folder);
    }
    for private in [0o700, 0o755, 0o1755, 0o2750] {
        assert_accepted(&base.folder(&format!("{private:o}"), private));
    }
    let error = Error::OpenDirectory("/tmp".into()).to_string();
    assert!(
        error.contains("$XDG_RUNTIME_DIR") && error.contains("chmod go-w"),
        "{error}"
    );
}

#[test]
fn directory_that_others_can_replace_is_refused() {
    let base = Folder::new("replaced");
    let (open, sticky) = (base.folder("open", 0o777), base.folder("sticky", 0o1777));
    let inner = open.join("inner");
    create(&inner, 0o700);
    assert_refused(&inner, &open);
    // Only the owner of the inner one can rename it there, as in /tmp.
    let inner = sticky.join("inner");
    create(&inner, 0o700);
    assert_accepted(&inner);
    // By way of links, and of a name that goes up.
    let safe = base.folder("safe", 0o700);
    symlink(open.join("inner"), safe.join("link")).unwrap();
    let (link, up) = (safe.join("link"), safe.join("../open/inner"));
    for path in [link, up] {
        let bound = Listener::bind(path.join("socket"), Allowed::own());
        assert!(
            matches!(&bound, Err(Error::OpenDirectory(path)) if *path == open),
            "{bound:?}"
        );
    }
    symlink("../safe", sticky.join("link")).unwrap();
    assert_accepted(&sticky.join("link"));
    symlink("circle", base.0.join("circle")).unwrap();
    let bound = Listener::bind(base.0.join("circle/socket"), Allowed::own());
    assert!(matches!(bound, Err(Error::System { .. })), "{bound:?}");
}

#[test]
fn directory_and_link_of_another_user_are_refused() {
    if !is_root() {
        println!("skipped: only root can create files of another user");
        return;
    }
    const OTHER: Option<u32> = Some(65_534);
    let base = Folder::new("owners");
    let (sticky, safe) = (base.folder("sticky", 0o1777), base.folder("safe", 0o700));
    let theirs = sticky.join("theirs");
    create(&theirs, 0o755);
    chown(&theirs, OTHER, OTHER).unwrap();
    assert_refused(&theirs, &theirs);
    let inner = theirs.join("inner");
    create(&inner, 0o700);
    assert_refused(&inner, &theirs);
    let link = sticky.join("link");
    symlink(safe, &link).unwrap();
    lchown(&link, OTHER, OTHER).unwrap();
    assert_refused(&link, &link);
}

#[test]
fn file_is_private_and_replaced_as_a_whole() {
    let folder = Folder::new("file");
    let file = folder.file();
    assert_eq!(private::read(&file, 3).unwrap(), None);
    for contents in [&b"one"[..], b"", b"two"] {
        private::replace(&file, contents).unwrap();
        assert_eq!(private::read(&file, 3).unwrap().as_deref(), Some(contents));
        assert_eq!(mode(&file), 0o600);
    }
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
}

#[test]
fn planted_files_are_not_read() {
    let folder = Folder::new("read");
    let file = folder.file();
    let target = folder.0.join("target");
    fs::write(&target, "text").unwrap();
    let plants: [(&str, Plant); 5] = [
        ("link", |target, file| symlink(target, file).unwrap()),
        ("FIFO", |_, file| fifo(file)),
        ("folder", |_, file| create(file, 0o700)),
        ("socket", |_, file| {
            drop(std::os::unix::net::UnixListener::bind(file).unwrap());
        }),
        ("file that others write", |_, file| {
            fs::write(file, "[]").unwrap();
            fs::set_permissions(file, Permissions::from_mode(0o666)).unwrap();
        }),
    ];
    for (name, plant) in plants {
        plant(&target, &file);
        let read = private::read(&file, 10);
        let is_refused = matches!(&read, Err(Error::NotAFile(path)) if *path == file);
        assert!(is_refused, "{name}: {read:?}");
        if fs::remove_file(&file).is_err() {
            fs::remove_dir(&file).unwrap();
        }
    }
    fs::write(&file, "12345678901").unwrap();
    let read = private::read(&file, 10);
    assert!(
        matches!(&read, Err(Error::LongFile { most: 10, .. })),
        "{read:?}"
    );
    assert_eq!(
        private::read(&file, 11).unwrap().map(|bytes| bytes.len()),
        Some(11)
    );
}

#[test]
fn planted_file_does_not_keep_another_from_being_replaced() {
    let folder = Folder::new("planted");
    let (file, new) = (folder.file(), folder.0.join("record.new"));
    let target = folder.0.join("target");
    fs::write(&target, "important").unwrap();
    let plants: [(&str, Plant); 4] = [
        ("link", |target, new| symlink(target, new).unwrap()),
        ("broken link", |_, new| symlink("nowhere", new).unwrap()),
        ("FIFO", |_, new| fifo(new)),
        ("file that others write", |_, new| {
            fs::write(new, "theirs, and longer").unwrap();
            fs::set_permissions(new, Permissions::from_mode(0o666)).unwrap();
        }),
    ];
    for (name, plant) in plants {
        plant(&target, &new);
        private::replace(&file, name.as_bytes()).unwrap();
        let read = private::read(&file, 100).unwrap();
        assert_eq!(read.as_deref(), Some(name.as_bytes()));
        assert_eq!(mode(&file), 0o600, "{name}");
        assert_eq!(fs::read(&target).unwrap(), b"important", "{name}");
        let gone = fs::symlink_metadata(&new).unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound, "{name}");
    }
    assert!(fs::symlink_metadata(folder.0.join("nowhere")).is_err());
}

#[test]
fn planted_lock_does_not_hold_a_listener_up() {
    let folder = Folder::new("lock");
    let (socket, lock) = (folder.0.join("socket"), folder.0.join("socket.lock"));
    fifo(&lock);
    let bound = Listener::bind(&socket, Allowed::own());
    assert!(
        matches!(&bound, Err(Error::NotAFile(path)) if *path == lock),
        "{bound:?}"
    );
    fs::remove_file(&lock).unwrap();
    symlink("target", &lock).unwrap();
    let bound = Listener::bind(&socket, Allowed::own());
    assert!(matches!(bound, Err(Error::NotAFile(_))), "{bound:?}");
    assert!(!folder.0.join("target").exists());
    fs::remove_file(&lock).unwrap();
    Listener::bind(&socket, Allowed::own()).unwrap();
}
