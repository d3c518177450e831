//! Server-sent events, read from pieces of any size in bounded memory.

use hyper::StatusCode;

/// The longest line of an event stream.
pub(crate) const LONGEST_LINE: usize = 1 << 20;

/// What an event says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A token, or several at once.
    Token,
    /// Anything else that is valid, as the last event with the usage.
    Other,
    /// The server reports an error.
    Error(String),
    /// The server reports that the answer's deadline passed.
    Late(String),
    /// The end of the answer.
    Done,
}

/// Why a stream is not one of events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    /// A line is longer than it may be.
    #[error("the answer has a line of more than {LONGEST_LINE} bytes")]
    LongLine,
    /// Data is no JSON object.
    #[error("an event's data is not a JSON object")]
    NoObject,
}

/// Splits a stream into events.
#[derive(Debug, Default)]
pub(crate) struct Events {
    line: Vec<u8>,
}

impl Events {
    /// Reads a piece, and gives each event to `seen`, which returns whether to read on.
    pub(crate) fn read(
        &mut self,
        mut piece: &[u8],
        mut seen: impl FnMut(Event) -> bool,
    ) -> Result<(), Malformed> {
        while let Some(end) = piece.iter().position(|byte| *byte == b'\n') {
            let (rest, next) = (&piece[..end], &piece[end + 1..]);
            self.add(rest)?;
            let event = event(&self.line)?;
            self.line.clear();
            if event.is_some_and(|event| !seen(event)) {
                return Ok(());
            }
            piece = next;
        }
        self.add(piece)
    }

    fn add(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        if self.line.len() + bytes.len() > LONGEST_LINE {
            return Err(Malformed::LongLine);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }
}

/// Returns the event of a line; none for comments, other fields and empty lines.
fn event(line: &[u8]) -> Result<Option<Event>, Malformed> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let Some(data) = line.strip_prefix(b"data:") else {
        return Ok(None);
    };
    let data = data.trim_ascii();
    if data == b"[DONE]" {
        return Ok(Some(Event::Done));
    }
    let data: serde_json::Value = serde_json::from_slice(data).map_err(|_| Malformed::NoObject)?;
    if !data.is_object() {
        return Err(Malformed::NoObject);
    }
    if let Some(error) = data.get("error").filter(|error| !error.is_null()) {
        // Answers in OpenAI's form have their status in the code.
        let is_late = error["code"] == StatusCode::GATEWAY_TIMEOUT.as_u16();
        let event = if is_late { Event::Late } else { Event::Error };
        return Ok(Some(event(message(error))));
    }
    let choice = &data["choices"][0];
    let text = choice["text"].as_str();
    let text = text.or_else(|| choice["delta"]["content"].as_str());
    // A token may have no text, such as a part of a character; and the last event may have text but no token.
    let has_token = match choice["token_ids"].as_array() {
        Some(tokens) => !tokens.is_empty(),
        None => text.is_some_and(|text| !text.is_empty()),
    };
    Ok(Some(match has_token {
        true => Event::Token,
        false => Event::Other,
    }))
}

/// Returns the message of an error as OpenAI shapes it, or the error as it is.
pub(crate) fn message(error: &serde_json::Value) -> String {
    let message = error.get("message").unwrap_or(error);
    message
        .as_str()
        .map_or_else(|| message.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(pieces: &[&[u8]]) -> Result<Vec<Event>, Malformed> {
        let (mut all, mut events) = (Vec::new(), Events::default());
        for piece in pieces {
            events.read(piece, |event| {
                let goes_on = event != Event::Done;
                all.push(event);
                goes_on
            })?;
        }
        Ok(all)
    }

    const STREAM: &[u8] = b": keep-alive\r\n\r\nevent: x\ndata: {\"choices\":[{\"text\":\"a\"}]}\r\n\r\n\
        data:{\"choices\":[{\"text\":\"\"}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n\
        data: {\"choices\":[{\"text\":\"\",\"token_ids\":[195]}]}\n\n\
        data: {\"choices\":[{\"text\":\"c\",\"token_ids\":[]}]}\n\n\
        data: {\"choices\":[],\"usage\":{}}\n\ndata: {\"error\":{\"message\":\"short\"}}\n\n\
        data: {\"error\":{\"message\":\"late\",\"code\":504}}\n\ndata: [DONE]\n\n";

    #[test]
    fn pieces_of_any_size_give_the_same_events() {
        let all = [
            Event::Token,
            Event::Other,
            Event::Token,
            Event::Token,
            Event::Other,
            Event::Other,
            Event::Error("short".to_owned()),
            Event::Late("late".to_owned()),
            Event::Done,
        ];
        for size in 1..=STREAM.len() {
            let pieces: Vec<_> = STREAM.chunks(size).collect();
            assert_eq!(events(&pieces).unwrap(), all, "{size}");
        }
    }

    #[test]
    fn line_without_an_end_is_refused_in_bounded_memory() {
        let mut stream = Events::default();
        let piece = [b'x'; 4096];
        let mut read = (0..).map(|_| stream.read(&piece, |_| true));
        let pieces = read.by_ref().take_while(Result::is_ok).count();
        assert_eq!(pieces, LONGEST_LINE / piece.len());
        drop(read);
        assert!(stream.line.capacity() <= 2 * LONGEST_LINE);
        let long = vec![b'y'; LONGEST_LINE + 1];
        assert_eq!(events(&[&long]), Err(Malformed::LongLine));
        let full = vec![b'y'; LONGEST_LINE];
        assert_eq!(events(&[&full, b"\n"]), Ok(Vec::new()));
    }

    #[test]
    fn data_that_is_no_object_is_an_error() {
        for line in [
            "data: x\n",
            "data: 1\n",
            "data: [1]\n",
            "data:\n",
            "data: {\n",
        ] {
            assert_eq!(
                events(&[line.as_bytes()]),
                Err(Malformed::NoObject),
                "{line}"
            );
        }
        let deep = format!("data: {}\n", "[".repeat(100_000));
        assert_eq!(events(&[deep.as_bytes()]), Err(Malformed::NoObject));
        let odd = events(&[b"data: {\"choices\":{\"x\":1}}\ndata: {\"error\":7}\n"]);
        assert_eq!(odd, Ok(vec![Event::Other, Event::Error("7".to_owned())]));
    }
}
