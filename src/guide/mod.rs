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

#[doc = include_str!("choices.md")]
pub mod choices {}

#[doc = include_str!("behaviours.md")]
pub mod behaviours {}
