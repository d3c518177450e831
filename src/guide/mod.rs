//! Pages that are longer than a signature.

#[doc = include_str!("safety.md")]
pub mod safety {}

#[doc = include_str!("pools.md")]
pub mod pools {}

#[doc = include_str!("external.md")]
pub mod external {}

#[doc = include_str!("services.md")]
pub mod services {}

#[doc = include_str!("testing.md")]
pub mod testing {}

#[doc = include_str!("gpu.md")]
pub mod gpu {}

#[doc = include_str!("statistics.md")]
pub mod statistics {}

#[doc = include_str!("debugging.md")]
pub mod debugging {}

#[doc = include_str!("figures.md")]
pub mod figures {}

// Rustdoc takes no files along, so the picture is part of the page there, at its end. Of two definitions of a link the
// first counts: where the page names the picture, an empty one stands in for it.
#[doc = "[frontier]: data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"]
#[doc = ""]
#[doc = include_str!("choices.md")]
#[doc = ""]
#[doc = include_str!("frontier.svg")]
pub mod choices {}

#[doc = include_str!("behaviours.md")]
pub mod behaviours {}
