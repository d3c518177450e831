//! The kernels on the simulated device: the computation is done on the device's bytes, when the operation's time is
//! over.
//!
//! An operation takes as long as the H200's data sheet allows: its bytes at 4.8 TB/s or its arithmetic at 67 TFLOP/s,
//! whichever takes longer, and 2 µs for the launch.

use super::{Cache, Kernels, Linear, Machine, Op, Span};
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::sim::{Backing, Clock, Memory, Operation, SimDevice, SimStream};

const LAUNCH: Duration = Duration::from_micros(2);
const BYTES_PER_SECOND: f64 = 4.8e12;
const OPERATIONS_PER_SECOND: f64 = 67e12;

/// Creates a simulated device.
pub(crate) fn machine(memory: u64, slowdown: f64, clock: Clock) -> (SimDevice, Machine<SimStream>) {
    let device = SimDevice::builder()
        .memory(memory)
        .backing(Backing::Bytes)
        .clock(clock)
        .build();
    let machine = Machine {
        device: Arc::new(device.clone()),
        kernels: Box::new(move || Ok(Arc::new(Simulated { slowdown }))),
        workspace: 0,
    };
    (device, machine)
}

struct Simulated {
    /// Multiplies the time of each operation.
    slowdown: f64,
}

type Body = Box<dyn FnOnce(&mut Memory) + Send>;

/// The effect of an operation, and its cost.
struct Work {
    reads: Vec<Span>,
    writes: Vec<Span>,
    /// Additions and multiplications.
    arithmetic: u64,
    body: Body,
}

impl Kernels<SimStream> for Simulated {
    fn launch(&self, work: &SimStream, op: &Op<'_>) -> anyhow::Result<()> {
        let name = op.name();
        let Work {
            reads,
            writes,
            arithmetic,
            body,
        } = work_of(op);
        let bytes: u64 = match op {
            // These operations read only a few rows.
            Op::Embed { output, .. } | Op::Gather { output, .. } => 3 * output.bytes,
            _ => reads.iter().chain(&writes).map(|span| span.bytes).sum(),
        };
        let seconds =
            (bytes as f64 / BYTES_PER_SECOND).max(arithmetic as f64 / OPERATIONS_PER_SECOND);
        let time = (LAUNCH + Duration::from_secs_f64(seconds)).mul_f64(self.slowdown);
        let mut operation = Operation::new(time).named(name).run(body);
        for span in reads {
            operation = operation.reads(span.address, span.bytes);
        }
        for span in writes {
            operation = operation.writes(span.address, span.bytes);
        }
        work.submit(operation);
        Ok(())
    }
}

fn work_of(op: &Op<'_>) -> Work {
    match *op {
        Op::Embed {
            width,
            tokens,
            positions,
            token_embeddings,
            position_embeddings,
            output,
        } => Work {
            reads: vec![tokens, positions, token_embeddings, position_embeddings],
            writes: vec![output],
            arithmetic: output.bytes / 4,
            body: Box::new(move |memory| {
                let (tokens, positions) = (indices(memory, tokens), indices(memory, positions));
                let mut sums = Vec::new();
                for (token, position) in tokens.into_iter().zip(positions) {
                    let token = floats(memory, row(token_embeddings, token, width));
                    let position = floats(memory, row(position_embeddings, position, width));
                    sums.extend(token.iter().zip(position).map(|(a, b)| a + b));
                }
                write(memory, output, &sums);
            }),
        },
        Op::Norm {
            width,
            input,
            gain,
            bias,
            output,
        } => Work {
            reads: vec![input, gain, bias],
            writes: vec![output],
            arithmetic: 2 * input.bytes,
            body: Box::new(move |memory| {
                let (gain, bias) = (floats(memory, gain), floats(memory, bias));
                let mut all = floats(memory, input);
                for row in all.chunks_mut(width) {
                    let count = width as f32;
                    let mean = row.iter().sum::<f32>() / count;
                    let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / count;
                    let scale = (variance + 1e-5).sqrt().recip();
                    for (x, (gain, bias)) in row.iter_mut().zip(gain.iter().zip(&bias)) {
                        *x = (*x - mean) * scale * gain + bias;
                    }
                }
                write(memory, output, &all);
            }),
        },
        Op::Linear(linear) => {
            let Linear {
                rows,
                inputs,
                outputs,
                input,
                weight,
                bias,
                output,
                adds,
                ..
            } = linear;
            let mut reads = vec![input, weight];
            reads.extend(bias);
            reads.extend(adds.then_some(output));
            Work {
                reads,
                writes: vec![output],
                arithmetic: 2 * (rows * inputs * outputs) as u64,
                body: Box::new(move |memory| multiply(memory, linear)),
            }
        }
        Op::Store { step, cache } => {
            let stored = Stored::new(cache);
            let (qkv, width) = (step.qkv, cache.width);
            let rows = [step.positions, step.table_starts];
            let tables = step.tables;
            Work {
                reads: vec![qkv, tables, rows[0], rows[1]],
                writes: cache.written.to_vec(),
                arithmetic: 0,
                body: Box::new(move |memory| {
                    let (tables, qkv) = (addresses(memory, tables), floats(memory, qkv));
                    let [positions, starts] = rows.map(|rows| indices(memory, rows));
                    for (qkv, (position, start)) in
                        qkv.chunks(3 * width).zip(positions.into_iter().zip(starts))
                    {
                        let [keys, values] = stored.of(&tables[start..], position);
                        write(memory, keys, &qkv[width..2 * width]);
                        write(memory, values, &qkv[2 * width..]);
                    }
                }),
            }
        }
        Op::Attend { step, cache } => {
            let stored = Stored::new(cache);
            let (qkv, width, head, output) =
                (step.qkv, cache.width, cache.width / cache.heads, step.inner);
            let rows = [step.positions, step.table_starts];
            let tables = step.tables;
            let mut reads = vec![qkv, tables, rows[0], rows[1]];
            reads.extend(cache.written.iter().chain(cache.read));
            let positions = step.longest * cache.page;
            Work {
                reads,
                writes: vec![output],
                arithmetic: (4 * step.rows * positions * width) as u64,
                body: Box::new(move |memory| {
                    let (tables, qkv) = (addresses(memory, tables), floats(memory, qkv));
                    let [positions, starts] = rows.map(|rows| indices(memory, rows));
                    let mut mixed = Vec::with_capacity(positions.len() * width);
                    for (qkv, (position, start)) in
                        qkv.chunks(3 * width).zip(positions.into_iter().zip(starts))
                    {
                        let table = &tables[start..];
                        let all = (0..=position).map(|position| {
                            stored.of(table, position).map(|span| floats(memory, span))
                        });
                        let all: Vec<[Vec<f32>; 2]> = all.collect();
                        for begin in (0..width).step_by(head) {
                            mixed.extend(mix(&qkv[begin..][..head], &all, begin));
                        }
                    }
                    write(memory, output, &mixed);
                }),
            }
        }
        Op::Gelu { data } => Work {
            reads: vec![data],
            writes: vec![data],
            arithmetic: 4 * data.bytes,
            body: Box::new(move |memory| {
                let mut all = floats(memory, data);
                for x in &mut all {
                    let inner = 0.797_884_6 * (*x + 0.044_715 * *x * *x * *x);
                    *x = 0.5 * *x * (1.0 + inner.tanh());
                }
                write(memory, data, &all);
            }),
        },
        Op::Gather {
            width,
            rows,
            input,
            output,
        } => Work {
            reads: vec![rows, input],
            writes: vec![output],
            arithmetic: 0,
            body: Box::new(move |memory| {
                let rows = indices(memory, rows);
                let all: Vec<f32> = rows
                    .into_iter()
                    .flat_map(|index| floats(memory, row(input, index, width)))
                    .collect();
                write(memory, output, &all);
            }),
        },
        Op::Sample { vocabulary, step } => {
            let (logits, seeds, temperatures) = (step.logits, step.seeds, step.temperatures);
            let (chosen, positions, answers) = (step.chosen, step.positions, step.answers);
            Work {
                reads: vec![logits, seeds, temperatures, chosen, positions],
                writes: vec![answers],
                arithmetic: logits.bytes,
                body: Box::new(move |memory| {
                    let logits = floats(memory, logits);
                    let (seeds, temperatures) =
                        (addresses(memory, seeds), floats(memory, temperatures));
                    let (chosen, positions) = (indices(memory, chosen), indices(memory, positions));
                    let mut tokens: Vec<u32> = Vec::new();
                    for (index, logits) in logits.chunks(vocabulary).enumerate() {
                        let (seed, position) = (seeds[index], positions[chosen[index]] as u64);
                        tokens.push(choose(logits, temperatures[index], seed, position));
                    }
                    let bytes: &[u8] = bytemuck::cast_slice(&tokens);
                    memory.write(answers.address, bytes);
                }),
            }
        }
    }
}

/// Returns the most likely token; with a temperature, the most likely one after noise was added (the Gumbel-max trick),
/// which draws from the distribution. The noise depends on seed, position and token only.
fn choose(logits: &[f32], temperature: f32, seed: u64, position: u64) -> u32 {
    let (mut best, mut highest) = (0, f32::NEG_INFINITY);
    for (token, logit) in logits.iter().enumerate() {
        let value = match temperature {
            0.0 => *logit,
            _ => logit / temperature + gumbel(seed, position, token as u64),
        };
        if value > highest {
            (best, highest) = (token as u32, value);
        }
    }
    best
}

/// Returns a number of the Gumbel distribution. The kernel in `kernels.cu` computes the same.
fn gumbel(seed: u64, position: u64, token: u64) -> f32 {
    let mut bits = seed ^ (position << 32 | token).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // The finalizer of SplitMix64.
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    let uniform = ((bits >> 40) as f32 + 0.5) / (1 << 24) as f32;
    -(-uniform.ln()).ln()
}

/// The layout of keys and values in the pages.
#[derive(Clone, Copy)]
struct Stored {
    layer: usize,
    page: usize,
    width: usize,
}

impl Stored {
    fn new(cache: Cache<'_>) -> Self {
        Self {
            layer: cache.layer,
            page: cache.page,
            width: cache.width,
        }
    }

    /// Returns the locations of the keys and of the values of one position.
    fn of(&self, table: &[u64], position: usize) -> [Span; 2] {
        let page = table[position / self.page];
        [0, 1].map(|which| {
            let slot = (2 * self.layer + which) * self.page + position % self.page;
            Span {
                address: page + (slot * self.width * 4) as u64,
                bytes: (self.width * 4) as u64,
            }
        })
    }
}

fn mix(query: &[f32], all: &[[Vec<f32>; 2]], begin: usize) -> Vec<f32> {
    let head = query.len();
    let scale = (head as f32).sqrt().recip();
    let score = |[keys, _]: &[Vec<f32>; 2]| {
        let keys = &keys[begin..][..head];
        query.iter().zip(keys).map(|(a, b)| a * b).sum::<f32>() * scale
    };
    let mut scores: Vec<f32> = all.iter().map(score).collect();
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for score in &mut scores {
        *score = (*score - largest).exp();
    }
    let sum: f32 = scores.iter().sum();
    let mut mixed = vec![0.0; head];
    for ([_, values], score) in all.iter().zip(&scores) {
        for (mixed, value) in mixed.iter_mut().zip(&values[begin..][..head]) {
            *mixed += score * value;
        }
    }
    mixed.iter_mut().for_each(|mixed| *mixed /= sum);
    mixed
}

fn multiply(memory: &mut Memory, linear: Linear) {
    let Linear {
        rows,
        inputs,
        outputs,
        ..
    } = linear;
    let (input, weight) = (floats(memory, linear.input), floats(memory, linear.weight));
    let bias = linear.bias.map(|bias| floats(memory, bias));
    let mut output = match linear.adds {
        true => floats(memory, linear.output),
        false => vec![0.0; rows * outputs],
    };
    for (input, output) in input.chunks(inputs).zip(output.chunks_mut(outputs)) {
        if linear.is_transposed {
            for (sum, weight) in output.iter_mut().zip(weight.chunks(inputs)) {
                *sum += input.iter().zip(weight).map(|(a, b)| a * b).sum::<f32>();
            }
        } else {
            for (x, weight) in input.iter().zip(weight.chunks(outputs)) {
                for (sum, weight) in output.iter_mut().zip(weight) {
                    *sum += x * weight;
                }
            }
        }
        for (sum, bias) in output.iter_mut().zip(bias.iter().flatten()) {
            *sum += bias;
        }
    }
    write(memory, linear.output, &output);
}

fn row(matrix: Span, index: usize, width: usize) -> Span {
    Span {
        address: matrix.address + (index * width * 4) as u64,
        bytes: (width * 4) as u64,
    }
}

fn read(memory: &mut Memory, span: Span) -> Vec<u8> {
    let mut bytes = vec![0; span.bytes as usize];
    memory.read(span.address, &mut bytes);
    bytes
}

fn floats(memory: &mut Memory, span: Span) -> Vec<f32> {
    bytemuck::pod_collect_to_vec(&read(memory, span))
}

fn indices(memory: &mut Memory, span: Span) -> Vec<usize> {
    let all: Vec<u32> = bytemuck::pod_collect_to_vec(&read(memory, span));
    all.into_iter().map(|index| index as usize).collect()
}

fn addresses(memory: &mut Memory, span: Span) -> Vec<u64> {
    bytemuck::pod_collect_to_vec(&read(memory, span))
}

fn write(memory: &mut Memory, span: Span, elements: &[f32]) {
    let bytes: &[u8] = bytemuck::cast_slice(elements);
    assert_eq!(bytes.len() as u64, span.bytes, "an output of another size");
    memory.write(span.address, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_drawn_from_the_distribution() {
        let logits = [0.0_f32, 1.0, 2.0, f32::NEG_INFINITY];
        let mut counts = [0; 4];
        for position in 0..20_000 {
            counts[choose(&logits, 1.0, 5, position) as usize] += 1;
        }
        let sum: f32 = logits.iter().map(|logit| logit.exp()).sum();
        for (count, logit) in counts.into_iter().zip(logits) {
            let expected = logit.exp() / sum;
            assert!(
                (count as f32 / 20_000.0 - expected).abs() < 0.02,
                "{counts:?}"
            );
        }
        assert_eq!(choose(&logits, 0.0, 5, 1), 2);
    }
}
