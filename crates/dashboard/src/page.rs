//! The page: one document with its style and its script, which loads nothing but frames.

use crate::Frame;
use serde::Serialize;

const TEMPLATE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The hashes of the two. A browser applies and runs nothing else in the page.
const STYLE_HASH: &str = "sha256-c5dsdw0RkPjjIrxxyt5drP2014hXIa9+W+EstVe/Cq8=";
const SCRIPT_HASH: &str = "sha256-Xq22+KkN8gR3LYlb18lbcryAVK3n5fvejIa8lOgNIJg=";

/// Returns the `Content-Security-Policy` of the page.
pub(super) fn policy() -> String {
    format!(
        "default-src 'none'; style-src '{STYLE_HASH}'; script-src '{SCRIPT_HASH}'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'"
    )
}

/// What the page begins with.
#[derive(Serialize)]
struct Start<'a> {
    title: &'a str,
    about: &'a str,
    /// The page asks for frames.
    is_live: bool,
    facts: &'a [(String, String)],
    frames: &'a [Frame],
}

impl Start<'_> {
    fn page(&self) -> String {
        let json = serde_json::to_string(self).expect("plain data, with names as keys");
        // In JSON, `<` occurs inside strings only; escaped, it neither ends the element nor opens a comment.
        let json = json.replace('<', "\\u003c");
        let parts = [
            ("{{policy}}", policy().as_str()),
            ("{{style}}", STYLE),
            ("{{script}}", SCRIPT),
        ]
        .iter()
        .fold(TEMPLATE.to_owned(), |page, (name, part)| {
            page.replacen(name, part, 1)
        });
        // Last: no placeholder in the JSON is replaced.
        parts.replacen("{{start}}", &json, 1)
    }
}

/// Returns the page of a live pool.
pub(super) fn live(title: &str, about: &str) -> String {
    let start = Start {
        title,
        about,
        is_live: true,
        facts: &[],
        frames: &[],
    };
    start.page()
}

/// Frames of a pool as one page that loads nothing, to be looked at afterwards: `weirpool replay --html` writes one.
///
/// ```
/// # use weirpool::{Pool, device::sim::SimDevice};
/// # use weirpool_dashboard::{Frame, Recording};
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).build()?;
/// # let stream = pool.create_stream()?;
/// let mut recording = Recording::new("two blocks");
/// recording.frames.push(Frame::of(&pool));
/// let blocks = [1 << 20, 2 << 20].map(|bytes| pool.try_allocate(&stream, bytes));
/// recording.frames.push(Frame::of(&pool));
/// let page = recording.to_html(); // to be written into a file
/// # assert!(page.starts_with("<!doctype html>"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Recording {
    /// The title of the page.
    pub title: String,
    /// A sentence about it; none if it is empty.
    pub about: String,
    /// Names and values, shown below the title.
    pub facts: Vec<(String, String)>,
    /// The frames, in the order of their times.
    pub frames: Vec<Frame>,
}

impl Recording {
    /// Returns a recording without frames.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            ..Self::default()
        }
    }

    /// Returns the page as HTML. A frame takes about 60 bytes for each of its blocks, and as much again for its rows.
    pub fn to_html(&self) -> String {
        let start = Start {
            title: &self.title,
            about: &self.about,
            is_live: false,
            facts: &self.facts,
            frames: &self.frames,
        };
        start.page()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use sha2::{Digest, Sha256};

    fn hash(part: &str) -> String {
        format!("sha256-{}", STANDARD.encode(Sha256::digest(part)))
    }

    #[test]
    fn hashes_are_those_of_the_style_and_of_the_script() {
        // A browser hashes what stands between the tags.
        assert_eq!(hash(STYLE), STYLE_HASH, "STYLE_HASH");
        assert_eq!(hash(SCRIPT), SCRIPT_HASH, "SCRIPT_HASH");
        assert!(TEMPLATE.contains("<style>{{style}}</style>"));
        assert!(TEMPLATE.contains("<script>{{script}}</script>"));
    }

    #[test]
    fn page_names_no_other_resource() {
        let page = live("a pool", "");
        for mark in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!page.contains(mark), "{mark}");
        }
    }

    #[test]
    fn hostile_names_stay_inside_their_element() {
        let sound = live("sound", "");
        for name in [
            "</script><script>alert(1)</script>",
            "</SCRIPT >",
            "<!--<script>",
            "{{start}}{{script}}",
            "\"}\u{2028}\\",
        ] {
            let page = live(name, name);
            for mark in ["<script", "</script", "<!--"] {
                let count = |page: &str| page.to_ascii_lowercase().matches(mark).count();
                assert_eq!(count(&page), count(&sound), "{name}: {mark}");
            }
            let (_, rest) = page.split_once("id=\"start\">").unwrap();
            let (json, _) = rest.split_once("</script>").unwrap();
            let start: serde_json::Value = serde_json::from_str(json).unwrap();
            assert_eq!(start["title"], name);
        }
    }
}
