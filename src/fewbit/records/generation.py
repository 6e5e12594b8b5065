"""What one generation did: tokens, why it ended, every gap, and how its draft fared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import pairwise

from fewbit.records.base import Record
from fewbit.records.conditions import Conditions
from fewbit.records.costs import CostTable, Forecast
from fewbit.records.kernels import KernelRecord
from fewbit.records.loading import LoadRecord
from fewbit.records.model import ModelFacts


class FinishReason(Enum):
    """Why a generation ended."""

    STOP = "stop"
    """An end-of-text token, a stop token or a stop string."""
    LENGTH = "length"
    """`max_tokens` were generated, or the context is full."""
    CANCELLED = "cancelled"
    ERROR = "error"


class PositionCount(Record, frozen=True, kw_only=True):
    """How the drafted tokens at one position of their blocks fared, over a whole generation."""

    proposed: int
    """Blocks that had a token here."""
    tested: int
    """Those whose earlier tokens were all accepted, so that the target judged this one."""
    accepted: int
    """Those where the target's own token was this one."""


class BranchCount(Record, frozen=True, kw_only=True):
    """How the branches of one depth and rank fared, over a whole generation."""

    depth: int
    """Tokens of the chain before they leave it."""
    rank: int
    """In the order in which candidates for the position are judged: 1 is the first after the
    chain's own."""
    proposed: int
    """Blocks that had such a branch."""
    tested: int
    """Those where the target judged its first token: the chain stood up to there, and all
    candidates before this one were rejected."""
    accepted: int
    """Those where that token was accepted."""
    tokens: int
    """Of such branches, accepted in all."""


def judged_by_rank(branches: Iterable[BranchCount]) -> tuple[tuple[int, int], ...]:
    """Return (accepted, judged) of branches by rank, over all depths, from rank 1 on."""
    counts: dict[int, tuple[int, int]] = {}
    for branch in branches:
        accepted, judged = counts.get(branch.rank, (0, 0))
        counts[branch.rank] = accepted + branch.accepted, judged + branch.tested
    return tuple(counts[rank] for rank in sorted(counts))


def accepted_histogram(blocks: int, positions: Sequence[PositionCount]) -> tuple[int, ...]:
    """Return blocks by how many of their tokens were accepted: none, one, two, and so on."""
    reached = [blocks, *(position.accepted for position in positions), 0]
    return tuple(here - after for here, after in pairwise(reached))


class DraftChange(Record, frozen=True, kw_only=True):
    """From a generated token on, drafts had another length."""

    token: int
    length: int
    """Tokens drafted from here on; 0 is a pause."""
    reason: str


class DraftRecord(Record, frozen=True, kw_only=True):
    """What a draft did for one generation."""

    draft: str
    longest: int
    positions: tuple[PositionCount, ...]
    blocks: int
    """Steps that verified a draft."""
    acceptance_length: float | None
    """Tokens for each such step, the target's own last one included; None without blocks."""
    wasted: int
    """Drafted tokens that the target ran and that were not accepted, or came to be behind the end
    of the text."""
    trials: int
    """Of the blocks, those that were not expected to pay: the workload might have changed."""
    forecast: Forecast
    changes: tuple[DraftChange, ...]
    branches: tuple[BranchCount, ...] = ()
    tokens_left_out: int = 0
    """Of drafted chains: those that were not run, because no page of the store was free for them,
    or no row of the step; and those that a draft on the target's own store was not asked for, since
    none was free."""
    branches_left_out: int = 0
    """Drafted ones that were not run for the same reasons."""

    @property
    def histogram(self) -> tuple[int, ...]:
        """Blocks by how many of their tokens were accepted: none, one, two, and so on."""
        return accepted_histogram(self.blocks, self.positions)


class GenerationTimes(Record, frozen=True, kw_only=True):
    """Wall-clock seconds; of steps shared with other requests, the whole step counts."""

    queue: float
    """From the request's arrival to its first step."""
    first_token: float | None
    """From arrival; None where none came."""
    prompt: float
    """Steps over the prompt."""
    draft: float
    """Drafting, by whatever drafts."""
    verify: float
    """Steps that verified a draft, sampling included."""
    rollback: float
    """Forgetting drafted tokens that were not accepted."""
    plain: float
    """Decoding steps without a draft, sampling included."""
    total: float
    """From arrival to the end."""
    gaps: tuple[float, ...]
    """Between each token and the one before; tokens of one block have gaps of 0."""


class GenerationRecord(Record, frozen=True, kw_only=True):
    """One finished generation."""

    finish: FinishReason
    detail: str
    """What it stopped at, or the error, in words."""
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt, found in the store in pages that were computed for other requests."""
    generated_tokens: int
    """With the stop token, without anything after it."""
    greedy: bool
    """No random number was used, so the seed played no part."""
    seed: int
    repeats: bool = True
    """Whether a request with this seed gives the same text; not where drafts were judged by what
    they were drawn from, which a request with a seed never asks for."""
    sample: int
    plain_steps: int
    times: GenerationTimes
    preemptions: int = 0
    """How often its pages went to earlier requests, to be computed again."""
    draft: DraftRecord | None = None
    draft_off: str = ""
    """Why there was no draft, or why drafting ended before the generation did."""

    @property
    def tokens_per_second(self) -> float | None:
        """Generated tokens after the first, over the time from the first to the last."""
        seconds = sum(self.times.gaps)
        return len(self.times.gaps) / seconds if seconds > 0 else None

    @property
    def plain_tokens_per_second(self) -> float | None:
        """Speed of the steps without a draft; None where there was none."""
        return self.plain_steps / self.times.plain if self.times.plain > 0 else None


class DraftPartRecord(Record, frozen=True, kw_only=True):
    """What one of the drafts did that a combined draft asks."""

    draft: str
    positions: tuple[PositionCount, ...]
    blocks: int
    acceptance_length: float | None
    wasted: int
    draft_seconds: float


class SpeculationRecord(Record, frozen=True, kw_only=True):
    """What a draft did in an engine, for all its requests; times are counted once a step."""

    draft: str
    longest: int
    positions: tuple[PositionCount, ...]
    blocks: int
    acceptance_length: float | None
    wasted: int
    trials: int
    draft_seconds: float
    verify_seconds: float
    rollback_seconds: float
    forecast: Forecast
    plain_seconds: float
    """What plain decoding would have taken for everything that was done."""
    cost_seconds: float
    """Spent beyond that; below 0 where speculation gained time."""
    exploration_seconds: float
    """The budget for finding out whether the draft pays."""
    allowed_seconds: float
    """The most that the cost may be: a share of the plain time, and the budget."""
    costs: CostTable
    """What the lengths were chosen by, before the run's own steps corrected it."""
    parts: tuple[DraftPartRecord, ...] = ()
    """Of a combined draft, what each did that it asks."""
    branches: tuple[BranchCount, ...] = ()
    tokens_left_out: int = 0
    """Of drafted chains: those that were not run, because no page of the store was free for them,
    or no row of the step; and those that a draft on the target's own store was not asked for, since
    none was free."""
    branches_left_out: int = 0
    """Drafted ones that were not run for the same reasons."""


class EngineRecord(Record, frozen=True, kw_only=True):
    """What an engine did since it was made."""

    requests: int
    steps: int
    rows: int
    """Of all steps."""
    pages: int
    """Of the KV store, of 64 positions each."""
    pages_held: int
    """By requests that run now."""
    pages_peak: int
    pages_idle: int
    """Held by nobody, kept for a request that begins with their tokens."""
    evictions: int
    """Idle pages that were written anew."""
    prompt_tokens: int
    """Of the requests that ended."""
    cached_tokens: int
    """Those of them that were found in the store."""
    preemptions: int
    speculation: SpeculationRecord | None = None


class DraftModelRecord(Record, frozen=True, kw_only=True):
    """The model that drafted, and how it ran."""

    model: ModelFacts
    kernels: tuple[KernelRecord, ...]
    loading: LoadRecord


class GrammarRecord(Record, frozen=True, kw_only=True):
    """What the text had to be."""

    kind: str
    """`JSON schema`, `Lark grammar` or `regular expression`."""
    text: str


class GenerationReport(Record, frozen=True, kw_only=True):
    """One generation with its conditions, as `fewbit generate --json` writes it."""

    model: ModelFacts
    kernels: tuple[KernelRecord, ...]
    loading: LoadRecord
    draft: DraftModelRecord | None = None
    """None where no model drafted."""
    draft_kernels: tuple[KernelRecord, ...] = ()
    """Of a draft that is the model itself with other weights: what reads each matrix."""
    conditions: Conditions
    prompt: str
    """As given, before any chat template."""
    chat_template: bool
    """Whether the model's chat template was put around the prompt."""
    grammar: GrammarRecord | None = None
    text: str
    tokens: tuple[int, ...]
    generation: GenerationRecord
