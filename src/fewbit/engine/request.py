"""A request, and the state of the sequence that serves it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from fewbit.cache.pages import PageTable
from fewbit.engine.stop import StopCondition, StopMatcher
from fewbit.errors import FewbitError, RequestError
from fewbit.records.costs import CostTable
from fewbit.records.costs import Forecast as ForecastRecord
from fewbit.records.generation import BranchCount, GenerationRecord, PositionCount
from fewbit.sampling import Branch, SamplingParams, TokenLogprob, TokenSampler
from fewbit.speculate.controller import LengthController
from fewbit.speculate.drafts import Draft
from fewbit.speculate.planned import SequenceLength
from fewbit.tokens.grammar import Grammar


@dataclass(frozen=True)
class Request:
    """One generation: the prompt's ids, how to sample, when to stop.

    `sample` tells several outputs of one seed apart. `top_logprobs` asks for log-probabilities and
    that many of the likeliest tokens. `speculate` False leaves the engine's draft unused. With a
    `grammar` the text is of its language unless `max_tokens` or a stop string ends it before; where
    it is complete only the model's ends may follow, which `stop.ids` should name.

    Raises:
        RequestError: an empty prompt, or a negative count.
    """

    prompt: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    stop: StopCondition = field(default_factory=StopCondition)
    sample: int = 0
    top_logprobs: int | None = None
    speculate: bool = True
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", tuple(self.prompt))
        if not self.prompt:
            raise RequestError("the prompt has no tokens; give some text.")
        if self.sample < 0:
            raise RequestError(f"sample is {self.sample}; it must not be negative.")
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= 1000:
            raise RequestError(f"top_logprobs is {self.top_logprobs}; it must be in [0, 1000].")


class Output(NamedTuple):
    """What a step brought for one request."""

    request: int
    """The number that `Engine.add` gave."""
    tokens: tuple[int, ...]
    text: str
    """New text, never half a character nor a part of what may become a stop string."""
    logprobs: tuple[TokenLogprob, ...] = ()
    record: GenerationRecord | None = None
    """Set once, with the last output."""
    fault: FewbitError | None = None
    """Why the request failed, where its record says `error`."""


@dataclass(frozen=True)
class Speculation:
    """A draft for an engine, the most tokens it may propose at once, and measured costs.

    Beside its chain a proposal has at most so many `branches`, those that are expected to pay.
    Without `costs` they are learned from the run's own steps, the first of which have no draft.
    `control` makes what chooses the lengths, given the longest, the costs and the names of the
    drafts that are asked by themselves.
    """

    draft: Draft
    longest: int = 8
    costs: CostTable | None = None
    branches: int = 0
    control: Callable[[int, CostTable | None, Sequence[str]], LengthController] = LengthController


class TextDecoder(Protocol):
    """Turns tokens into text one by one (`tokens.stream.StreamDecoder`)."""

    def push(self, token: int) -> str:
        """Return the text that became certain with this token."""
        ...

    def finish(self) -> str:
        """Return what was held back."""
        ...


@dataclass(slots=True)
class Forecast:
    """Steps with drafts: tokens and seconds as they were expected, and as they came."""

    expected_tokens: float = 0.0
    tokens: int = 0
    expected_seconds: float = 0.0
    seconds: float = 0.0

    def add(
        self, expected_tokens: float, tokens: int, expected_seconds: float, seconds: float
    ) -> None:
        """Add a step, or a sequence's part in one."""
        self.expected_tokens += expected_tokens
        self.tokens += tokens
        self.expected_seconds += expected_seconds
        self.seconds += seconds

    def record(self) -> ForecastRecord:
        """Return it as a record."""
        return ForecastRecord(
            expected_tokens=self.expected_tokens,
            tokens=self.tokens,
            expected_seconds=self.expected_seconds,
            seconds=self.seconds,
        )


class BranchFate(NamedTuple):
    """What became of one branch of a draft."""

    depth: int
    rank: int
    """Among the candidates of its depth; that of the chain's token is 0."""
    tokens: int
    tested: bool
    """Whether the target judged its first token."""
    accepted: int
    """Tokens that stand."""


def branch_fates(
    branches: Sequence[Branch], reached: int | None, chosen: int | None, accepted: int
) -> list[BranchFate]:
    """Return what became of the branches of a draft.

    Args:
        branches: in their order.
        reached: the depth at which the chain's token was rejected; None where none was.
        chosen: the branch that was accepted.
        accepted: how many of its tokens.
    """
    fates: list[BranchFate] = []
    ranks: dict[int, int] = {}
    for i, (depth, tokens) in enumerate(branches):
        rank = ranks[depth] = ranks.get(depth, 0) + 1
        tested = depth == reached and (chosen is None or i <= chosen)
        fates.append(BranchFate(depth, rank, len(tokens), tested, accepted if i == chosen else 0))
    return fates


@dataclass(slots=True)
class Meter:
    """Counts and clock readings of one sequence; becomes its record."""

    arrived: float
    started: float | None = None
    token_times: list[float] = field(default_factory=list)
    prompt: float = 0.0
    draft: float = 0.0
    verify: float = 0.0
    plain: float = 0.0
    rollback: float = 0.0
    plain_steps: int = 0
    blocks: int = 0
    preemptions: int = 0
    emitted: int = 0
    """Tokens of steps that verified a draft."""
    positions: list[list[int]] = field(default_factory=list)
    """[proposed, tested, accepted] by position in the block."""
    forecast: Forecast = field(default_factory=Forecast)
    branches: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """[proposed, tested, accepted, tokens proposed, tokens accepted] by depth and rank."""
    tokens_left_out: int = 0
    branches_left_out: int = 0

    def count_branches(self, found: Sequence[BranchFate]) -> None:
        """Add the branches of one verified draft."""
        for fate in found:
            counts = self.branches.setdefault((fate.depth, fate.rank), [0] * 5)
            counts[0] += 1
            counts[1] += fate.tested
            counts[2] += fate.accepted > 0
            counts[3] += fate.tokens
            counts[4] += fate.accepted

    def count_block(self, proposed: int, tested: int, accepted: int, emitted: int) -> None:
        """Add one verified draft."""
        self.blocks += 1
        self.emitted += emitted
        while len(self.positions) < proposed:
            self.positions.append([0, 0, 0])
        for i in range(proposed):
            self.positions[i][0] += 1
            self.positions[i][1] += i < tested
            self.positions[i][2] += i < accepted

    @property
    def acceptance_length(self) -> float | None:
        """Tokens of each step that verified a draft; None without such steps."""
        return self.emitted / self.blocks if self.blocks else None

    @property
    def wasted(self) -> int:
        """Drafted tokens that were run for nothing."""
        chain = sum(proposed - accepted for proposed, _, accepted in self.positions)
        return chain + sum(counts[3] - counts[4] for counts in self.branches.values())

    def branch_counts(self) -> tuple[BranchCount, ...]:
        """Return the counts by depth and rank as records."""
        return tuple(
            BranchCount(
                depth=depth,
                rank=rank,
                proposed=counts[0],
                tested=counts[1],
                accepted=counts[2],
                tokens=counts[4],
            )
            for (depth, rank), counts in sorted(self.branches.items())
        )

    def position_counts(self) -> tuple[PositionCount, ...]:
        """Return the counts by position as records."""
        return tuple(PositionCount(proposed=p, tested=t, accepted=a) for p, t, a in self.positions)


@dataclass(eq=False, slots=True)
class Generation:
    """The state of one request while it is served.

    `tokens` are the prompt and what was generated. Keys and values of the first `computed` of them
    lie in the store; the rest are still to be run. It never takes more than `most` positions there.
    """

    number: int
    request: Request
    seed: int
    sampler: TokenSampler
    decoder: TextDecoder
    matcher: StopMatcher
    table: PageTable
    meter: Meter
    length: SequenceLength | None
    tokens: list[int]
    most: int
    computed: int = 0
    cached: int = 0
    draft_off: str = ""
    repeats: bool = True
    """Whether its seed alone gives the same tokens again: nothing was judged by what it was drawn
    from."""

    @property
    def generated(self) -> int:
        """How many tokens were generated."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def pending(self) -> int:
        """How many tokens are still to be run; 1 while decoding."""
        return len(self.tokens) - self.computed

    @property
    def decoding(self) -> bool:
        """Whether only the last token is left to run."""
        return self.pending == 1

    @property
    def remaining(self) -> int | None:
        """How many tokens `max_tokens` still allows."""
        limit = self.request.stop.max_tokens
        return None if limit is None else limit - self.generated

    def reuse(self) -> None:
        """Begin with what the store holds of these tokens, where that is more than was computed."""
        before = self.computed
        self.computed = self.table.reuse(self.tokens, before)
        if not self.meter.preemptions:
            self.cached += self.computed - before

    def settle(self, rows: int) -> None:
        """Count a step's rows as computed, but for drafted ones that were not accepted.

        Called when `tokens` has what the step brought; what is computed then is verified.
        """
        self.computed = min(self.computed + rows, len(self.tokens) - 1)
        self.table.roll_back(self.computed)
        self.table.share(self.tokens, self.computed)
