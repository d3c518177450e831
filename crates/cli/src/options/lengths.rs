//! Lengths of prompts and answers.

use crate::read::arrivals::MOST_TOKENS;
use fastrand::Rng;
use std::str::FromStr;

/// Lengths in tokens, each equally likely: `N`, or `LOW..HIGH` with both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lengths {
    low: u32,
    high: u32,
}

impl Lengths {
    pub(crate) const fn from(low: u32, high: u32) -> Self {
        Self { low, high }
    }

    /// Returns the length that is nearest to `tokens`.
    pub(crate) fn nearest(self, tokens: u32) -> u32 {
        tokens.clamp(self.low, self.high)
    }

    pub(crate) fn draw(self, random: &mut Rng) -> u32 {
        random.u32(self.low..=self.high)
    }
}

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (low, high) = text.split_once("..").unwrap_or((text, text));
        let (Ok(low), Ok(high)) = (low.parse(), high.parse()) else {
            return Err("expected tokens, as 128 or 16..512".to_owned());
        };
        if low == 0 || low > high || high > MOST_TOKENS {
            return Err(format!(
                "expected 1 to {MOST_TOKENS} tokens, and a low end up to the high end"
            ));
        }
        Ok(Self { low, high })
    }
}
