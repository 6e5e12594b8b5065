"""A recipe: which tensors get which format by which method, as data."""

from __future__ import annotations

from enum import Enum
from typing import Literal

from fewbit.records.base import Record
from fewbit.records.kernels import Activations
from fewbit.records.kv import KvForm


class Role(Enum):
    """What a matrix does in the model; vectors (norms, biases) have no role and are kept."""

    LINEAR = "linear"
    """The matrices inside decoder layers."""
    EMBEDDING = "embedding"
    """The input table of a model whose output table is another one."""
    HEAD = "head"
    """The output table; where input and output share one table, that one."""


Tune = Literal["scales", "rounding", "weights"]
"""What distillation changes: scales, offsets and norms; codes too, by relaxed rounding; or weights
behind a straight-through grid."""

KEEP = "keep"
"""The format of a rule that leaves its tensors as the source has them."""


class Rule(Record, frozen=True, kw_only=True):
    """One line of a recipe; the first rule that fits a tensor decides."""

    format: str
    """A format's name, or `keep`."""
    role: Role | None = None
    """The tensors of a role; a role that the model does not have is no error."""
    match: str | None = None
    """Or the slots that fit a shell pattern such as `layers.*.down.weight`; it must fit some."""
    fallback: tuple[str, ...] = ()
    """Formats (or `keep`) to take, in order, where the first does not divide a tensor's columns.
    Each use is recorded; without one that fits, the plan is refused."""
    method: str | None = None
    """How their codes are found; None for the recipe's method."""
    activations: Activations = Activations.INT8
    """How the inputs of these layers are rounded where their weights are integers."""


class Recipe(Record, frozen=True, kw_only=True):
    """A named set of rules; a matrix that no rule fits is kept."""

    name: str
    method: str
    """How codes are found where a rule says nothing else, a key of `methods.solvers.METHODS`."""
    rules: tuple[Rule, ...]
    transforms: tuple[str, ...] = ()
    """Function-preserving transforms that come before solving, in order."""
    propagation: float = 0.0
    """How much of what errors of earlier layers do to a matrix's outputs it makes up for, 0 to 1;
    of methods that look at how inputs go together."""
    tune: Tune | None = None
    """What is tuned by distillation after solving."""
    tune_steps: int | None = None
    """Steps of that training; None for as many as are usual."""
    kv: KvForm | None = None
    """What static scales of keys and values are measured for; None for no scales."""

    @property
    def methods(self) -> tuple[str, ...]:
        """Every method that is named: the recipe's, then those of rules."""
        own = (rule.method for rule in self.rules if rule.method is not None)
        return tuple(dict.fromkeys((self.method, *own)))
