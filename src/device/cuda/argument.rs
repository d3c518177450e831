//! Blocks as kernel arguments.

use crate::device::Argument;
use cudarc::driver::{LaunchArgs, PushKernelArg};

// SAFETY: what is pushed is a `u64`, which is how the driver has a device pointer, and it lives until the
// launch.
unsafe impl<'a, 'b: 'a> PushKernelArg<&'b Argument<'_>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, argument: &'b Argument<'_>) -> &mut Self {
        self.arg(argument.as_parameter())
    }
}
