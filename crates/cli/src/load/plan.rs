//! What requests are sent, and when: drawn from a seed, in the order of arrival.

use crate::options::{Lengths, Load, PromptForm};
use crate::read::arrivals::Arrival;
use fastrand::Rng;
use std::time::Duration;

/// The lengths unless the options have others.
const PROMPT: Lengths = Lengths::from(16, 256);
const ANSWER: Lengths = Lengths::from(16, 128);
/// The longest time after which a client disconnects that does not wait for the answer's beginning.
const LONGEST_PATIENCE: Duration = Duration::from_millis(200);

/// The point at which a client disconnects, unless the answer has ended before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Abandon {
    /// After this time, wherever the answer is.
    After(Duration),
    /// After this many tokens; with 0, after the status.
    AfterTokens(u32),
}

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Planned {
    /// The token ids of the prompt.
    pub(crate) prompt: Vec<u8>,
    pub(crate) max_tokens: u32,
    /// The index of the key.
    pub(crate) key: Option<usize>,
    pub(crate) abandon: Option<Abandon>,
    pub(crate) is_slow: bool,
    /// The seed of the pauses between attempts.
    pub(crate) seed: u64,
}

/// A sequence of requests.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    random: Rng,
    /// The seed of the tokens that prompts have in common.
    prefix: u64,
    prompt: Option<Lengths>,
    answer: Option<Lengths>,
    shared: f64,
    abandon: f64,
    slow: f64,
    weights: Vec<f64>,
}

impl Plan {
    /// Returns the plan of one client, or of all arrivals. Plans of different numbers share only the common prefix.
    pub(crate) fn new(options: &Load, number: u32) -> Self {
        let mut seeds = Rng::with_seed(options.seed);
        let prefix = seeds.u64(..);
        Self {
            random: Rng::with_seed(seeds.u64(..).wrapping_add(u64::from(number))),
            prefix,
            prompt: options.prompt_tokens,
            answer: options.max_tokens,
            shared: options.shared_prefix,
            abandon: options.abandon,
            slow: options.slow,
            weights: options.keys.iter().map(|key| key.weight).collect(),
        }
    }

    /// Draws the time between two arrivals.
    pub(crate) fn pause(&mut self, rate: f64) -> Duration {
        // `f64` draws less than 1, so the logarithm is finite.
        Duration::from_secs_f64(-(1.0 - self.random.f64()).ln() / rate)
    }

    /// Draws the next request, with the lengths of an arrival if there is one.
    pub(crate) fn draw(&mut self, arrival: Option<Arrival>) -> Planned {
        let recorded = arrival.map(|arrival| arrival.prompt_tokens);
        let length = self.length(self.prompt, PROMPT, recorded) as usize;
        let is_shared = self.random.f64() < self.shared;
        let common = if is_shared { length.div_ceil(2) } else { 0 };
        let mut prefix = Rng::with_seed(self.prefix);
        let common = (0..common).map(|_| prefix.u8(..));
        let mut prompt: Vec<_> = common.collect();
        prompt.resize_with(length, || self.random.u8(..));
        let recorded = arrival.map(|arrival| arrival.answer_tokens);
        let max_tokens = self.length(self.answer, ANSWER, recorded);
        let abandons = self.random.f64() < self.abandon;
        Planned {
            prompt,
            max_tokens,
            key: self.draw_key(),
            abandon: abandons.then(|| self.draw_point(max_tokens)),
            is_slow: self.random.f64() < self.slow,
            seed: self.random.u64(..),
        }
    }

    fn length(&mut self, range: Option<Lengths>, standard: Lengths, recorded: Option<u32>) -> u32 {
        match (recorded, range) {
            (Some(tokens), None) => tokens,
            (Some(tokens), Some(range)) => range.nearest(tokens),
            (None, range) => range.unwrap_or(standard).draw(&mut self.random),
        }
    }

    fn draw_key(&mut self) -> Option<usize> {
        let last = self.weights.len().checked_sub(1)?;
        let sum: f64 = self.weights.iter().sum();
        let mut point = self.random.f64() * sum;
        let key = self.weights.iter().position(|weight| {
            point -= weight;
            point < 0.0
        });
        Some(key.unwrap_or(last))
    }

    /// One client in four does not wait for the beginning of the answer.
    fn draw_point(&mut self, max_tokens: u32) -> Abandon {
        if self.random.u8(..4) == 0 {
            Abandon::After(LONGEST_PATIENCE.mul_f64(self.random.f64()))
        } else {
            Abandon::AfterTokens(self.random.u32(..max_tokens))
        }
    }
}

impl Planned {
    /// Returns the body of the request.
    pub(crate) fn body(&self, model: &str, form: PromptForm, is_streamed: bool) -> String {
        let prompt = match form {
            PromptForm::Ids => serde_json::json!(self.prompt),
            PromptForm::Text => {
                let letter = |token: &u8| char::from(b'a' + token % 26);
                serde_json::json!(self.prompt.iter().map(letter).collect::<String>())
            }
        };
        let body = serde_json::json!({
            "model": model,
            "prompt": prompt,
            "max_tokens": self.max_tokens,
            "stream": is_streamed,
        });
        body.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn options(arguments: &[&str]) -> Load {
        let first = ["load", "http://localhost:1"];
        Load::try_parse_from([&first, arguments].concat()).unwrap()
    }

    fn requests(options: &Load, number: u32) -> Vec<Planned> {
        let mut plan = Plan::new(options, number);
        (0..2000).map(|_| plan.draw(None)).collect()
    }

    #[test]
    fn one_seed_gives_the_same_requests_and_another_gives_others() {
        let one = options(&["--abandon=0.5", "--slow=0.5", "--key=a", "--key=b"]);
        let other = options(&["--abandon=0.5", "--slow=0.5", "--seed=2"]);
        assert_eq!(requests(&one, 0), requests(&one, 0));
        assert_ne!(requests(&one, 0), requests(&one, 1));
        assert_ne!(requests(&one, 0)[0].prompt, requests(&other, 0)[0].prompt);
    }

    #[test]
    fn lengths_cover_their_range_with_both_ends() {
        let all = requests(&options(&["--prompt-tokens=3..5", "--max-tokens=7"]), 0);
        let lengths: std::collections::BTreeSet<_> =
            all.iter().map(|request| request.prompt.len()).collect();
        assert_eq!(lengths.into_iter().collect::<Vec<_>>(), [3, 4, 5]);
        assert!(all.iter().all(|request| request.max_tokens == 7));
        for text in ["", "0", "1..", "..2", "3..2", "-1", "1048577", "1...2"] {
            assert!(text.parse::<Lengths>().is_err(), "{text}");
        }
    }

    #[test]
    fn lengths_of_arrivals_are_within_the_ranges_of_the_options() {
        let arrival = Arrival {
            at: Duration::ZERO,
            prompt_tokens: 5000,
            answer_tokens: 3,
        };
        let lengths = |arguments: &[&str]| {
            let planned = Plan::new(&options(arguments), 0).draw(Some(arrival));
            (planned.prompt.len(), planned.max_tokens)
        };
        assert_eq!(lengths(&[]), (5000, 3));
        assert_eq!(
            lengths(&["--prompt-tokens=1..96", "--max-tokens=4..9"]),
            (96, 4)
        );
    }

    /// The shares of 2,000 draws are within five standard deviations.
    #[test]
    fn shares_and_weights_are_those_of_the_options() {
        let arguments = ["--abandon=0.2", "--slow=0.5", "--key=a=3", "--key=b=1"];
        let all = requests(&options(&arguments), 0);
        let count = |is: &dyn Fn(&Planned) -> bool| all.iter().filter(|one| is(one)).count();
        assert!((310..490).contains(&count(&|one| one.abandon.is_some())));
        assert!((890..1110).contains(&count(&|one| one.is_slow)));
        assert!((1400..1600).contains(&count(&|one| one.key == Some(0))));
        let early = count(&|one| matches!(one.abandon, Some(Abandon::After(_))));
        assert!(early > 0 && early < count(&|one| one.abandon.is_some()));
    }

    #[test]
    fn shared_prompts_have_their_first_half_in_common() {
        let shared = options(&["--shared-prefix=1", "--prompt-tokens=64"]);
        let all = [requests(&shared, 0), requests(&shared, 1)].concat();
        let first = &all[0].prompt[..32];
        assert!(all.iter().all(|one| one.prompt[..32] == *first));
        assert!(
            all[1..]
                .iter()
                .all(|one| one.prompt[32..] != all[0].prompt[32..])
        );
        let apart = requests(&options(&["--prompt-tokens=64"]), 0);
        assert!(
            apart[1..]
                .iter()
                .all(|one| one.prompt[..32] != apart[0].prompt[..32])
        );
    }

    #[test]
    fn arrivals_have_the_rate() {
        let mut plan = Plan::new(&options(&[]), 0);
        let sum: Duration = (0..10_000).map(|_| plan.pause(100.0)).sum();
        // 100 s, and five standard deviations of 1 s each
        assert!((95.0..105.0).contains(&sum.as_secs_f64()), "{sum:?}");
    }

    #[test]
    fn body_is_as_openai_shapes_it() {
        let request = Planned {
            prompt: vec![0, 25, 26, 255],
            max_tokens: 5,
            key: None,
            abandon: None,
            is_slow: false,
            seed: 0,
        };
        let parsed = |form| -> serde_json::Value {
            serde_json::from_str(&request.body("m", form, true)).unwrap()
        };
        assert_eq!(
            parsed(PromptForm::Ids),
            serde_json::json!({"model": "m", "prompt": [0, 25, 26, 255], "max_tokens": 5, "stream": true})
        );
        assert_eq!(parsed(PromptForm::Text)["prompt"], "azav");
    }
}
