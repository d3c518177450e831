//! Tags as tenants.
//!
//! | file | about |
//! |---|---|
//! | `limits` | limits of tags, and the requests that wait for them |
//! | `shares` | their shares of the queue limit |
//! | `turns` | how tags with weights take turns |

mod limits;
mod shares;
mod turns;

use crate::common::*;
use weirpool::*;

fn tags<const N: usize>(test: &str) -> [Tag; N] {
    std::array::from_fn(|index| Tag::new(&format!("{test}: {index}")))
}

fn used(pool: &Pool, tag: Tag) -> u64 {
    pool.tag(tag).statistics().used.current
}
