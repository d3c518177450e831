//! Tower layers that reserve memory of a [pool](weirpool::Pool) for each request of a service.
//!
//! | layer | what it does |
//! |---|---|
//! | [`ReserveLayer`] | reserves memory before it calls the inner service, whose future draws from the reservation |
#![cfg_attr(
    feature = "http",
    doc = "| [`HttpReserveLayer`] | holds the reservation until the body of the response has ended |"
)]
//! | [`RefusalLayer`] | answers requests for which there is no memory |
#![cfg_attr(feature = "http", doc = include_str!("over_http.md"))]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "http")]
mod answer;
#[cfg(feature = "http")]
mod http;
mod refusals;
mod reserve;

#[cfg(feature = "http")]
pub use answer::{Answer, HeaderError};
#[cfg(feature = "http")]
pub use http::{HttpReserveFuture, HttpReserveLayer, HttpReserveService, ReservedBody};
pub use refusals::{RefusalFuture, RefusalLayer, RefusalService};
pub use reserve::{Need, ReserveError, ReserveFuture, ReserveLayer, ReserveService};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
