//! Requests and answers in the shape of OpenAI's completions.

use super::Failure;
use crate::engine::Finish;
use crate::model::{Sampling, Shape};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Below this temperature, the most likely token is chosen.
const COLD: f32 = 1e-3;

/// A request. Further fields are in `rest`.
#[derive(Debug, Deserialize)]
struct Body {
    model: Option<String>,
    prompt: Value,
    max_tokens: Option<u64>,
    temperature: Option<f32>,
    seed: Option<i64>,
    #[serde(default)]
    stream: bool,
    stream_options: Option<StreamOptions>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Debug, Default, Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

/// Returns the value of a field that changes nothing, if the field is known.
fn neutral(field: &str) -> Option<Value> {
    Some(match field {
        "n" | "best_of" => json!(1),
        "top_p" => json!(1.0),
        "frequency_penalty" | "presence_penalty" => json!(0.0),
        "echo" => json!(false),
        "logprobs" | "stop" | "suffix" => Value::Null,
        "logit_bias" => json!({}),
        _ => return None,
    })
}

/// A request that is valid for the model.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Completion {
    pub(super) prompt: Vec<u32>,
    pub(super) max_tokens: usize,
    pub(super) sampling: Sampling,
    pub(super) is_streamed: bool,
    pub(super) wants_usage: bool,
}

impl Completion {
    /// # Errors
    /// Returns a failure with status 400 that names the field.
    pub(super) fn parse(bytes: &[u8], model: &str, shape: &Shape) -> Result<Self, Failure> {
        let body: Body = serde_json::from_slice(bytes)
            .map_err(|error| Failure::invalid(format!("the body is no valid request: {error}")))?;
        if let Some(name) = body.model.filter(|name| name != model) {
            let known = name.chars().take(100).collect::<String>();
            let message = format!("there is no model {known:?}; the model is {model:?}");
            return Err(Failure::new(axum::http::StatusCode::NOT_FOUND, message));
        }
        for (field, value) in &body.rest {
            let name: String = field.chars().take(100).collect();
            match neutral(field) {
                _ if field == "user" => {}
                Some(_) if value.is_null() => {}
                Some(neutral)
                    if neutral == *value
                        || as_number(&neutral) == as_number(value) && neutral.is_number() => {}
                Some(neutral) => {
                    let message = format!(
                        "{name} is not supported except for the value {neutral}; leave it out"
                    );
                    return Err(Failure::invalid(message));
                }
                None => {
                    let message = format!("unknown field {name:?}; leave it out");
                    return Err(Failure::invalid(message));
                }
            }
        }
        let prompt = prompt(&body.prompt, shape)?;
        let max_tokens = body.max_tokens.unwrap_or(16);
        let all = (prompt.len() as u64).saturating_add(max_tokens);
        if max_tokens == 0 || all > shape.context as u64 {
            let message = format!(
                "a prompt of {} tokens and max_tokens of {max_tokens} do not fit the context of {}; max_tokens is at least \
                 1, and both together are at most the context",
                prompt.len(),
                shape.context
            );
            return Err(Failure::invalid(message));
        }
        let temperature = body.temperature.unwrap_or(0.0);
        if !(0.0..=2.0).contains(&temperature) {
            let message = format!("the temperature of {temperature} is not from 0 to 2");
            return Err(Failure::invalid(message));
        }
        // A logit divided by a smaller temperature may not be finite.
        let temperature = if temperature < COLD { 0.0 } else { temperature };
        Ok(Self {
            prompt,
            max_tokens: max_tokens as usize,
            sampling: Sampling {
                temperature,
                seed: body
                    .seed
                    .map_or_else(|| fastrand::u64(..), |seed| seed as u64),
            },
            is_streamed: body.stream,
            wants_usage: body.stream_options.unwrap_or_default().include_usage,
        })
    }
}

/// Returns the tokens of a prompt: text, or an array of token ids.
fn prompt(value: &Value, shape: &Shape) -> Result<Vec<u32>, Failure> {
    let last = shape.vocabulary - 1;
    let tokens = match value {
        Value::String(text) if shape.vocabulary == 256 => text.bytes().map(u32::from).collect(),
        Value::String(_) => {
            let message = "the model has no tokenizer; send the prompt as an array of token ids";
            return Err(Failure::invalid(message));
        }
        Value::Array(tokens) => {
            let token = |value: &Value| value.as_u64().filter(|token| *token <= last as u64);
            let tokens: Option<Vec<u32>> = tokens
                .iter()
                .map(|value| token(value).map(|token| token as u32))
                .collect();
            tokens.ok_or_else(|| {
                Failure::invalid(format!(
                    "the prompt has an element that is no token: tokens are from 0 to {last}"
                ))
            })?
        }
        _ => {
            return Err(Failure::invalid(
                "the prompt is neither a text nor an array of token ids",
            ));
        }
    };
    match tokens.is_empty() {
        true => Err(Failure::invalid(
            "the prompt is empty; send at least one token",
        )),
        false => Ok(tokens),
    }
}

fn as_number(value: &Value) -> Option<f64> {
    value.as_f64()
}

/// The fields that all parts of one answer share.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
}

impl Answer {
    /// Returns an answer, or a part of a streamed one.
    pub(super) fn part(&self, text: &str, tokens: &[u32], finish: Option<Finish>) -> Value {
        let reason = finish.map(|finish| match finish {
            Finish::Length => "length",
            Finish::Deadline => "deadline",
        });
        let choice = json!({
            "index": 0,
            "text": text,
            "token_ids": tokens,
            "logprobs": null,
            "finish_reason": reason,
        });
        self.with(json!([choice]))
    }

    /// Returns the last part of a streamed answer, which has the usage.
    pub(super) fn usage(&self, usage: Value) -> Value {
        let mut value = self.with(json!([]));
        value["usage"] = usage;
        value
    }

    fn with(&self, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }
}

/// Returns the usage of a request, in tokens.
pub(super) fn usage(prompt: usize, answer: usize, cached: usize) -> Value {
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": { "cached_tokens": cached },
    })
}

/// Turns tokens that are bytes into text. A character may be split among tokens; invalid bytes become U+FFFD.
#[derive(Debug)]
pub(super) struct Text {
    has_bytes: bool,
    pending: Vec<u8>,
}

impl Text {
    pub(super) fn new(shape: &Shape) -> Self {
        Self {
            has_bytes: shape.vocabulary == 256,
            pending: Vec::new(),
        }
    }

    /// Returns the text that is complete with this token.
    pub(super) fn push(&mut self, token: u32) -> String {
        let mut text = String::new();
        if self.has_bytes {
            self.pending.push(token as u8);
            let mut kept = 0;
            for chunk in self.pending.utf8_chunks() {
                text.push_str(chunk.valid());
                kept += chunk.valid().len();
                // An invalid part at the end may be the beginning of a character.
                let invalid = chunk.invalid();
                let at_end = kept + invalid.len() == self.pending.len();
                let is_beginning = matches!(
                    std::str::from_utf8(invalid).map_err(|error| error.error_len()),
                    Err(None)
                );
                if invalid.is_empty() || at_end && is_beginning {
                    break;
                }
                text.push(char::REPLACEMENT_CHARACTER);
                kept += invalid.len();
            }
            self.pending.drain(..kept);
        }
        text
    }

    /// Returns the rest of the text.
    pub(super) fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.pending);
        String::from_utf8_lossy(&rest).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        layers: 1,
        width: 4,
        heads: 1,
        vocabulary: 256,
        context: 32,
    };

    fn parse(body: &str) -> Result<Completion, Failure> {
        Completion::parse(body.as_bytes(), "m", &SHAPE)
    }

    #[test]
    fn prompt_is_text_or_tokens() {
        let text = parse(
            r#"{"prompt": "hi", "max_tokens": 3, "n": 1, "top_p": 1, "user": "u", "stop": null}"#,
        );
        let tokens =
            parse(r#"{"model": "m", "prompt": [104, 105], "max_tokens": 3, "seed": 1}"#).unwrap();
        let text = text.unwrap();
        assert_eq!((&text.prompt, text.max_tokens), (&vec![104, 105], 3));
        assert_eq!(text.prompt, tokens.prompt);
        assert_eq!(tokens.sampling.seed, 1);
        // The smallest number would turn each logit into an infinite one.
        for temperature in ["-0.0", "1e-45", "1e-400", "0.0009"] {
            let body = format!(r#"{{"prompt": "x", "temperature": {temperature}}}"#);
            assert_eq!(parse(&body).unwrap().sampling.temperature, 0.0, "{body}");
        }
    }

    #[test]
    fn invalid_requests_are_refused_with_the_field() {
        for (body, expected) in [
            ("", "no valid request"),
            ("[]", "no valid request"),
            (r#"{"max_tokens": 3}"#, "prompt"),
            (r#"{"prompt": ""}"#, "empty"),
            (r#"{"prompt": [256]}"#, "no token"),
            (r#"{"prompt": 7}"#, "neither"),
            (r#"{"prompt": [-1]}"#, "no token"),
            (r#"{"prompt": "x", "max_tokens": 0}"#, "at least"),
            (r#"{"prompt": "x", "max_tokens": 32}"#, "context of 32"),
            (
                r#"{"prompt": "x", "max_tokens": 18446744073709551615}"#,
                "context of 32",
            ),
            (r#"{"prompt": "x", "temperature": 3}"#, "temperature"),
            (r#"{"prompt": "x", "temperature": -1e-9}"#, "temperature"),
            (r#"{"prompt": "x", "temperature": 1e39}"#, "temperature"),
            (r#"{"prompt": "x", "temperature": 1e999}"#, "out of range"),
            (r#"{"prompt": "x", "temperature": NaN}"#, "no valid request"),
            (r#"{"prompt": "x", "temperature": "1"}"#, "no valid request"),
            (r#"{"prompt": "x", "max_tokens": -1}"#, "-1"),
            (r#"{"prompt": "x", "max_tokens": 1e99}"#, "no valid request"),
            (r#"{"prompt": "x", "max_tokens": 2.5}"#, "2.5"),
            (r#"{"prompt": "x", "seed": 1e30}"#, "no valid request"),
            (r#"{"prompt": "x", "prompt": "y"}"#, "duplicate field"),
            (r#"{"prompt": [1.5]}"#, "no token"),
            (r#"{"prompt": ["x"]}"#, "no token"),
            (r#"{"prompt": [[1]]}"#, "no token"),
            (r#"{"prompt": null}"#, "neither"),
            (r#"{"prompt": "x", "n": 1.5}"#, "n is not supported"),
            (r#"{"prompt": "x", "n": "1"}"#, "n is not supported"),
            (r#"{"prompt": "x", "stream": "yes"}"#, "no valid request"),
            (r#"{"prompt": "x", "stop": "a"}"#, "stop is not supported"),
            (r#"{"prompt": "\ud800"}"#, "no valid request"),
            (r#"{"prompt": "x"} {}"#, "no valid request"),
            (r#"{"prompt": "x", "n": 2}"#, "n is not supported"),
            (r#"{"prompt": "x", "stop": ["a"]}"#, "stop is not supported"),
            (r#"{"prompt": "x", "promt": 2}"#, "unknown field"),
            (r#"{"prompt": "x", "model": "other"}"#, "no model"),
        ] {
            let failure = parse(body).unwrap_err();
            assert!(failure.status.is_client_error());
            assert!(
                failure.message.contains(expected),
                "{body}: {}",
                failure.message
            );
        }
        for nesting in ["[", "{\"a\":"] {
            for field in ["prompt", "other"] {
                let nested = format!("{{\"{field}\": {}", nesting.repeat(100_000));
                assert!(parse(&nested).is_err());
            }
        }
        let invalid = Completion::parse(b"{\"prompt\": \"\xff\"}", "m", &SHAPE);
        assert!(invalid.unwrap_err().message.contains("no valid request"));
    }

    #[test]
    fn characters_may_be_split_among_tokens() {
        let mut text = Text::new(&SHAPE);
        let mut all = String::new();
        let bytes = "aé€😀"
            .as_bytes()
            .iter()
            .chain(&[0xff, 0xe2, 0x28, 0xf0, 0x9f]);
        for byte in bytes {
            all.push_str(&text.push(u32::from(*byte)));
        }
        all.push_str(&text.finish());
        assert_eq!(all, "aé€😀\u{fffd}\u{fffd}(\u{fffd}");
    }
}
