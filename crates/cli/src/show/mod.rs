//! Output for people: tables, pictures, progress.

pub(crate) mod chart;
pub(crate) mod plot;
pub(crate) mod progress;
pub(crate) mod table;
pub(crate) mod units;
