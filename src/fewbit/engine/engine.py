"""The loop: schedule, run, sample, postprocess.

With a draft, the target runs its last token and the drafted ones as rows of one step, and an exact
rule judges the drafted tokens by those rows. For a request with a seed, a greedy one, and a draft
that does not say what it drew from, a token is drawn from each row exactly as without a draft, by
the same keyed number and the same penalties, and a drafted token is accepted when it equals what
was drawn. Rows have the same bits however they are batched (row invariance), so the output with a
draft is the output without one, bit for bit. Else the block is verified by what it was drawn from:
the output differs from the plain one and has the same distribution.

A draft may be a tree: a chain and branches that leave it. Every branch runs in pages that are forks
of the sequence's last ones, so that each row finds its own predecessors where plain decoding has
them, and attends by the same arithmetic. Where the accepted tokens end on a branch its pages become
the sequence's; nothing is moved.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fewbit.cache.pages import PagePool, PageTable
from fewbit.engine.drafting import Drafting
from fewbit.engine.ending import Ending, generation_record, take
from fewbit.engine.pace import PromptPace
from fewbit.engine.request import Generation, Meter, Output, Request, Speculation
from fewbit.engine.scheduler import Limits, Scheduler, Work
from fewbit.engine.served import DRAWING, Drawing, Served
from fewbit.engine.stop import StopMatcher
from fewbit.records.generation import EngineRecord, FinishReason
from fewbit.runtime.step import StepInput
from fewbit.sampling import Block, Constraint, Drawn, TokenLogprob, TokenSampler
from fewbit.speculate.drafts import Proposal, judge_of


class Engine:
    """Serves requests over one executor; several share each step.

    One thread steps. Others may call `add` and `cancel_soon` at any time, also while a step runs.

    Args:
        served: the model.
        speculation: None for plain decoding.
        limits: bounds of a step.
        clock: seconds, for measurements; the output never depends on it.
        drawing: what draws and judges tokens.

    Raises:
        UsageError: the draft continues from hidden states, and the model hands out none.
    """

    def __init__(
        self,
        served: Served,
        speculation: Speculation | None = None,
        *,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.perf_counter,
        drawing: Drawing = DRAWING,
    ) -> None:
        self._served = served
        self._drawing = drawing
        self._drafting = (
            None if speculation is None else Drafting(speculation, served.vocabulary, clock)
        )
        self._watching = () if speculation is None else served.watched_by(speculation.draft)
        self._scheduler = Scheduler(PagePool(served.executor.pages), limits or Limits())
        self._pace = PromptPace()
        self._clock = clock
        self._numbers = itertools.count()
        self._to_cancel: deque[int] = deque()
        self._requests = self._steps = self._rows = 0
        self._prompt_tokens = self._cached_tokens = 0

    @property
    def context(self) -> int:
        """The most positions a sequence can take: the model's, or what the store holds."""
        return self._served.longest

    @property
    def busy(self) -> bool:
        """Whether any request waits or runs."""
        return self._scheduler.busy

    @property
    def record(self) -> EngineRecord:
        """What the engine did so far."""
        pool = self._scheduler.pool
        return EngineRecord(
            requests=self._requests,
            steps=self._steps,
            rows=self._rows,
            pages=pool.pages,
            pages_held=pool.held,
            pages_peak=pool.peak,
            pages_idle=pool.idle,
            evictions=pool.evictions,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            preemptions=self._scheduler.preemptions,
            speculation=self._drafting.record() if self._drafting else None,
        )

    def add(self, request: Request) -> int:
        """Queue a request and return its number.

        Raises:
            RequestError: as `Served.admit`.
        """
        return self._queue(request, self._served.admit(request))

    def cancel(self, number: int) -> Output | None:
        """End a request and return its last output; what was generated stands.

        None where it has ended already.
        """
        generation = self._scheduler.find(number)
        if generation is None:
            return None
        return self._finish(generation, Ending(FinishReason.CANCELLED, "cancelled"), [])

    def cancel_soon(self, number: int) -> None:
        """Have a request end before the next step, which returns its last output.

        May be called from any thread. A request that has ended by then stays as it ended.
        """
        self._to_cancel.append(number)

    def generate(self, requests: Iterable[Request]) -> Iterator[Output]:
        """Serve requests to their ends and yield outputs as they come.

        Outputs name requests by the order given here, from 0. Leaving the loop early cancels them.

        Raises:
            RequestError: a request cannot be served; none is then.
        """
        admitted = [(request, self._served.admit(request)) for request in requests]
        numbers = {self._queue(*given): i for i, given in enumerate(admitted)}
        try:
            while self.busy:
                for output in self.step():
                    if output.request in numbers:
                        yield output._replace(request=numbers[output.request])
        finally:
            for number in numbers:
                self.cancel(number)

    def step(self) -> list[Output]:
        """Run one step and return what it brought: cancelled requests, then by arrival."""
        outputs = self._cancel_asked()
        self._scheduler.admit(self._clock())
        prompt_rows = self._pace.rows(self._scheduler.limits.stall)
        plan = self._scheduler.plan(self._drafts(prompt_rows), prompt_rows)
        if plan.input is None:
            return outputs
        try:
            return outputs + self._take_step(plan.input, plan.work)
        except BaseException:
            for work in plan.work:
                _settle_forks(work, None)
            raise

    def _queue(self, request: Request, constraint: Constraint | None) -> int:
        """Queue a request that can be served, under what its grammar allows."""
        number = next(self._numbers)
        params = request.params
        seed = secrets.randbits(63) if params.seed is None else params.seed
        generation = Generation(
            number=number,
            request=request,
            seed=seed,
            sampler=self._sampler(request, seed, constraint),
            decoder=self._served.decoder(request.prompt),
            matcher=StopMatcher(request.stop.strings),
            table=PageTable(self._scheduler.pool),
            meter=Meter(self._clock()),
            length=self._drafting.length() if self._drafting and request.speculate else None,
            tokens=list(request.prompt),
            most=self._served.positions_of(request),
        )
        self._scheduler.add(generation)
        return number

    def _take_step(self, step: StepInput, works: Sequence[Work]) -> list[Output]:
        """Run a step, learn from it, and return what it brought.

        What is interrupted once its samplers may have drawn cannot go on as if they had not: its
        requests end before the next step.
        """
        begun = self._clock()
        logits = self._served.executor.step(step)
        try:
            drawn = self._drawn(logits, works)
            ended = self._clock()
            self._measure(works, len(step.tokens), ended - begun)
            outputs = self._postprocess(works, drawn, ended)
        except BaseException:
            self._to_cancel.extend(w.generation.number for w in works if w.row is not None)
            raise
        if self._drafting:
            self._drafting.settle()
        return outputs

    def _drafts(self, prompt_rows: int | None) -> Mapping[int, Proposal]:
        """Return what was drafted for this step; by generation number."""
        if self._drafting is None:
            return {}
        beside = self._scheduler.unread(prompt_rows)
        return self._drafting.propose(self._scheduler.decoding(), beside)

    def _cancel_asked(self) -> list[Output]:
        outputs = []
        while self._to_cancel:
            if output := self.cancel(self._to_cancel.popleft()):
                outputs.append(output)
        return outputs

    def _drawn(self, logits: NDArray[np.float32], works: Sequence[Work]) -> dict[int, Drawn]:
        """Draw tokens from the logits of a step; by generation number."""
        blocks = {
            work.generation.number: self._block(work, work.row)
            for work in works
            if work.row is not None
        }
        drawn = self._drawing.draw(
            logits,
            list(blocks.values()),
            vocabulary=self._served.vocabulary,
            threads=self._served.threads,
        )
        return dict(zip(blocks, drawn, strict=True))

    def _block(self, work: Work, row: int) -> Block:
        """Return a sequence's rows and its draft as what draws takes them."""
        generation = work.generation
        block = Block(
            generation.sampler,
            row,
            len(generation.tokens),
            work.draft,
            generation.request.top_logprobs,
        )
        if not work.draft or self._drafting is None:
            return block
        proposal = self._drafting.proposal(generation.number)
        verifier = judge_of(proposal, self._drafting.verifier(generation.number))
        generation.repeats = generation.repeats and verifier.couples
        return block._replace(
            verifier=verifier,
            probabilities=proposal.probabilities,
            support=proposal.support,
            branches=work.branches,
        )

    def _measure(self, works: Sequence[Work], rows: int, seconds: float) -> None:
        """Share the step's time out, and learn what a row costs."""
        self._steps += 1
        self._rows += rows
        decode_rows = 0
        for work in works:
            meter = work.generation.meter
            if work.decodes:
                decode_rows += 1 + work.drafted
            if work.draft:
                meter.verify += seconds
            elif work.decodes:
                meter.plain += seconds
                meter.plain_steps += 1
            else:
                meter.prompt += seconds
        self._pace.observe(decode_rows, rows - decode_rows, seconds)
        if self._drafting:
            self._drafting.measure(works, rows, seconds)

    def _postprocess(
        self, works: Sequence[Work], drawn: dict[int, Drawn], now: float
    ) -> list[Output]:
        outputs = []
        for work in works:
            if work.row is None:
                begin = work.generation.computed
                work.generation.settle(work.taken)
                self._hand_states(work, begin, work.path(None))
            else:
                outputs.append(self._accept(work, drawn[work.generation.number], now))
        return outputs

    def _accept(self, work: Work, drawn: Drawn, now: float) -> Output:
        """Take the drawn tokens up to whatever ends the generation; roll the store back to them."""
        generation, begin = work.generation, work.generation.computed
        _settle_forks(work, drawn.branch)
        path = work.path(drawn.branch)
        taken, texts, ending = take(generation, drawn.tokens, now, self.context)
        if drawn.fault is not None and ending is None:
            ending = Ending.of(drawn.fault)
        if work.draft and self._drafting:
            self._drafting.learn(work, drawn, taken)
            self._drafting.roll_back(generation, len(path))
        else:
            generation.settle(work.taken)
        tokens, logprobs = tuple(drawn.tokens[:taken]), tuple(drawn.logprobs[:taken])
        if ending:
            return self._finish(generation, ending, texts, tokens, logprobs)
        self._hand_states(work, begin, path)
        return Output(generation.number, tokens, "".join(texts), logprobs)

    def _hand_states(self, work: Work, begin: int, path: Sequence[int]) -> None:
        """Hand the hidden states of a step's verified rows to the drafts that want them.

        Args:
            work: a sequence's rows, which began at position `begin`.
            begin: the position.
            path: the rows of consecutive positions from there on, verified or not.
        """
        generation, states = work.generation, self._served.states
        if not self._watching or states is None or not generation.request.speculate:
            return
        count = generation.computed - begin
        found = states(np.array(path[:count], np.int32))
        for draft in self._watching:
            draft.watch(generation.number, begin, found)

    def _finish(
        self,
        generation: Generation,
        ending: Ending,
        texts: list[str],
        tokens: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprob, ...] = (),
    ) -> Output:
        """Take a generation out and return its last output."""
        if not ending.cut:
            texts.append(generation.matcher.push(generation.decoder.finish())[0])
            texts.append(generation.matcher.finish())
        self._scheduler.remove(generation)
        self._requests += 1
        self._prompt_tokens += len(generation.request.prompt)
        self._cached_tokens += generation.cached
        speculation = self._drafting.speculation if self._drafting else None
        if speculation is not None:
            speculation.draft.release(generation.number)
        record = generation_record(generation, ending, speculation, self._clock())
        return Output(generation.number, tokens, "".join(texts), logprobs, record, ending.fault)

    def _sampler(self, request: Request, seed: int, constraint: Constraint | None) -> TokenSampler:
        sampler = self._drawing.sampler(
            request.params, seed=seed, sample=request.sample, prompt=request.prompt
        )
        if constraint is not None:
            sampler.constrain(constraint)
        return sampler


def _settle_forks(work: Work, branch: int | None) -> None:
    """Let a sequence go on in the pages of the branch that was accepted; give back the others'.

    What was settled stays so: a fork gives its pages away once.
    """
    for i, fork in enumerate(work.forks):
        if i == branch:
            work.generation.table.adopt(fork)
        else:
            work.generation.table.drop(fork)
