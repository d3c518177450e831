//! The device calls by name: the unit of counting, cost and scripted faults.
//!
//! This module does not know what a call does.

/// A device call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Call {
    /// `Device::memory_info`
    MemoryInfo,
    /// `Device::reserve`
    Reserve,
    /// `Device::unreserve`
    Unreserve,
    /// `Device::create`, `Sharing::create_shareable`
    Create,
    /// `Device::destroy`
    Destroy,
    /// `Device::map`
    Map,
    /// `Device::unmap`
    Unmap,
    /// `Device::allocate`
    Allocate,
    /// `Device::free`
    Free,
    /// `Sharing::export`
    Export,
    /// `Sharing::import`
    Import,
    /// `DriverPools::create_pool`
    CreatePool,
    /// `DriverPools::destroy_pool`
    DestroyPool,
    /// `DriverPools::allocate_from`
    AllocateFrom,
    /// `DriverPools::free_to`
    FreeTo,
    /// `DriverPools::trim_pool`
    TrimPool,
    /// `DriverPools`: an attribute or an access, read or set, and `default_pool`
    PoolAttribute,
    /// `Device::create_stream`
    CreateStream,
    /// `Device::destroy_stream`
    DestroyStream,
    /// `Device::create_event`
    CreateEvent,
    /// `Device::destroy_event`
    DestroyEvent,
    /// `Device::record`
    Record,
    /// `Device::query`
    Query,
    /// `Device::wait`
    Wait,
    /// `Device::upload`
    Upload,
    /// `Device::download`
    Download,
    /// `Device::fill`
    Fill,
    /// `PeerAccess::copy` and `capture_copy`
    Copy,
    /// `PeerAccess`: the access of a peer, given or taken back
    SetAccess,
    /// `Device::run`
    Run,
    /// `Device::hold`
    Hold,
    /// `Captures::begin_capture`
    BeginCapture,
    /// `Captures::end_capture`
    EndCapture,
    /// `Captures::keep`
    Keep,
    /// `Graph::launch`
    Launch,
}

impl Call {
    /// Every call, in the order of declaration.
    pub const ALL: [Self; 35] = [
        Self::MemoryInfo,
        Self::Reserve,
        Self::Unreserve,
        Self::Create,
        Self::Destroy,
        Self::Map,
        Self::Unmap,
        Self::Allocate,
        Self::Free,
        Self::Export,
        Self::Import,
        Self::CreatePool,
        Self::DestroyPool,
        Self::AllocateFrom,
        Self::FreeTo,
        Self::TrimPool,
        Self::PoolAttribute,
        Self::CreateStream,
        Self::DestroyStream,
        Self::CreateEvent,
        Self::DestroyEvent,
        Self::Record,
        Self::Query,
        Self::Wait,
        Self::Upload,
        Self::Download,
        Self::Fill,
        Self::Copy,
        Self::SetAccess,
        Self::Run,
        Self::Hold,
        Self::BeginCapture,
        Self::EndCapture,
        Self::Keep,
        Self::Launch,
    ];

    /// Returns the name of the call in [`Device`](weirpool_device::Device), `Sharing`,
    /// [`DriverPools`](weirpool_device::DriverPools), [`Captures`](weirpool_device::Captures) or
    /// [`Graph`](weirpool_device::Graph).
    pub const fn name(self) -> &'static str {
        match self {
            Self::MemoryInfo => "memory_info",
            Self::Reserve => "reserve",
            Self::Unreserve => "unreserve",
            Self::Create => "create",
            Self::Destroy => "destroy",
            Self::Map => "map",
            Self::Unmap => "unmap",
            Self::Allocate => "allocate",
            Self::Free => "free",
            Self::Export => "export",
            Self::Import => "import",
            Self::CreatePool => "create_pool",
            Self::DestroyPool => "destroy_pool",
            Self::AllocateFrom => "allocate_from",
            Self::FreeTo => "free_to",
            Self::TrimPool => "trim_pool",
            Self::PoolAttribute => "pool_attribute",
            Self::CreateStream => "create_stream",
            Self::DestroyStream => "destroy_stream",
            Self::CreateEvent => "create_event",
            Self::DestroyEvent => "destroy_event",
            Self::Record => "record",
            Self::Query => "query",
            Self::Wait => "wait",
            Self::Upload => "upload",
            Self::Download => "download",
            Self::Fill => "fill",
            Self::Copy => "copy",
            Self::SetAccess => "set_access",
            Self::Run => "run",
            Self::Hold => "hold",
            Self::BeginCapture => "begin_capture",
            Self::EndCapture => "end_capture",
            Self::Keep => "keep",
            Self::Launch => "launch",
        }
    }

    /// Returns whether the call takes, releases or maps memory.
    pub const fn is_memory_call(self) -> bool {
        self.needs_virtual_memory()
            || matches!(
                self,
                Self::Allocate | Self::Free | Self::AllocateFrom | Self::FreeTo | Self::TrimPool
            )
    }

    /// Returns whether the call is available only with virtual memory.
    pub const fn needs_virtual_memory(self) -> bool {
        matches!(
            self,
            Self::Reserve
                | Self::Unreserve
                | Self::Create
                | Self::Destroy
                | Self::Map
                | Self::Unmap
                | Self::Export
                | Self::Import
        )
    }
}

#[cfg(test)]
mod tests {
    use super::Call;

    #[test]
    fn all_lists_every_call_at_its_own_index() {
        for (index, call) in Call::ALL.into_iter().enumerate() {
            assert_eq!(call as usize, index);
        }
    }
}
