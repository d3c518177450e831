//! The model: a transformer in the shape of GPT-2, its weights, and one step of it.
//!
//! A step takes *rows*: tokens of any sequences, each with its position and the pages of its sequence's cache. A row of
//! a prompt and a row that continues an answer are computed alike, so requests join and leave between steps.

mod forward;
pub mod reference;
mod shape;
mod step;
mod weights;

pub(crate) use forward::forward;
pub(crate) use shape::Parts;
pub use shape::Shape;
pub(crate) use step::{Layout, Limits, Row, Sampling, StepPlan};
pub use weights::{Weights, WeightsError};
