//! A device in front of another: what it does not change it passes on.

/// The calls of a [`Device`](weirpool::device::Device) that are named, each passed on to another device. Stands in
/// the `impl`, beside the calls that do something of their own; a call that is in neither is as the contract has it
/// by default, or missed by the compiler. The types of the contract are in scope there
/// (`use weirpool::device::*`).
///
/// ```ignore
/// unsafe impl Device for Slow {
///     pass_on! { |slow| &slow.0 => id, describe, record }
///
///     unsafe fn query(&self, event: RawEvent) -> Result<bool, DeviceError> {
///         self.0.advance(QUERY);
///         self.0.query(event)
///     }
/// }
/// ```
///
/// Its recipient may depend on the name of the call: `|probe, call| probe.enter(call)? => map, unmap`.
#[allow(unused_macros, reason = "few tests have such a device")]
macro_rules! pass_on {
    (|$front:ident| $to:expr => $($name:ident),+ $(,)?) => {
        pass_on! { |$front, _call| $to => $($name),+ }
    };
    (|$front:ident, $call:ident| $to:expr => $($name:ident),+ $(,)?) => {
        $(pass_on! { @$name [$front, $call, $to] })+
    };

    // The contract.
    (@id $to:tt) => { pass_on! { @$to id() -> DeviceId } };
    (@describe $to:tt) => { pass_on! { @$to describe() -> String } };
    (@capabilities $to:tt) => { pass_on! { @$to capabilities() -> Capabilities } };
    (@ordinal $to:tt) => { pass_on! { @$to ordinal() -> u32 } };
    (@block_observer $to:tt) => {
        pass_on! { @$to block_observer() -> Option<std::sync::Arc<dyn BlockObserver>> }
    };
    (@memory_info $to:tt) => {
        pass_on! { @$to memory_info(kind: MemoryKind) -> Result<MemoryInfo, DeviceError> }
    };
    (@now $to:tt) => { pass_on! { @$to now() -> std::time::Duration } };
    (@set_alarm $to:tt) => {
        pass_on! {
            @$to set_alarm(at: std::time::Duration, waker: &std::task::Waker) -> AlarmId
        }
    };
    (@cancel_alarm $to:tt) => { pass_on! { @$to cancel_alarm(alarm: AlarmId) -> () } };
    (@reserve $to:tt) => { pass_on! { @$to reserve(bytes: u64) -> Result<u64, DeviceError> } };
    (@unreserve $to:tt) => {
        pass_on! { @$to unsafe unreserve(address: u64, bytes: u64) -> Result<(), DeviceError> }
    };
    (@create $to:tt) => { pass_on! { @$to create(bytes: u64) -> Result<Chunk, DeviceError> } };
    (@destroy $to:tt) => { pass_on! { @$to unsafe destroy(chunk: Chunk) -> Result<(), DeviceError> } };
    (@map $to:tt) => {
        pass_on! {
            @$to unsafe map(address: u64, chunk: Chunk, bytes: u64) -> Result<(), DeviceError>
        }
    };
    (@unmap $to:tt) => { pass_on! { @$to unsafe unmap(address: u64, bytes: u64) -> Result<(), DeviceError> } };
    (@allocate $to:tt) => {
        pass_on! { @$to allocate(kind: MemoryKind, bytes: u64) -> Result<u64, DeviceError> }
    };
    (@free $to:tt) => {
        pass_on! {
            @$to unsafe free(kind: MemoryKind, address: u64, bytes: u64) -> Result<(), DeviceError>
        }
    };
    (@host_pointer $to:tt) => {
        pass_on! {
            @$to host_pointer(address: u64, bytes: u64) -> Option<std::ptr::NonNull<u8>>
        }
    };
    (@create_stream $to:tt) => { pass_on! { @$to create_stream() -> Result<RawStream, DeviceError> } };
    (@destroy_stream $to:tt) => {
        pass_on! { @$to unsafe destroy_stream(stream: RawStream) -> Result<(), DeviceError> }
    };
    (@native_stream $to:tt) => {
        pass_on! {
            @$to native_stream(stream: RawStream)
                -> Option<std::sync::Arc<dyn std::any::Any + Send + Sync>>
        }
    };
    (@is_abandoned $to:tt) => {
        pass_on! {
            @$to is_abandoned(owner: &std::sync::Arc<dyn std::any::Any + Send + Sync>) -> bool
        }
    };
    (@create_event $to:tt) => { pass_on! { @$to create_event() -> Result<RawEvent, DeviceError> } };
    (@destroy_event $to:tt) => {
        pass_on! { @$to unsafe destroy_event(event: RawEvent) -> Result<(), DeviceError> }
    };
    (@record $to:tt) => {
        pass_on! { @$to unsafe record(event: RawEvent, stream: RawStream) -> Result<(), DeviceError> }
    };
    (@query $to:tt) => { pass_on! { @$to unsafe query(event: RawEvent) -> Result<bool, DeviceError> } };
    (@wait $to:tt) => {
        pass_on! { @$to unsafe wait(stream: RawStream, event: RawEvent) -> Result<(), DeviceError> }
    };
    (@watch $to:tt) => { pass_on! { @$to unsafe watch(event: RawEvent, waker: &std::task::Waker) -> WatchId } };
    (@unwatch $to:tt) => { pass_on! { @$to unwatch(watch: WatchId) -> () } };
    (@upload $to:tt) => {
        pass_on! {
            @$to unsafe upload(
                stream: RawStream,
                address: u64,
                bytes: &[u8],
                location: &'static std::panic::Location<'static>
            ) -> Result<Box<dyn Transfer>, DeviceError>
        }
    };
    (@download $to:tt) => {
        pass_on! {
            @$to unsafe download(
                stream: RawStream,
                address: u64,
                bytes: u64,
                location: &'static std::panic::Location<'static>
            ) -> Result<Box<dyn Transfer>, DeviceError>
        }
    };
    (@fill $to:tt) => {
        pass_on! {
            @$to unsafe fill(
                stream: RawStream,
                address: u64,
                bytes: u64,
                value: u8,
                location: &'static std::panic::Location<'static>
            ) -> Result<(), DeviceError>
        }
    };
    (@run $to:tt) => {
        pass_on! { @$to unsafe run(stream: RawStream, function: HostFunction) -> Result<(), DeviceError> }
    };
    (@hold $to:tt) => {
        pass_on! {
            @$to unsafe hold(stream: RawStream, name: Option<std::borrow::Cow<'static, str>>)
                -> Result<Box<dyn Hold>, DeviceError>
        }
    };

    // One call.
    (@[$front:ident, $call:ident, $to:expr] $name:ident($($argument:ident: $type:ty),*) -> $answer:ty) => {
        fn $name(&self $(, $argument: $type)*) -> $answer {
            let ($front, $call) = (self, stringify!($name));
            Device::$name($to $(, $argument)*)
        }
    };
    (@[$front:ident, $call:ident, $to:expr] unsafe $name:ident($($argument:ident: $type:ty),*) -> $answer:ty) => {
        unsafe fn $name(&self $(, $argument: $type)*) -> $answer {
            let ($front, $call) = (self, stringify!($name));
            // SAFETY: the caller guarantees to this device what it guarantees to the other.
            unsafe { Device::$name($to $(, $argument)*) }
        }
    };
}

pub(crate) use pass_on;
