//! Pickles, decoded as far as memory snapshots need: in one pass, without recursion, in bounded memory.
//!
//! A pickle is a program for a stack machine. Its values are kept flat, and refer to each other by index, so that decoding
//! a pickle that nests deeply, or shares values many times, costs no more than its own length. Walking such a value is
//! the reader's affair: a list of `n` references to one list of `n` items has `n * n` of them. Objects of Python
//! classes are never made: they decode to [`Value::Other`], as do texts beyond the [`Word`]s, floats and large numbers.

use super::lines::broken;
use crate::trace::fault::{Fault, Location};
use crate::trace::limits::LINE_BYTES;
use crate::trace::steps;
use std::collections::HashMap;
use std::io::{BufRead, Read};

/// The first byte of a pickle of protocol 2 or later. Earlier ones look like text, and Python 3 does not write them.
pub(super) const MAGIC: u8 = 0x80;

/// A text that a snapshot's reader looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Action,
    ActiveAllocated,
    Addr,
    Address,
    Alloc,
    Blocks,
    Device,
    DeviceTraces,
    FreeRequested,
    Segments,
    Size,
    State,
    Stream,
    TimeUs,
}

const WORDS: [(&str, Word); 14] = [
    ("action", Word::Action),
    ("active_allocated", Word::ActiveAllocated),
    ("addr", Word::Addr),
    ("address", Word::Address),
    ("alloc", Word::Alloc),
    ("blocks", Word::Blocks),
    ("device", Word::Device),
    ("device_traces", Word::DeviceTraces),
    ("free_requested", Word::FreeRequested),
    ("segments", Word::Segments),
    ("size", Word::Size),
    ("state", Word::State),
    ("stream", Word::Stream),
    ("time_us", Word::TimeUs),
];
const LONGEST_WORD: usize = 16;

/// About the bytes that each takes, with the room that collections keep for growth.
const ITEM_BYTES: usize = 24;
const CONTAINER_BYTES: usize = 96;
const STACKED_BYTES: usize = 32;
const MEMO_BYTES: usize = 56;

/// A decoded value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    Int(i64),
    Word(Word),
    List(u32),
    Dict(u32),
    /// A value of another type, and not a single one of its properties.
    Other,
}

/// The values of a pickle.
#[derive(Debug)]
pub(super) struct Pickle {
    root: Value,
    /// Lists and tuples.
    lists: Vec<Vec<Value>>,
    /// The entries whose keys are words, one for each key: a later one of the same key replaces it.
    dicts: Vec<Vec<(Word, Value)>>,
    bytes: u64,
}

impl Pickle {
    pub(super) fn root(&self) -> Value {
        self.root
    }

    /// Returns the length of the pickle. It has no more items than bytes, each counted once.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the items of a list; `None` if `value` is something else.
    pub(super) fn items(&self, value: Value) -> Option<&[Value]> {
        match value {
            Value::List(list) => Some(&self.lists[list as usize]),
            _ => None,
        }
    }

    /// Returns the value of a key; `None` if `value` is no dictionary or lacks the key.
    pub(super) fn get(&self, value: Value, key: Word) -> Option<Value> {
        let Value::Dict(dict) = value else {
            return None;
        };
        let entries = &self.dicts[dict as usize];
        let found = entries.iter().position(|(name, _)| *name == key);
        steps::take(found.map_or(entries.len(), |at| at + 1));
        found.map(|at| entries[at].1)
    }
}

/// Decodes the pickle in `source`, which ends with it. Its values take at most about `most` bytes.
pub(super) fn decode(source: impl BufRead, most: usize) -> Result<Pickle, (Location, Fault)> {
    let mut machine = Machine::new(source, most);
    let root = machine.run();
    let at = machine.bytes.read;
    root.map(|root| Pickle {
        root,
        lists: machine.lists,
        dicts: machine.dicts,
        bytes: at,
    })
    .map_err(|fault| (Location::Byte(at), fault))
}

/// The bytes of a pickle, and how many were read.
struct Bytes<R> {
    source: R,
    read: u64,
}

impl<R: BufRead> Bytes<R> {
    fn next(&mut self) -> Result<u8, Fault> {
        self.array().map(|[byte]| byte)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            let buffer = self.source.fill_buf().map_err(|error| broken(&error))?;
            *byte = *buffer.first().ok_or_else(too_short)?;
            self.consume(1);
        }
        Ok(bytes)
    }

    fn consume(&mut self, bytes: usize) {
        self.source.consume(bytes);
        self.read += bytes as u64;
        steps::take(bytes);
    }

    /// Passes over the next bytes, and returns them if they may be a word.
    fn text(&mut self, length: u64) -> Result<Value, Fault> {
        let mut text = [0; LONGEST_WORD];
        let Some(text) = usize::try_from(length)
            .ok()
            .and_then(|end| text.get_mut(..end))
        else {
            self.skip(length)?;
            return Ok(Value::Other);
        };
        for byte in text.iter_mut() {
            *byte = self.next()?;
        }
        Ok(word(text))
    }

    fn skip(&mut self, mut bytes: u64) -> Result<(), Fault> {
        while bytes > 0 {
            let buffer = self.source.fill_buf().map_err(|error| broken(&error))?;
            if buffer.is_empty() {
                return Err(too_short());
            }
            let now = (buffer.len() as u64).min(bytes);
            self.consume(now as usize);
            bytes -= now;
        }
        Ok(())
    }

    /// Returns the text up to the end of the line.
    fn line(&mut self) -> Result<Vec<u8>, Fault> {
        let mut line = Vec::new();
        let mut rest = self.source.by_ref().take(LINE_BYTES as u64 + 1);
        let read = rest.read_until(b'\n', &mut line);
        self.read += read.map_err(|error| broken(&error))? as u64;
        match line.pop() {
            Some(b'\n') => Ok(line),
            _ if line.len() >= LINE_BYTES => Err(Fault::LineTooLong),
            _ => Err(too_short()),
        }
    }

    /// Refuses bytes behind the pickle; reads to the end also for the checksum of a compressed file.
    fn end(&mut self) -> Result<(), Fault> {
        let rest = self.source.fill_buf().map_err(|error| broken(&error))?;
        if rest.is_empty() {
            return Ok(());
        }
        Err(damaged("bytes follow the end"))
    }
}

/// The stack machine that a pickle is a program for.
struct Machine<R> {
    bytes: Bytes<R>,
    stack: Vec<Value>,
    /// The heights of the stack at its marks.
    marks: Vec<usize>,
    memo: HashMap<u64, Value>,
    lists: Vec<Vec<Value>>,
    dicts: Vec<Vec<(Word, Value)>>,
    /// The bytes of containers and items, which live until the end.
    kept: usize,
    most: usize,
}

impl<R: BufRead> Machine<R> {
    fn new(source: R, most: usize) -> Self {
        Self {
            bytes: Bytes { source, read: 0 },
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            lists: Vec::new(),
            dicts: Vec::new(),
            kept: 0,
            most,
        }
    }

    /// Runs the program up to its end, and returns its value.
    fn run(&mut self) -> Result<Value, Fault> {
        loop {
            let opcode = self.bytes.next()?;
            if opcode == b'.' {
                let root = self.pop()?;
                self.bytes.end()?;
                return Ok(root);
            }
            self.step(opcode)?;
            if self.held() > self.most {
                let (what, most) = ("bytes of decoded values", self.most as u64);
                return Err(Fault::TooMany { what, most });
            }
        }
    }

    /// About the bytes that all values take.
    fn held(&self) -> usize {
        let stacked = self.stack.len() + self.marks.len();
        self.kept + STACKED_BYTES * stacked + MEMO_BYTES * self.memo.len()
    }

    fn step(&mut self, opcode: u8) -> Result<(), Fault> {
        match opcode {
            // The protocol, and the length of a frame.
            0x80 => self.bytes.skip(1),
            0x95 => self.bytes.skip(8),
            b'(' => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'0' => self.pop_or_mark(),
            b'1' => self.pop_to_mark().map(drop),
            b'2' => self.top().map(|top| self.stack.push(top)),
            b'g' | b'h' | b'j' => self.recall(opcode),
            b'p' | b'q' | b'r' | 0x94 => self.memorize(opcode),
            b'N' | 0x88 | 0x89 => self.push(Value::Other),
            b'I' | b'L' | b'J' | b'K' | b'M' | 0x8a | 0x8b => self.integer(opcode),
            b'F' | b'G' => self.float(opcode),
            b'S' | b'V' | b'T' | b'X' | b'U' | 0x8c | 0x8d => self.text(opcode),
            b'B' | b'C' | 0x8e | 0x96 => self.binary(opcode),
            b']' | b')' | b'l' | b't' | 0x85..=0x87 => self.list(opcode),
            b'a' | b'e' => self.append(opcode),
            b'}' | b'd' => self.dict(opcode),
            b's' | b'u' => self.set_items(opcode),
            _ => self.object(opcode),
        }
    }

    // ---- the stack ---------------------------------------------------------------------------------

    fn push(&mut self, value: Value) -> Result<(), Fault> {
        self.stack.push(value);
        Ok(())
    }

    /// Returns the height of the stack at the last mark, below which nothing is taken.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn top(&self) -> Result<Value, Fault> {
        let above = self.stack.get(self.floor()..).unwrap_or_default();
        above.last().copied().ok_or_else(underflow)
    }

    fn pop(&mut self) -> Result<Value, Fault> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn pop_or_mark(&mut self) -> Result<(), Fault> {
        if self.stack.len() > self.floor() {
            self.stack.pop();
            return Ok(());
        }
        self.marks.pop().map(drop).ok_or_else(underflow)
    }

    /// Takes the last mark and all values above it.
    fn pop_to_mark(&mut self) -> Result<Vec<Value>, Fault> {
        let mark = self.marks.pop().ok_or_else(underflow)?;
        let items = self.stack.split_off(mark);
        steps::take(items.len());
        Ok(items)
    }

    // ---- the memo ----------------------------------------------------------------------------------

    fn memo_index(&mut self, opcode: u8) -> Result<u64, Fault> {
        match opcode {
            b'g' | b'p' => {
                let line = self.bytes.line()?;
                let index = parse(&line).and_then(|index| u64::try_from(index).ok());
                index.ok_or_else(|| damaged("a memo index is not a number"))
            }
            b'h' | b'q' => self.bytes.next().map(u64::from),
            b'j' | b'r' => self.bytes.array().map(u32::from_le_bytes).map(u64::from),
            _ => Ok(self.memo.len() as u64),
        }
    }

    fn recall(&mut self, opcode: u8) -> Result<(), Fault> {
        let index = self.memo_index(opcode)?;
        let value = self.memo.get(&index).copied();
        self.push(value.ok_or_else(|| damaged("it reads a missing memo entry"))?)
    }

    fn memorize(&mut self, opcode: u8) -> Result<(), Fault> {
        let index = self.memo_index(opcode)?;
        let top = self.top()?;
        self.memo.insert(index, top);
        Ok(())
    }

    // ---- plain values ------------------------------------------------------------------------------

    fn integer(&mut self, opcode: u8) -> Result<(), Fault> {
        let value = match opcode {
            b'J' => Value::Int(i32::from_le_bytes(self.bytes.array()?).into()),
            b'K' => Value::Int(self.bytes.next()?.into()),
            b'M' => Value::Int(u16::from_le_bytes(self.bytes.array()?).into()),
            0x8a => {
                let length = self.bytes.next()?;
                self.long(length.into())?
            }
            0x8b => {
                let length = self.length_of_4(true)?;
                self.long(length)?
            }
            _ => {
                let line = self.bytes.line()?;
                let digits = line.strip_suffix(b"L").unwrap_or(&line);
                let is_number = |byte: &u8| byte.is_ascii_digit() || *byte == b'-';
                if digits.is_empty() || !digits.iter().all(is_number) {
                    return Err(damaged("a number has no digits"));
                }
                match (opcode, digits) {
                    // How protocols before 2 write `False` and `True`.
                    (b'I', b"00" | b"01") => Value::Other,
                    _ => parse(digits).map_or(Value::Other, Value::Int),
                }
            }
        };
        self.push(value)
    }

    /// Decodes a number of this many bytes, in two's complement. Bytes beyond 8 may repeat its sign.
    fn long(&mut self, length: u64) -> Result<Value, Fault> {
        let mut bytes = [0; 8];
        let mut sign = 0;
        let mut fits = true;
        for at in 0..length {
            let byte = self.bytes.next()?;
            match bytes.get_mut(at as usize) {
                Some(low) => {
                    *low = byte;
                    sign = if byte & 0x80 == 0 { 0 } else { 0xff };
                }
                None => fits &= byte == sign,
            }
        }
        bytes[length.min(8) as usize..].fill(sign);
        let value = Value::Int(i64::from_le_bytes(bytes));
        Ok(if fits { value } else { Value::Other })
    }

    fn float(&mut self, opcode: u8) -> Result<(), Fault> {
        match opcode {
            b'G' => self.bytes.skip(8)?,
            _ => drop(self.bytes.line()?),
        }
        self.push(Value::Other)
    }

    fn text(&mut self, opcode: u8) -> Result<(), Fault> {
        let length = match opcode {
            b'S' | b'V' => {
                let line = self.bytes.line()?;
                return self.push(word(line.trim_ascii()));
            }
            b'U' | 0x8c => self.bytes.next()?.into(),
            b'T' => self.length_of_4(true)?,
            b'X' => self.length_of_4(false)?,
            _ => u64::from_le_bytes(self.bytes.array()?),
        };
        let text = self.bytes.text(length)?;
        self.push(text)
    }

    fn binary(&mut self, opcode: u8) -> Result<(), Fault> {
        let length = match opcode {
            b'C' => self.bytes.next()?.into(),
            b'B' => self.length_of_4(false)?,
            _ => u64::from_le_bytes(self.bytes.array()?),
        };
        self.bytes.skip(length)?;
        self.push(Value::Other)
    }

    fn length_of_4(&mut self, is_signed: bool) -> Result<u64, Fault> {
        let length = u32::from_le_bytes(self.bytes.array()?);
        if is_signed && length > i32::MAX as u32 {
            return Err(damaged("a length is negative"));
        }
        Ok(length.into())
    }

    // ---- containers --------------------------------------------------------------------------------

    fn list(&mut self, opcode: u8) -> Result<(), Fault> {
        let items = match opcode {
            b'l' | b't' => self.pop_to_mark()?,
            0x85..=0x87 => {
                let length = usize::from(opcode - 0x84);
                let mut items = Vec::with_capacity(length);
                for _ in 0..length {
                    items.push(self.pop()?);
                }
                items.reverse();
                items
            }
            _ => Vec::new(),
        };
        self.kept += CONTAINER_BYTES + ITEM_BYTES * items.len();
        let list = Value::List(self.lists.len() as u32);
        self.lists.push(items);
        self.push(list)
    }

    fn append(&mut self, opcode: u8) -> Result<(), Fault> {
        let items = match opcode {
            b'e' => self.pop_to_mark()?,
            _ => vec![self.pop()?],
        };
        self.kept += ITEM_BYTES * items.len();
        match self.top()? {
            Value::List(list) => self.lists[list as usize].extend(items),
            Value::Other => {}
            _ => return Err(damaged("it appends to a value that is not a list")),
        }
        Ok(())
    }

    fn dict(&mut self, opcode: u8) -> Result<(), Fault> {
        let items = match opcode {
            b'd' => self.pop_to_mark()?,
            _ => Vec::new(),
        };
        self.kept += CONTAINER_BYTES;
        let dict = Value::Dict(self.dicts.len() as u32);
        self.dicts.push(Vec::new());
        self.push(dict)?;
        self.insert(&items)
    }

    fn set_items(&mut self, opcode: u8) -> Result<(), Fault> {
        let items = match opcode {
            b'u' => self.pop_to_mark()?,
            _ => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
        };
        self.insert(&items)
    }

    /// Adds keys and values by turns to the dictionary on top of the stack.
    fn insert(&mut self, items: &[Value]) -> Result<(), Fault> {
        if !items.len().is_multiple_of(2) {
            return Err(damaged("a key has no value"));
        }
        let dict = match self.top()? {
            Value::Dict(dict) => dict as usize,
            Value::Other => return Ok(()),
            _ => return Err(damaged("it adds a key to a value that is not a dictionary")),
        };
        for pair in items.chunks_exact(2) {
            if let [Value::Word(key), value] = pair {
                let entries = &mut self.dicts[dict];
                let known = entries.iter_mut().find(|(name, _)| name == key);
                steps::take(WORDS.len());
                match known {
                    Some((_, known)) => *known = *value,
                    None => {
                        entries.push((*key, *value));
                        self.kept += ITEM_BYTES;
                    }
                }
            }
        }
        Ok(())
    }

    // ---- objects of Python classes, which are not made ---------------------------------------------

    fn object(&mut self, opcode: u8) -> Result<(), Fault> {
        match opcode {
            // A class by module and name, in two lines.
            b'c' => {
                self.bytes.line()?;
                self.bytes.line()?;
            }
            b'i' => {
                self.bytes.line()?;
                self.bytes.line()?;
                self.pop_to_mark()?;
            }
            b'o' | 0x91 => drop(self.pop_to_mark()?),
            // A class by name; what makes an object of its arguments; an id of an object elsewhere.
            b'R' | 0x93 | 0x81 => {
                self.pop()?;
                self.pop()?;
            }
            0x92 => {
                self.pop()?;
                self.pop()?;
                self.pop()?;
            }
            b'b' => {
                self.pop()?;
                self.pop()?;
            }
            b'Q' => drop(self.pop()?),
            b'P' => drop(self.bytes.line()?),
            // An empty set, and items for the set below their mark.
            0x8f => {}
            0x90 => {
                self.pop_to_mark()?;
                return Ok(());
            }
            _ => {
                return Err(damaged(&format!(
                    "it has the opcode {opcode:#04x}, which snapshots do not use"
                )));
            }
        }
        self.push(Value::Other)
    }
}

fn word(text: &[u8]) -> Value {
    let known = WORDS.iter().find(|(name, _)| name.as_bytes() == text);
    known.map_or(Value::Other, |(_, word)| Value::Word(*word))
}

fn parse(digits: &[u8]) -> Option<i64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn damaged(reason: &str) -> Fault {
    let reason = reason.to_owned();
    Fault::Pickle { reason }
}

fn underflow() -> Fault {
    damaged("it pops an empty stack")
}

fn too_short() -> Fault {
    damaged("it ends too early")
}

#[cfg(test)]
mod tests;
