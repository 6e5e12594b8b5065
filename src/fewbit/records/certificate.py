"""What `fewbit certify` found: whether a draft leaves the output as it is, and the evidence."""

from __future__ import annotations

from enum import Enum

from fewbit.records.base import Record
from fewbit.records.conditions import Conditions
from fewbit.records.generation import DraftModelRecord
from fewbit.records.kernels import KernelRecord
from fewbit.records.model import ModelFacts

CERTIFICATE_VERSION = 1


class Standing(Enum):
    """The answer to "does the draft change what the model says?"."""

    CERTIFIED = "CERTIFIED"
    NOT_CERTIFIED = "NOT CERTIFIED"
    INCONCLUSIVE = "INCONCLUSIVE"

    @property
    def exit_code(self) -> int:
        """What the command line ends with."""
        codes = {Standing.CERTIFIED: 0, Standing.NOT_CERTIFIED: 3, Standing.INCONCLUSIVE: 4}
        return codes[self]


class Acceptance(Record, frozen=True, kw_only=True):
    """How drafted tokens fared: all, those the target reached, and those it accepted."""

    proposed: int
    tested: int
    accepted: int

    @property
    def rejected(self) -> int:
        """Drafted tokens that the target judged and turned down."""
        return self.tested - self.accepted


class PlainRun(Record, frozen=True, kw_only=True):
    """What a request said alone and without a draft."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of each token, under the model's unchanged logits."""


class EqualityCase(Record, frozen=True, kw_only=True):
    """All requests once more, along a draft, compared with their plain runs."""

    draft: str
    disturbed: bool
    """Some drafted tokens were replaced, and any proposed where there were none."""
    longest: int
    """Tokens drafted at once."""
    branches: int = 0
    """Beside the chain of a draft, at most."""
    together: int
    """Requests in a batch; the plain ones ran alone."""
    requests: int
    tokens: int
    """Tokens compared, each with its log-probability."""
    acceptance: Acceptance
    difference: str = ""
    """The first one, in words; empty where there is none."""


class EqualityCheck(Record, frozen=True, kw_only=True):
    """Greedy and seeded output, with and without the draft, token by token and bit for bit."""

    prompts: tuple[str, ...]
    params: tuple[str, ...]
    """How tokens were chosen, in words; every prompt in each of these ways."""
    cases: tuple[EqualityCase, ...]

    @property
    def tokens(self) -> int:
        """Tokens compared."""
        return sum(case.tokens for case in self.cases)

    @property
    def acceptance(self) -> Acceptance:
        """How drafted tokens fared, over all cases."""
        found = [case.acceptance for case in self.cases]
        return Acceptance(
            proposed=sum(a.proposed for a in found),
            tested=sum(a.tested for a in found),
            accepted=sum(a.accepted for a in found),
        )

    @property
    def differences(self) -> tuple[str, ...]:
        """What was not equal."""
        return tuple(case.difference for case in self.cases if case.difference)


class EnumerationCase(Record, frozen=True, kw_only=True):
    """The whole distribution over the outputs of a tiny model, by two ways."""

    draft: str
    rule: str
    """The rule that judged the proposals."""
    params: str
    length: int
    """Tokens of an output, at most."""
    longest: int
    """Tokens drafted at once."""
    branches: int = 0
    """Beside the chain of a draft, at most."""
    outputs: int
    """Outputs with any probability."""
    paths: int
    """Ways through the random numbers, each run through the engine."""
    rejecting: float
    """Probability that some drafted token is rejected."""
    total: float
    """Probability of all paths together; 1 but for rounding."""
    distance: float
    """Largest difference of the two probabilities of any output."""
    tolerance: float
    fault: str = ""
    """How a draw came out otherwise than its rule says; nothing else is known then."""

    @property
    def equal(self) -> bool:
        """Whether the two distributions are one."""
        return not self.fault and self.distance <= self.tolerance


class ControlCase(Record, frozen=True, kw_only=True):
    """A bug that was planted, and whether the enumeration noticed."""

    bug: str
    planted: str
    """What was done, in words."""
    distance: float
    """As in `EnumerationCase`, with the bug."""
    without: float
    """The same run without the bug."""
    tolerance: float

    @property
    def caught(self) -> bool:
        """Whether the bug is what made the difference."""
        return self.distance > self.tolerance >= self.without


class CacheCase(Record, frozen=True, kw_only=True):
    """Pages of keys and values after a speculative run, and after one pass over the same tokens."""

    params: str
    draft: str
    longest: int
    branches: int = 0
    """Beside the chain of a draft, at most."""
    pages: int
    """Whole pages of verified tokens, all layers, compared byte by byte."""
    bytes: int
    written_over: int
    """Rows in them that were first written for a drafted token and then for another one; of a
    draft's store, drafted tokens that were rejected."""
    differing: tuple[int, ...]
    """Pages of the sequence that are not equal."""


class SamplingCheck(Record, frozen=True, kw_only=True):
    """Tokens drawn by the real model along drafts, against its own probabilities.

    A partition of the vocabulary is declared beforehand. For every emitted token the target's
    probability that it falls in the first part is known exactly, so the sum of (indicator -
    probability) is a martingale; z is it over the root of the summed variances.
    """

    partition: str
    tokens: int
    drafted: int
    """Of them, those that were drafted."""
    bias: float
    """Mean of indicator - probability."""
    z: float
    critical: float
    """The largest |z| that passes."""
    level: float
    """Chance of failing without any bias."""
    detectable: float
    """A constant bias in the probability that is noticed with `power`."""
    power: float

    @property
    def passed(self) -> bool:
        """Whether nothing speaks for a bias."""
        return abs(self.z) <= self.critical


class Certificate(Record, frozen=True, kw_only=True):
    """All that `fewbit certify` did, and what follows from it."""

    version: int = CERTIFICATE_VERSION
    standing: Standing
    reasons: tuple[str, ...]
    target: ModelFacts
    draft: str
    draft_model: DraftModelRecord | None
    draft_kernels: tuple[KernelRecord, ...] = ()
    """Of a draft that is the target with other weights, or a head."""
    notes: tuple[str, ...] = ()
    """What is run otherwise than it is stored, and what sets the draft apart."""
    preserved: str
    """Whose distribution it is that speculation leaves as it is."""
    equality: EqualityCheck
    enumerations: tuple[EnumerationCase, ...]
    controls: tuple[ControlCase, ...]
    caches: tuple[CacheCase, ...]
    draft_caches: tuple[CacheCase, ...] = ()
    """The same of the store of a draft that is a model; an error there costs accepted tokens."""
    sampling: SamplingCheck | None
    """None without --long."""
    kernels: tuple[KernelRecord, ...]
    conditions: Conditions
    seconds: float
