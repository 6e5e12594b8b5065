"""Training a draft head, as code without torch sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import UsageError
from fewbit.model.config import ModelConfig
from fewbit.model.head import HeadConfig
from fewbit.model.runner import Runner
from fewbit.progress import Progress, unwatched
from fewbit.tune.distill import require_torch

Agreement: TypeAlias = tuple[float, ...]
"""By position in a block: how often the head's likeliest token is the target's, behind the text."""


@dataclass(frozen=True, kw_only=True)
class HeadSettings:
    """How a head is trained.

    Raises:
        UsageError: a number below 1, or a rate that is none.
    """

    steps: int = 400
    """Windows that are trained on, one a step; they come again where there are fewer."""
    unrolled: int = 3
    """Positions in a row that the head is trained for, on its own states from the second on."""
    decay: float = 0.8
    """What each position counts of the one before it."""
    rate: float = 1e-3
    warmup: float = 0.05
    """Share of the steps over which the rate rises from zero; after it it falls to zero."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "unrolled"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} is {value!r}; it must be a whole number, at least 1.")
        if not self.rate > 0:
            raise UsageError(f"rate is {self.rate!r}; it must be above 0.")


@dataclass(frozen=True, eq=False)
class TrainedHead:
    """A head's weights by the names of speculators, float32, and what training brought."""

    config: HeadConfig
    weights: dict[str, NDArray[np.float32]]
    before: Agreement
    after: Agreement


def head_config(target: ModelConfig, kept: int) -> HeadConfig:
    """Return the head that is trained for a target: a layer of its size, with a head of its own.

    Args:
        target: of the target.
        kept: tokens that the head can propose.
    """
    layer = replace(
        target,
        family="llama",
        layers=1,
        windows=(None,),
        local_rope=None,
        tied=False,
        head_rows=kept,
        qk_norm=False,
        sandwich_norms=False,
        norm_offset=0.0,
        embed_scale=1.0,
        attention_softcap=None,
        logits_softcap=None,
        attention_scale=target.head_dim**-0.5,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        mixture=None,
        mlp_rotation=0,
    )
    return HeadConfig(
        layer=layer, target_hidden=target.hidden, after=None, norm_before_residual=True
    )


def train_head(  # noqa: PLR0913, PLR0917
    target: Runner,
    kept: NDArray[np.int32],
    windows: Sequence[NDArray[np.int32]],
    held_out: Sequence[NDArray[np.int32]],
    settings: HeadSettings,
    progress: Progress = unwatched,
) -> TrainedHead:
    """Train an EAGLE-3 head on a target's own distributions, unrolled over its own states.

    The loss is the cross-entropy with what the target says of the kept tokens, summed over the
    positions of a block (training-time test, Li et al. 2025). It begins with the target's own head
    and last layer.

    Args:
        target: loaded with `RunSettings.states` as `HeadConfig.taps` says, one sequence.
        kept: int32 [n] ascending, ids that the head can propose.
        windows: int32 [tokens] each, of at least `unrolled` + 2.
        held_out: the same, to measure agreement on.
        settings: how long, how fast.
        progress: told how many steps are done.

    Raises:
        MissingError: torch is not installed.
        UsageError: no window is long enough.
        UnsupportedError: the target has too few layers.
        NumericalError: the loss is not finite.
    """
    require_torch()
    shortest = settings.unrolled + 2
    long, others = ([w for w in part if len(w) >= shortest] for part in (windows, held_out))
    if not long or not others:
        raise UsageError(
            f"No window has the {shortest} tokens that are trained on at once; give more text."
        )
    from fewbit.tune.head_training import run  # noqa: PLC0415, torch takes seconds to import

    return run(target, kept, long, others, settings, progress)
