//! The server on the simulated device, called through its routes and over TCP.

mod answers;
mod common;
mod devices;
mod ends;
mod fairness;
mod faults;
mod hostile;
mod overload;
mod process;
mod publish;
mod sleep;
mod sockets;
mod statuses;
mod tenants;
