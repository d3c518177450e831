//! Sizes and times as text.

use std::fmt;
use std::time::Duration;

/// Displays a number of bytes in binary units: `512 B`, `1.5 KiB`, `64.0 MiB`. Every size in a message or in the
/// output of `Debug` and `Display` is printed with it.
#[derive(Clone, Copy)]
pub struct Bytes(pub u64);

const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = *self;
        if bytes < 1024 {
            return f.pad(&format!("{bytes} B"));
        }
        let mut value = bytes as f64 / 1024.0;
        let mut unit = 0;
        // Compares the rounded value, so that no size is printed as 1024.0 of a unit.
        while (value * 10.0).round() >= 10_240.0 && unit + 1 < UNITS.len() {
            (value, unit) = (value / 1024.0, unit + 1);
        }
        let unit = UNITS[unit];
        f.pad(&format!("{value:.1} {unit}"))
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Displays a number of things: `1 allocation`, `2 allocations`. The noun is given in the singular.
pub struct Counted(pub u64, pub &'static str);

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, noun) = *self;
        let ending = if count == 1 { "" } else { "s" };
        write!(f, "{count} {noun}{ending}")
    }
}

/// Figures of bytes that [`debug_in_units`] prints in binary units.
pub trait InUnits: Copy {
    /// Returns the value in its unit.
    fn in_units(self) -> impl fmt::Debug;
}

impl InUnits for u64 {
    fn in_units(self) -> impl fmt::Debug {
        Bytes(self)
    }
}

impl InUnits for Option<u64> {
    fn in_units(self) -> impl fmt::Debug {
        self.map(Bytes)
    }
}

/// Implements `Debug` as its derivation does, except that fields named `as bytes` are printed in binary units. Every
/// field and variant is listed, so that none is forgotten. The value of a tuple variant is `inner`.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_in_units {
    (struct $type:ident { $($field:ident $(as $unit:ident)?),* $(,)? }) => {
        #[automatically_derived]
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let Self { $($field),* } = self;
                let mut all = f.debug_struct(stringify!($type));
                $(all.field(stringify!($field), $crate::debug_in_units!(@ $field $($unit)?));)*
                all.finish()
            }
        }
    };
    (enum $type:ident {
        $($variant:ident
            $({ $($field:ident $(as $unit:ident)?),* $(,)? })?
            $(($inner:ident $(as $inner_unit:ident)?))?
        ),* $(,)?
    }) => {
        #[automatically_derived]
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $(Self::$variant $({ $($field),* })? $(($inner))? => {
                        $(
                            let mut all = f.debug_struct(stringify!($variant));
                            $(all.field(stringify!($field), $crate::debug_in_units!(@ $field $($unit)?));)*
                            return all.finish();
                        )?
                        $(
                            let inner = $crate::debug_in_units!(@ $inner $($inner_unit)?);
                            return f.debug_tuple(stringify!($variant)).field(inner).finish();
                        )?
                        #[allow(unreachable_code, reason = "only of a variant without fields")]
                        f.write_str(stringify!($variant))
                    })*
                }
            }
        }
    };
    (@ $field:ident) => { $field };
    (@ $field:ident bytes) => { &$crate::units::InUnits::in_units(*$field) };
}
pub use debug_in_units;

/// Displays a time in milliseconds: `12.345 ms`.
#[derive(Clone, Copy, Debug)]
pub struct Milliseconds(pub Duration);

impl fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = self.0.as_nanos() as f64 / 1e6;
        f.pad(&format!("{milliseconds:.3} ms"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_printed_with_their_units() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (64 << 20, "64.0 MiB"),
            (1 << 40, "1.0 TiB"),
            (u64::MAX, "16384.0 PiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(format!("[{:>8}]", Bytes(512)), "[   512 B]");
        assert_eq!(format!("{:?}", Some(1536).in_units()), "Some(1.5 KiB)");
        let counted = [0, 1, 2].map(|count| Counted(count, "free").to_string());
        assert_eq!(counted, ["0 frees", "1 free", "2 frees"]);
        let time = Milliseconds(Duration::from_micros(12_345));
        assert_eq!(time.to_string(), "12.345 ms");
    }
}
