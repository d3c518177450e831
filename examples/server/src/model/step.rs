//! One step: which rows are computed, and where their data lies in the activation.

use super::Shape;
use crate::kernels::{Activation, Span};
use std::ops::Range;

/// A token to compute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) token: u32,
    pub(crate) position: u32,
    /// The index of the sequence in the step.
    pub(crate) sequence: usize,
    /// How the token after this one is chosen, for the last row of a sequence.
    pub(crate) sampling: Option<Sampling>,
}

/// How a token is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sampling {
    /// With 0, the most likely token is chosen.
    pub(crate) temperature: f32,
    pub(crate) seed: u64,
}

/// The rows of a step, and the pages of their sequences.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepPlan {
    pub(crate) rows: Vec<Row>,
    /// The addresses of the pages of each sequence.
    pub(crate) tables: Vec<Vec<u64>>,
}

/// The largest step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) rows: usize,
    pub(crate) sequences: usize,
    /// The pages of one sequence.
    pub(crate) pages: usize,
}

/// Where the data of a step lies, as ranges of bytes in its activation. `head` is the part that the host writes.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) head: Range<u64>,
    tables: Range<u64>,
    seeds: Range<u64>,
    tokens: Range<u64>,
    positions: Range<u64>,
    /// For each row, where the table of its sequence begins.
    table_starts: Range<u64>,
    /// The rows that a token is chosen for.
    chosen: Range<u64>,
    temperatures: Range<u64>,
    /// The tokens that were chosen.
    pub(crate) answers: Range<u64>,
    hidden: Range<u64>,
    inner: Range<u64>,
    qkv: Range<u64>,
    wide: Range<u64>,
    last: Range<u64>,
    normed: Range<u64>,
    logits: Range<u64>,
    pub(crate) end: u64,
}

impl Layout {
    fn new(shape: &Shape, rows: usize, chosen: usize, entries: usize) -> Self {
        let mut end = 0;
        let mut part = |elements: usize, size: usize| {
            let begin = end;
            let bytes = (elements * size) as u64;
            end = (begin + bytes).next_multiple_of(256);
            begin..begin + bytes
        };
        let (width, vocabulary) = (shape.width, shape.vocabulary);
        let tables = part(entries, 8);
        let seeds = part(chosen, 8);
        let tokens = part(rows, 4);
        let positions = part(rows, 4);
        let table_starts = part(rows, 4);
        let chosen_rows = part(chosen, 4);
        let temperatures = part(chosen, 4);
        let head = 0..temperatures.end;
        Self {
            head,
            tables,
            seeds,
            tokens,
            positions,
            table_starts,
            chosen: chosen_rows,
            temperatures,
            answers: part(chosen, 4),
            hidden: part(rows * width, 4),
            inner: part(rows * width, 4),
            qkv: part(rows * 3 * width, 4),
            wide: part(rows * 4 * width, 4),
            last: part(chosen * width, 4),
            normed: part(chosen * width, 4),
            logits: part(chosen * vocabulary, 4),
            end,
        }
    }

    /// Returns the bytes that the largest step needs.
    pub(crate) fn largest(shape: &Shape, limits: Limits) -> u64 {
        let Limits {
            rows,
            sequences,
            pages,
        } = limits;
        Self::new(shape, rows, sequences, sequences * pages).end
    }
}

impl StepPlan {
    fn chosen(&self) -> impl Iterator<Item = (usize, Sampling)> {
        let rows = self.rows.iter().enumerate();
        rows.filter_map(|(index, row)| Some((index, row.sampling?)))
    }

    /// Returns where the data of this step lies.
    pub(crate) fn layout(&self, shape: &Shape) -> Layout {
        let entries = self.tables.iter().map(Vec::len).sum();
        Layout::new(shape, self.rows.len(), self.chosen().count(), entries)
    }

    /// Returns the bytes of the head, which describe the rows to the device.
    pub(crate) fn head(&self, layout: &Layout) -> Vec<u8> {
        let mut bytes = vec![0; layout.head.end as usize];
        let mut put = |range: &Range<u64>, items: &[u8]| {
            bytes[range.start as usize..range.end as usize].copy_from_slice(items);
        };
        let mut starts = Vec::new();
        let mut entries: Vec<u64> = Vec::new();
        for table in &self.tables {
            starts.push(entries.len() as u32);
            entries.extend(table);
        }
        let of_rows = |item: &dyn Fn(&Row) -> u32| self.rows.iter().map(item).collect::<Vec<u32>>();
        let chosen: Vec<u32> = self.chosen().map(|(row, _)| row as u32).collect();
        let seeds: Vec<u64> = self.chosen().map(|(_, one)| one.seed).collect();
        let temperatures: Vec<f32> = self.chosen().map(|(_, one)| one.temperature).collect();
        put(&layout.tables, bytemuck::cast_slice(&entries));
        put(&layout.seeds, bytemuck::cast_slice(&seeds));
        put(
            &layout.tokens,
            bytemuck::cast_slice(&of_rows(&|row| row.token)),
        );
        put(
            &layout.positions,
            bytemuck::cast_slice(&of_rows(&|row| row.position)),
        );
        put(
            &layout.table_starts,
            bytemuck::cast_slice(&of_rows(&|row| starts[row.sequence])),
        );
        put(&layout.chosen, bytemuck::cast_slice(&chosen));
        put(&layout.temperatures, bytemuck::cast_slice(&temperatures));
        bytes
    }
}

impl Activation {
    /// Returns the activation of `plan` in the block at `address`.
    pub(crate) fn at(address: u64, plan: &StepPlan, layout: &Layout) -> Self {
        let span = |range: &Range<u64>| Span {
            address: address + range.start,
            bytes: range.end - range.start,
        };
        Self {
            rows: plan.rows.len(),
            chosen_rows: plan.chosen().count(),
            longest: plan.tables.iter().map(Vec::len).max().unwrap_or(0),
            tables: span(&layout.tables),
            seeds: span(&layout.seeds),
            tokens: span(&layout.tokens),
            positions: span(&layout.positions),
            table_starts: span(&layout.table_starts),
            chosen: span(&layout.chosen),
            temperatures: span(&layout.temperatures),
            answers: span(&layout.answers),
            hidden: span(&layout.hidden),
            inner: span(&layout.inner),
            qkv: span(&layout.qkv),
            wide: span(&layout.wide),
            last: span(&layout.last),
            normed: span(&layout.normed),
            logits: span(&layout.logits),
        }
    }
}
