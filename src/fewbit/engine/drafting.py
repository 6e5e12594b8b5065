"""Whom to ask a draft for, for how many tokens, and what came of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from fewbit.engine.request import Generation, Meter, Speculation, branch_fates
from fewbit.engine.scheduler import Work
from fewbit.records.generation import DraftPartRecord, SpeculationRecord
from fewbit.sampling import Branch, Drawn, Verifier
from fewbit.speculate.combined import able_parts, asked_parts
from fewbit.speculate.costs import Shape
from fewbit.speculate.drafts import Draft, DraftQuery, Proposal, reach_of
from fewbit.speculate.planned import Ask, Plan, SequenceLength
from fewbit.speculate.tree_shape import CHAIN, TreeShape
from fewbit.speculate.verifier import verifier_for


@dataclass(slots=True)
class _Step:
    """A step's drafting, until it is settled."""

    trial: bool = False
    seconds: float = 0.0
    """Of the draft's call."""
    predicted: float = 0.0
    """The same, as it was expected."""
    proposals: dict[int, Proposal] = field(default_factory=dict)
    parts: dict[int, int] = field(default_factory=dict)
    """Which part of the draft made each."""
    verifiers: dict[int, Verifier] = field(default_factory=dict)
    more: dict[int, float] = field(default_factory=dict)
    """Tokens that are expected of each proposal's branches."""


@dataclass(frozen=True)
class _Measured:
    """What a step with drafts took, and was expected to take."""

    seconds: float
    predicted: float
    plain: float
    """Predicted of the step without drafts."""
    decoding: int
    decode_plain: float
    """Predicted of a step that only decodes, without drafts."""


class Drafting:
    """An engine's draft, and how long its proposals are to be.

    For each step: `propose`, then `measure` with the time of the step, `learn` for each sequence
    that had a draft, and `settle`.

    Args:
        speculation: the draft.
        vocabulary: of the target; it cannot run ids from here on.
        clock: seconds.
    """

    def __init__(
        self, speculation: Speculation, vocabulary: int, clock: Callable[[], float]
    ) -> None:
        self.speculation = speculation
        names = [part.name for part in self._parts]
        self.controller = speculation.control(speculation.longest, speculation.costs, names)
        self.meter = Meter(0.0)
        self._part_meters = [Meter(0.0) for _ in self._parts]
        self._trials = 0
        self._vocabulary = vocabulary
        self._clock = clock
        self._step = _Step()
        self._measured: _Measured | None = None
        self._brought = 0

    @property
    def _parts(self) -> tuple[Draft, ...]:
        """The drafts that are asked by themselves."""
        return asked_parts(self.speculation.draft)

    def length(self) -> SequenceLength:
        """Return what is kept of a new sequence's draft lengths."""
        return self.controller.sequence()

    def propose(self, decoding: Sequence[Generation], beside: int) -> Mapping[int, Proposal]:
        """Ask the draft for every sequence whose draft pays; by generation number.

        Args:
            decoding: the sequences that decode in this step.
            beside: rows of prompts that are expected in it.
        """
        self._step = _Step()
        self._measured = None
        if self.controller.rests():
            return {}
        found = [(g, ask) for g in decoding if (ask := self._ask(g)) is not None]
        if not found:
            return {}
        plain = _plain_shape(decoding, beside)
        plan = self.controller.plan([ask for _, ask in found], plain, len(decoding))
        self._step.trial = plan.trial
        for part in range(len(self._parts)):
            self._draft(part, found, plan)
        return self._step.proposals

    def proposal(self, number: int) -> Proposal:
        """Return what `propose` brought for this generation in this step."""
        return self._step.proposals[number]

    def verifier(self, number: int) -> Verifier:
        """Return how it was asked for that what `propose` brought is judged."""
        return self._step.verifiers[number]

    def measure(self, works: Sequence[Work], rows: int, seconds: float) -> None:
        """Learn from the time of a step of that many rows."""
        for work in works:
            for meter in (work.generation.meter, self.meter):
                meter.tokens_left_out += work.cut
                meter.branches_left_out += work.left_out
        drafted = [(work.drafted, len(work.generation.tokens)) for work in works if work.draft]
        decoding = [work.generation for work in works if work.decodes]
        own = rows - sum(count for count, _ in drafted)
        costs = self.controller.costs
        alone = _plain_shape(decoding, 0)
        plain = alone._replace(rows=own)
        if not drafted:
            if own == len(decoding):
                costs.observe_plain(plain, seconds)
            self.controller.settle_plain(seconds, wasted=self._step.seconds)
            return
        keys = sum(count * position for count, position in drafted)
        shape = plain._replace(rows=rows, keys=plain.keys + keys)
        self._measured = _Measured(
            seconds,
            costs.step(plain, shape),
            costs.plain(plain),
            len(decoding),
            costs.plain(alone),
        )
        self._brought = 0
        if own == len(decoding):
            costs.observe_drafted(plain, shape, seconds)

    def learn(self, work: Work, drawn: Drawn, taken: int) -> None:
        """Count how a draft fared; what lies beyond the generation's end counts for nothing.

        Args:
            work: whose draft it was, and what was verified.
            drawn: what the target drew along it.
            taken: how many of those tokens the generation took.
        """
        generation, draft = work.generation, work.draft
        agreed = len(drawn.tokens) - (0 if drawn.fault else 1)
        on_chain = agreed if drawn.branch is None else work.branches[drawn.branch].depth
        accepted = min(taken, on_chain)
        tested = min(taken, on_chain + 1, len(draft))
        fates = branch_fates(
            work.branches,
            accepted if tested > accepted else None,
            drawn.branch,
            min(taken, agreed) - accepted,
        )
        part = self._step.parts[generation.number]
        for meter in (generation.meter, self.meter, self._part_meters[part]):
            meter.count_block(len(draft), tested, accepted, taken)
            meter.count_branches(fates)
        self._brought += taken - 1
        state, measured = generation.length, self._measured
        if state is None or measured is None:
            return
        if self.controller.predicts:
            expected = 1.0 + sum(state.survivals[part].curve(len(draft)))
            expected += self._step.more.get(generation.number, 0.0)
            predicted = measured.predicted + self._step.predicted
            seconds = measured.seconds + self._step.seconds
            generation.meter.forecast.add(expected, taken, predicted, seconds)
            self.meter.forecast.add(expected - 1.0, taken - 1, 0.0, 0.0)
        state.add(part, tested, accepted)
        if judged := sum(fate.tested for fate in fates):
            on_branch = any(fate.accepted for fate in fates)
            self.controller.siblings(part).add(judged, accepted=on_branch)
        state.trials += self._step.trial
        self._trials += self._step.trial

    def roll_back(self, generation: Generation, rows: int) -> None:
        """Count a step's rows as computed, and forget those that were not accepted."""
        begun = self._clock()
        generation.settle(rows)
        seconds = self._clock() - begun
        generation.meter.rollback += seconds
        self.meter.rollback += seconds

    def settle(self) -> None:
        """Set what a step with drafts brought against what it took."""
        step, measured = self._step, self._measured
        if measured is None:
            return
        spent = measured.seconds + step.seconds
        self.meter.verify += measured.seconds
        if self.controller.predicts:
            predicted = measured.predicted + step.predicted
            self.meter.forecast.add(measured.decoding, measured.decoding, predicted, spent)
        # Each token beyond a sequence's first would have taken its share of a plain step. Where
        # prompts were read beside, the first ones' step is judged by what the model made of it.
        mixed = measured.plain > measured.decode_plain
        first = measured.plain * (measured.seconds / measured.predicted if mixed else 1.0)
        worth = first + self._brought * measured.decode_plain / measured.decoding
        self.controller.settle(spent=spent, worth=worth, trial=step.trial)

    def record(self) -> SpeculationRecord:
        """Return what the draft did so far."""
        meter, account = self.meter, self.controller.account
        return SpeculationRecord(
            draft=self.speculation.draft.name,
            longest=self.speculation.longest,
            positions=meter.position_counts(),
            blocks=meter.blocks,
            acceptance_length=meter.acceptance_length,
            wasted=meter.wasted,
            trials=self._trials,
            draft_seconds=meter.draft,
            verify_seconds=meter.verify,
            rollback_seconds=meter.rollback,
            forecast=meter.forecast.record(),
            branches=meter.branch_counts(),
            tokens_left_out=meter.tokens_left_out,
            branches_left_out=meter.branches_left_out,
            plain_seconds=account.plain,
            cost_seconds=account.cost,
            exploration_seconds=account.exploration,
            allowed_seconds=account.allowed,
            costs=self.controller.costs.table,
            parts=self._part_records() if len(self._parts) > 1 else (),
        )

    def _part_records(self) -> tuple[DraftPartRecord, ...]:
        return tuple(
            DraftPartRecord(
                draft=part.name,
                positions=meter.position_counts(),
                blocks=meter.blocks,
                acceptance_length=meter.acceptance_length,
                wasted=meter.wasted,
                draft_seconds=meter.draft,
            )
            for part, meter in zip(self._parts, self._part_meters, strict=True)
        )

    def _ask(self, generation: Generation) -> Ask | None:
        """Return what a sequence may have drafted; None where no draft can be of use."""
        state = generation.length
        if state is None or not generation.generated or generation.draft_off:
            return None
        left = generation.most - len(generation.tokens)
        longest = min(self.speculation.longest, left)
        if longest < 1:
            return None
        able = able_parts(self.speculation.draft, _query(generation, 1))
        options = [
            self._option(generation, state, part, longest)
            for part in able
            if part not in state.ended
        ]
        found = [ask for ask in options if ask is not None]
        return self.controller.choose(found) if found else None

    def _option(
        self, generation: Generation, state: SequenceLength, part: int, longest: int
    ) -> Ask | None:
        """Return what a part may draft for a sequence; None where its context is full."""
        count, context = len(generation.tokens), self._parts[part].context
        if context is not None and count + longest > context:
            longest = context - count
            if longest < 1:
                full = f"the draft's context of {context} tokens is full"
                self._end(generation, part, f"{full}; the rest was generated without it")
                return None
        if longest < 1:
            return None
        unread = self._parts[part].pending(_query(generation, longest))
        left = generation.most - count
        return Ask(
            state,
            longest,
            count,
            generation.generated,
            left,
            unread,
            part,
            branches=self.speculation.branches,
            reach=reach_of(self._parts[part]),
        )

    def _end(self, generation: Generation, part: int, reason: str) -> None:
        """Note that a part of the draft, or all of it, has nothing more for a sequence."""
        if len(self._parts) == 1:
            generation.draft_off = generation.draft_off or reason
        elif generation.length is not None:
            named = f"{self._parts[part].name}: {reason}"
            generation.length.end(part, generation.generated, named)

    def _draft(self, part: int, found: Sequence[tuple[Generation, Ask]], plan: Plan) -> None:
        """Have a part of the draft propose what was planned for it, and take its time."""
        step, draft = self._step, self._parts[part]
        shapes = plan.shapes or (CHAIN,) * len(found)
        asked = [
            (generation, ask, length, shape)
            for (generation, ask), length, shape in zip(found, plan.lengths, shapes, strict=True)
            if length and ask.part == part and self._has_pages(draft, generation, length)
        ]
        if not asked:
            return
        queries = [_query(generation, length, shape) for generation, _, length, shape in asked]
        begun = self._clock()
        proposals = draft.propose(queries)
        seconds = self._clock() - begun
        unread, lengths = 0, []
        for (generation, ask, length, shape), query, proposal in zip(
            asked, queries, proposals, strict=True
        ):
            generation.meter.draft += seconds
            if proposal.ended:
                self._end(generation, part, proposal.ended)
            number, runnable = generation.number, self._runnable(proposal, length)
            step.proposals[number], step.parts[number] = runnable, part
            step.verifiers[number], step.more[number] = query.verifier, shape.promise
            lengths.append(len(runnable.tokens))
            unread += ask.unread - (0 if proposal.tokens else draft.pending(query))
        self._learn_costs(part, _counts(lengths), unread, seconds)

    def _learn_costs(self, part: int, counts: Sequence[int], unread: int, seconds: float) -> None:
        """Take the time of a part's call that drafted so many first, second, ... tokens."""
        costs = self.controller.costs
        self._step.seconds += seconds
        self._step.predicted += costs.drafting(counts, unread, part)
        self.meter.draft += seconds
        self._part_meters[part].draft += seconds
        costs.observe_drafting(counts, unread, seconds, part)

    def _runnable(self, proposal: Proposal, length: int) -> Proposal:
        """Return what comes before the first token that the target does not know, or never draws.

        A proposal that was drawn at random stays whole: what is left out because of what was drawn
        biases the rest.
        """
        if proposal.probabilities is not None:
            return proposal
        branches = ((depth, self._known(tokens)) for depth, tokens in proposal.branches)
        return Proposal(
            self._known(proposal.tokens[:length]),
            branches=tuple(Branch(depth, tokens) for depth, tokens in branches if tokens),
        )

    def _known(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(takewhile(lambda token: 0 <= token < self._vocabulary, tokens))

    def _has_pages(self, draft: Draft, generation: Generation, length: int) -> bool:
        """Hold pages for a draft that writes into the target's store; False where it is short.

        What is not drafted for that is counted as left out.
        """
        if not draft.shares_store:
            return True
        end = len(generation.tokens) + length
        if not generation.table.can_grow(end):
            for meter in (generation.meter, self.meter):
                meter.tokens_left_out += length
            return False
        generation.table.grow(end)
        return True


def _plain_shape(decoding: Sequence[Generation], beside: int) -> Shape:
    context = sum(len(generation.tokens) for generation in decoding)
    return Shape(len(decoding) + beside, context, context)


def _counts(lengths: Sequence[int]) -> list[int]:
    """Return how many proposals have a first token, a second, and so on."""
    return [sum(length > j for length in lengths) for j in range(max(lengths, default=0))]


def _query(generation: Generation, length: int, shape: TreeShape = CHAIN) -> DraftQuery:
    params = generation.request.params
    return DraftQuery(
        sequence=generation.number,
        tokens=generation.tokens,
        length=length,
        sampler=generation.sampler,
        verifier=verifier_for(params, branches=any(shape.siblings)),
        pages=generation.table.array,
        computed=generation.computed,
        siblings=shape.siblings,
        reach=shape.reach,
    )
