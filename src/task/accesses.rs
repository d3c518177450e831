//! The memory that submitted work uses, and how.

use crate::block::{Access, Block, Part};
use crate::buffer::{Buffer, SliceMut};
use crate::device::{Argument, HostUse};
use crate::error::StreamError;
use crate::foreign::Resident;
use crate::stream::Stream;

/// The memory that submitted work uses: `&` for memory that it reads, `&mut` for memory that it writes.
///
/// | memory | read | written |
/// |---|---|---|
/// | [`Block`], [`Buffer`] | `&block` | `&mut block` |
/// | [`SliceMut`], for a part of a block | `&slice` | `&mut slice` |
///
/// Tuples of up to 8 of these are accesses as well, and so are arrays, vectors and slices, whose arguments are vectors.
/// `()` is for work that uses no memory of a pool.
///
/// A use is ordered, and recorded:
///
/// - One that reads comes after every use that may have written the memory: all work submitted so far to the stream that it
///   was allocated on or [moved to](Block::move_to), and earlier uses on other streams that may write. Readers do not wait
///   for each other.
/// - One that writes comes after every earlier use on every stream. Nothing else uses the memory until the work is submitted.
/// - [`Unordered`] memory is used without an order of its own.
pub trait Accesses {
    /// The memory as arguments of the work, in the same shape.
    type Arguments;

    /// Orders the stream, and notes the uses. A type that wraps memory of a pool passes the call on to it.
    ///
    /// # Errors
    /// Returns an error if the memory cannot be used on the stream.
    #[doc(hidden)]
    fn order(self, order: &mut AccessOrder<'_>) -> Result<Self::Arguments, StreamError>;
}

/// The stream that is ordered, and the uses that were noted on it. Only this crate makes and reads one: an
/// implementation of [`Accesses`] elsewhere, for a type that wraps memory of a pool, passes it to `order` of that memory.
#[derive(Debug)]
pub struct AccessOrder<'s> {
    pub(super) stream: &'s Stream,
    /// The uses, for a device that checks the work of the host.
    pub(super) uses: Option<&'s mut Vec<HostUse>>,
    /// Holds of memory that its owner takes away at times, until the work is submitted.
    pub(super) held: Vec<Resident>,
}

impl<'s> AccessOrder<'s> {
    pub(super) fn on(stream: &'s Stream) -> Self {
        Self {
            stream,
            uses: None,
            held: Vec::new(),
        }
    }

    /// Holds the memory of a block until the work is submitted.
    fn hold(&mut self, block: &Block) -> Result<(), StreamError> {
        self.held
            .extend(block.uses().hold_for(&self.stream.registration)?);
        Ok(())
    }

    /// # Errors
    /// Returns an error if work of the host is to use memory that it does not see. A stream uses memory of its own pool.
    fn expect_seen(&self) -> Result<(), StreamError> {
        let kind = self.stream.registration.service.engine.shared.settings.kind;
        match self.uses.is_some() && !kind.is_seen_by_host() {
            true => Err(StreamError::UnseenByHost),
            false => Ok(()),
        }
    }

    fn add<'a>(&mut self, argument: Argument<'a>, is_write: bool) -> Argument<'a> {
        if let Some(uses) = &mut self.uses {
            uses.push(HostUse {
                address: argument.address().to_bits(),
                bytes: argument.size(),
                is_write,
            });
        }
        argument
    }
}

impl Accesses for () {
    type Arguments = ();

    fn order(self, _: &mut AccessOrder<'_>) -> Result<(), StreamError> {
        Ok(())
    }
}

/// Implements reading through a shared borrow, and writing through an exclusive one.
macro_rules! accesses {
    ($([$($parameters:tt)*] $memory:ty),* $(,)?) => {$(
        accesses!([$($parameters)*] &'a $memory, false);
        accesses!([$($parameters)*] &'a mut $memory, true);
    )*};
    ([$($parameters:tt)*] $borrow:ty, $is_write:literal) => {
        impl<'a, $($parameters)*> Accesses for $borrow {
            type Arguments = Argument<'a>;

            fn order(self, order: &mut AccessOrder<'_>) -> Result<Argument<'a>, StreamError> {
                order.expect_seen()?;
                order.hold(self.block())?;
                let argument = self.used(order.stream, $is_write)?;
                Ok(order.add(argument, $is_write))
            }
        }
    };
}

accesses!([] Block, [T] Buffer<T>, ['b, T] SliceMut<'b, T>);

/// What a use of memory is ordered as: a part is written after all earlier uses, while others may write other parts.
trait Memory {
    fn block(&self) -> &Block;

    fn used(&self, stream: &Stream, is_write: bool) -> Result<Argument<'_>, StreamError>;
}

impl Memory for Block {
    fn block(&self) -> &Block {
        self
    }

    fn used(&self, stream: &Stream, is_write: bool) -> Result<Argument<'_>, StreamError> {
        let access = if is_write {
            Access::Write
        } else {
            Access::Read
        };
        Part::whole(self, access).argument(stream)
    }
}

impl<T> Memory for Buffer<T> {
    fn block(&self) -> &Block {
        self.as_block()
    }

    fn used(&self, stream: &Stream, is_write: bool) -> Result<Argument<'_>, StreamError> {
        self.as_block().used(stream, is_write)
    }
}

impl<T> Memory for SliceMut<'_, T> {
    fn block(&self) -> &Block {
        SliceMut::block(self)
    }

    fn used(&self, stream: &Stream, is_write: bool) -> Result<Argument<'_>, StreamError> {
        let access = if is_write { Access::Part } else { Access::Read };
        self.as_part(access).argument(stream)
    }
}

/// Memory of a block that work uses, possibly writing it, without an order after the earlier uses: kernels on several
/// streams can use it at the same time and communicate through it. The caller orders them.
///
/// The memory is not reused before the stream has passed the free of the block.
///
/// ```
/// # use weirpool::{Pool, Unordered, device::sim::SimDevice};
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).build()?;
/// # let [home, other] = [pool.create_stream()?, pool.create_stream()?];
/// let block = pool.try_allocate(&home, 1 << 20)?;
/// other.record_use(Unordered::UntilFreed(&block))?; // before another library uses its address there
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Unordered<'a> {
    /// Work that is submitted next. The stream is ordered after the grant of the block, by a wait on the device if needed.
    Once(&'a Block),
    /// Any work of the stream, until the block is freed. The stream is ordered after the grant of the block, by a wait on the
    /// device if needed.
    UntilFreed(&'a Block),
    /// Any work of the stream, until the block is freed. The caller has ordered the stream after the grant: nothing is
    /// submitted to it. This is what PyTorch's `record_stream` does.
    #[doc(alias = "record_stream")]
    ByCaller(&'a Block),
}

impl<'a> Accesses for Unordered<'a> {
    type Arguments = Argument<'a>;

    fn order(self, order: &mut AccessOrder<'_>) -> Result<Argument<'a>, StreamError> {
        order.expect_seen()?;
        let (Self::Once(block) | Self::UntilFreed(block) | Self::ByCaller(block)) = self;
        order.hold(block)?;
        let stream = order.stream;
        let argument = match self {
            Self::Once(block) => Part::whole(block, Access::Any).argument(stream),
            Self::UntilFreed(block) => Part::whole(block, Access::Always).argument(stream),
            Self::ByCaller(block) => {
                Part::whole(block, Access::Always).argument_ordered_by_user(stream)
            }
        };
        Ok(order.add(argument?, true))
    }
}

impl<A: Accesses> Accesses for Vec<A> {
    type Arguments = Vec<A::Arguments>;

    fn order(self, order: &mut AccessOrder<'_>) -> Result<Self::Arguments, StreamError> {
        self.into_iter().map(|one| one.order(order)).collect()
    }
}

impl<A: Accesses, const N: usize> Accesses for [A; N] {
    type Arguments = Vec<A::Arguments>;

    fn order(self, order: &mut AccessOrder<'_>) -> Result<Self::Arguments, StreamError> {
        self.into_iter().map(|one| one.order(order)).collect()
    }
}

impl<'a, M> Accesses for &'a [M]
where
    &'a M: Accesses,
{
    type Arguments = Vec<<&'a M as Accesses>::Arguments>;

    fn order(self, order: &mut AccessOrder<'_>) -> Result<Self::Arguments, StreamError> {
        self.iter().map(|one| one.order(order)).collect()
    }
}

impl<'a, M> Accesses for &'a mut [M]
where
    &'a mut M: Accesses,
{
    type Arguments = Vec<<&'a mut M as Accesses>::Arguments>;

    fn order(self, order: &mut AccessOrder<'_>) -> Result<Self::Arguments, StreamError> {
        self.iter_mut().map(|one| one.order(order)).collect()
    }
}

/// Implements tuples.
macro_rules! tuples {
    ($($($name:ident)+;)*) => {$(
        impl<$($name: Accesses),+> Accesses for ($($name,)+) {
            type Arguments = ($($name::Arguments,)+);

            #[allow(non_snake_case, reason = "the parameters name the members")]
            fn order(self, order: &mut AccessOrder<'_>) -> Result<Self::Arguments, StreamError> {
                let ($($name,)+) = self;
                Ok(($($name.order(order)?,)+))
            }
        }
    )*};
}

tuples! {
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
    A B C D E F G;
    A B C D E F G H;
}
