"""What the axis of memory has to tell beside its slices."""

from __future__ import annotations

from fewbit.records.base import Record


class Peak(Record, frozen=True, kw_only=True):
    """The most memory that a process had, up to the end of so many sequences at once."""

    sequences: int
    bytes: int


class MemoryRun(Record, frozen=True, kw_only=True):
    """What one process that loads a model and serves it had in memory, as the system counts it."""

    before: int
    """Resident before the weights were loaded: Python, libraries and tokenizer."""
    loaded: int
    """Resident when the model was ready."""
    peaks: tuple[Peak, ...]
    """In ascending numbers of sequences."""
    weights: int
    """Packed matrices and vectors, counted."""
    page_bytes: int
    """Of a page of keys and values of all layers, counted."""
    page_tokens: int

    @property
    def resident(self) -> int:
        """What loading the weights took, measured."""
        return self.loaded - self.before

    def peak(self, sequences: int) -> int:
        """Return the peak with so many sequences at once, one of those that were run."""
        return next(peak.bytes for peak in self.peaks if peak.sequences == sequences)


class ArmMemory(Record, frozen=True, kw_only=True):
    """One arm, medians over its processes."""

    arm: str
    weights_counted: int
    weights_resident: int
    """Measured."""
    kv_bytes_per_token: float
    """Counted: a page's bytes over its tokens."""
    kv_bytes_per_token_measured: float
    """What the peak grew by from few sequences to many, over their tokens."""
    peaks: tuple[Peak, ...]


class Fit(Record, frozen=True, kw_only=True):
    """How many sequences fit in a budget, and what a run of its own says of that."""

    arm: str
    budget: int
    sequences: int
    """That fit, by the peaks that were measured."""
    run: int
    """Sequences at once in the run that checks it."""
    expected: int
    """The peak of that run, by the peaks measured before."""
    measured: int


class MemoryDetails(Record, frozen=True, kw_only=True, tag="memory"):
    """What both arms take, each measured in processes of its own."""

    length: int
    """Tokens of each sequence, prompt and answer together."""
    processes: int
    """Of each arm."""
    arms: tuple[ArmMemory, ...]
    fits: tuple[Fit, ...]
