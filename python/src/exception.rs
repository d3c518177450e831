//! Throws a C++ exception from Rust, by a function of libstdc++.

use crate::report::print;
use libloading::Library;
use std::ffi::{c_char, c_void};
use std::sync::OnceLock;

/// `std::__throw_runtime_error`, which copies the text.
type Throw = unsafe extern "C-unwind" fn(*const c_char) -> !;

/// The bytes of the longest message, with its final zero. Longer reasons are cut.
const LONGEST: usize = 1024;

/// Throws a `std::runtime_error`. Without libstdc++ no code could catch it: then this prints the reason, and returns
/// null.
///
/// # Safety
/// All frames up to the one that catches the exception must allow unwinding.
pub(crate) unsafe fn throw(reason: String) -> *mut c_void {
    let Some(throw) = thrower() else {
        print(&reason);
        return std::ptr::null_mut();
    };
    let text = text_of(reason);
    // SAFETY: the text ends with a zero. No value here needs to be dropped when the exception passes.
    unsafe { throw(text.as_ptr().cast()) }
}

fn text_of(reason: String) -> [u8; LONGEST] {
    let mut text = [0; LONGEST];
    let words = format!("weirpool: {reason}");
    let bytes = words.bytes().filter(|byte| *byte != 0);
    // The last one stays zero.
    text[..LONGEST - 1]
        .iter_mut()
        .zip(bytes)
        .for_each(|(to, from)| *to = from);
    text
}

/// Finds the function. A process with any C++ has loaded the library already.
fn thrower() -> Option<Throw> {
    static THROW: OnceLock<Option<Throw>> = OnceLock::new();
    *THROW.get_or_init(|| {
        // SAFETY: the library's initializers have no preconditions.
        let library = unsafe { Library::new("libstdc++.so.6") }.ok()?;
        // Loaded until the process ends.
        let library = Box::leak(Box::new(library));
        // SAFETY: this is the symbol's type.
        let found = unsafe { library.get::<Throw>(b"_ZSt21__throw_runtime_errorPKc\0") };
        found.ok().map(|symbol| *symbol)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(reason: &str) -> String {
        let text = text_of(reason.to_owned());
        let text = std::ffi::CStr::from_bytes_until_nul(&text).expect("a zero at the end");
        text.to_string_lossy().into_owned()
    }

    #[test]
    fn reason_becomes_a_c_string() {
        assert_eq!(words("no memory"), "weirpool: no memory");
        assert_eq!(words("no\0memory"), "weirpool: nomemory");
        let long = words(&"x".repeat(2 * LONGEST));
        assert_eq!(long.len(), LONGEST - 1);
    }
}
