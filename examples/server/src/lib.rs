//! An inference server whose requests wait for memory instead of failing.
//!
//! ```text
//! cargo run --release -p weirpool-server                          # on the simulated device
//! cargo run --release -p weirpool-server --features cuda -- --device cuda --capacity 8GiB --layers 12 --width 768 --heads 12
//! curl localhost:8080/v1/completions --json '{"prompt": "Hello", "max_tokens": 20, "stream": true}' -N
//! ```
//!
//! It serves a transformer in the shape of GPT-2 through OpenAI's interface for completions. A request is admitted once
//! memory is reserved for the keys and values of its prompt and its longest answer; until then it waits in the pool's
//! fair queue, by tenant, weight and deadline. Pages of earlier prompts stay in memory, evictable, until a request needs
//! that memory.
//!
//! | module | purpose |
//! |---|---|
//! | [`config`] | settings: defaults, a file, the environment, flags |
//! | [`server`] | start, connections, shutdown |
//! | `http` | routes, tenants, statuses, server-sent events |
//! | `engine` | admission, the prefix cache, and a worker with a running batch for each stream |
//! | [`model`] | sizes, weights, one step as a list of kernels; a reference implementation for tests |
//! | `kernels` | the kernels of each device: the only part that differs |
//! | `agent` | the load, for load balancers |
//! | `patient` | clients that read slowly |
//! | `printable` | characters that names may have |
//! | `figures` | metrics |

mod agent;
pub mod config;
mod engine;
mod figures;
mod http;
mod kernels;
pub mod model;
mod patient;
#[path = "../../../crates/cli/src/printable.rs"]
mod printable;
pub mod server;

pub use config::{Config, Flags};
pub use engine::Admission;
pub use server::Server;

/// Sets defaults of the CUDA driver in the environment. Call this first, while there is one thread.
pub fn prepare() {
    #[cfg(feature = "cuda")]
    kernels::cuda::prepare();
}
