//! A worker: a stream, and the batch that runs there. Sequences join and leave it between steps.

use super::load::Load;
use super::sequence::Page;
use super::turns::Turns;
use super::weights::{FirstToken, OnDevice};
use super::{Engine, Event, Finish, Sequence, Settings};
use crate::kernels::{Activation, Cache, Kernels, Span};
use crate::model::{Parts, Row, Shape, StepPlan, forward};
use std::sync::{Arc, Weak};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use weirpool::device::NativeStream;
use weirpool::{Block, Stream};

pub(super) struct Worker<W> {
    pub(super) stream: Stream,
    pub(super) weights: Arc<OnDevice>,
    pub(super) first: Arc<FirstToken>,
    pub(super) parts: Arc<Parts>,
    pub(super) kernels: Arc<dyn Kernels<W>>,
    /// The memory that the libraries behind the kernels work in.
    pub(super) _workspace: Block,
    pub(super) incoming: mpsc::UnboundedReceiver<Sequence>,
    pub(super) load: Arc<Load>,
    /// Cancelled when all sequences have ended.
    pub(super) ended: CancellationToken,
    pub(super) engine: Weak<Engine>,
    pub(super) shape: Shape,
    pub(super) settings: Settings,
}

/// The part of a sequence that a step computes.
struct Share {
    /// The index of the sequence in the batch.
    sequence: usize,
    tokens: usize,
    /// The step reaches the last token, and yields the next.
    is_last: bool,
}

impl<W: NativeStream> Worker<W> {
    /// Runs until the engine has ended.
    pub(super) async fn run(mut self) {
        let mut batch = Vec::new();
        let mut turns = Turns::new(self.settings.rows, self.settings.batch);
        loop {
            if batch.is_empty() {
                let sequence = tokio::select! {
                    () = self.ended.cancelled() => return,
                    sequence = self.incoming.recv() => sequence,
                };
                match sequence {
                    Some(sequence) => batch.push(sequence),
                    None => return,
                }
            }
            // Also sequences beyond the places of a step: their tenants take turns, and they may end before theirs.
            while let Ok(sequence) = self.incoming.try_recv() {
                batch.push(sequence);
            }
            self.drop_ended(&mut batch);
            if batch.is_empty() {
                continue;
            }
            let asks: Vec<_> = batch.iter().map(Sequence::ask).collect();
            let dealt = turns.deal(&asks);
            let begun = Instant::now();
            let step = self.step(&mut batch, &dealt).await;
            self.load.note_step(begun.elapsed());
            if let Err(error) = step {
                let reason = format!("{error:#}");
                tracing::error!(%reason, "a step failed");
                let mut dealt = dealt.into_iter();
                for sequence in batch.extract_if(.., |_| dealt.next() > Some(0)) {
                    sequence.end(Event::Failed(reason.clone()));
                    self.retire(sequence, false);
                }
            }
        }
    }

    /// Drops sequences whose clients are gone or whose deadlines have passed.
    fn drop_ended(&self, batch: &mut Vec<Sequence>) {
        let now = Instant::now();
        let has_ended = |sequence: &mut Sequence| {
            let is_late = sequence.deadline <= now;
            if is_late {
                sequence.end(Event::Finished(Finish::Deadline));
            }
            is_late || sequence.events.is_closed()
        };
        for sequence in batch.extract_if(.., has_ended) {
            self.retire(sequence, true);
        }
    }

    /// Computes one step: of each sequence of the batch, the rows that it was dealt.
    async fn step(&self, batch: &mut Vec<Sequence>, dealt: &[usize]) -> anyhow::Result<()> {
        let (plan, shares) = self.plan(batch, dealt);
        let layout = plan.layout(&self.shape);
        // Neither waits nor fails, because the memory was reserved.
        let mut activation = batch[0].open.activation(&self.stream)?;
        // Dropping the future does not stop the copy, and the kernels come after it.
        drop(activation.upload(&self.stream, 0, &plan.head(&layout))?);
        self.submit(batch, &shares, &plan, &layout, &mut activation)?;
        let answers = activation.download(&self.stream, layout.answers)?;
        drop(activation);
        let answers: Vec<u32> = bytemuck::pod_collect_to_vec(&answers.await?);
        let mut answers = answers.into_iter();
        let mut has_ended = vec![false; batch.len()];
        for share in &shares {
            let sequence = &mut batch[share.sequence];
            sequence.done += share.tokens;
            if share.is_last {
                let token = answers
                    .next()
                    .expect("a token for each row that was chosen");
                has_ended[share.sequence] = !sequence.push(token);
                self.first.note();
            }
        }
        let mut has_ended = has_ended.into_iter();
        for sequence in batch.extract_if(.., |_| has_ended.next() == Some(true)) {
            self.retire(sequence, true);
        }
        Ok(())
    }

    /// Returns the rows of a step.
    fn plan(&self, batch: &[Sequence], dealt: &[usize]) -> (StepPlan, Vec<Share>) {
        let (mut plan, mut shares) = (StepPlan::default(), Vec::new());
        for (index, (sequence, &tokens)) in batch.iter().zip(dealt).enumerate() {
            if tokens == 0 {
                continue;
            }
            let end = sequence.done + tokens;
            let is_last = end == sequence.tokens.len();
            for position in sequence.done..end {
                let is_chosen = is_last && position + 1 == end;
                plan.rows.push(Row {
                    token: sequence.tokens[position],
                    position: position as u32,
                    sequence: shares.len(),
                    sampling: is_chosen.then_some(sequence.sampling),
                });
            }
            let pages = &sequence.pages[..end.div_ceil(self.settings.page)];
            plan.tables
                .push(pages.iter().map(|page| page.span().address).collect());
            shares.push(Share {
                sequence: index,
                tokens,
                is_last,
            });
        }
        (plan, shares)
    }

    /// Submits the kernels of a step, with all memory that they use.
    fn submit(
        &self,
        batch: &mut [Sequence],
        shares: &[Share],
        plan: &StepPlan,
        layout: &crate::model::Layout,
        activation: &mut Block,
    ) -> anyhow::Result<()> {
        let page = self.settings.page;
        let (mut written, mut read) = (Vec::new(), Vec::new());
        let mut shares = shares.iter().peekable();
        for (index, sequence) in batch.iter_mut().enumerate() {
            let Some(share) = shares.next_if(|share| share.sequence == index) else {
                continue;
            };
            let first = sequence.done / page;
            let last = (sequence.done + share.tokens - 1) / page;
            for (index, page) in sequence.pages[..=last].iter_mut().enumerate() {
                match page {
                    Page::Own(block) => match index >= first {
                        true => written.push(block),
                        false => read.push(&*block),
                    },
                    Page::Shared(pinned) => read.push(&**pinned),
                }
            }
        }
        let Shape { heads, width, .. } = self.shape;
        let submission = self.stream.task("step");
        let task = submission.try_submit(
            (&**self.weights, activation, written, read),
            |work: &W, (weights, activation, written, read)| {
                let spans = |pages: &[_]| pages.iter().map(Span::from).collect::<Vec<Span>>();
                let (written, read) = (spans(&written), spans(&read));
                let cache = Cache {
                    layer: 0,
                    heads,
                    width,
                    page,
                    written: &written,
                    read: &read,
                };
                let address = activation.address().to_bits();
                let activation = Activation::at(address, plan, layout);
                let weights = Span::from(&weights);
                forward(
                    &self.shape,
                    &self.parts,
                    weights,
                    &activation,
                    &cache,
                    |op| self.kernels.launch(work, &op),
                )
            },
        )?;
        // Not awaited: the tokens are copied after it.
        drop(task);
        Ok(())
    }

    /// Frees the memory of a sequence, and leaves its complete pages to the prefix cache.
    fn retire(&self, mut sequence: Sequence, are_pages_good: bool) {
        let complete = sequence.done / self.settings.page;
        let own = sequence.pages.split_off(sequence.shared);
        // The last page first; see `Prefixes::insert`.
        while sequence.pages.pop().is_some() {}
        let mut pages: Vec<Block> = Vec::new();
        for page in own
            .into_iter()
            .take(complete - sequence.shared.min(complete))
        {
            if let Page::Own(block) = page {
                pages.push(block);
            }
        }
        if let Some(engine) = self.engine.upgrade().filter(|_| are_pages_good)
            && let Some(mut prefixes) = engine.prefixes()
        {
            let tokens = &sequence.tokens[..sequence.done];
            let surplus = prefixes.insert(sequence.tenant, tokens, sequence.shared, pages);
            drop(prefixes);
            drop(surplus);
        }
        let tenant = sequence.tenant;
        drop(sequence);
        self.load.remove(tenant);
    }
}
