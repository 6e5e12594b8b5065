"""The way into tuning from code that runs without torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from fewbit.errors import MissingError
from fewbit.formats.spec import QuantTensor
from fewbit.model.config import ModelConfig
from fewbit.model.weights import ModelSource
from fewbit.program import Slot
from fewbit.tune.settings import Job, TuneResult, TuneSettings, TuneText

_UNKEPT = Job()


def require_torch() -> None:
    """Check that torch can be imported.

    Raises:
        MissingError: it cannot; the message says how to install it.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingError(
            "Tuning needs the package 'torch', which is not installed; run "
            "pip install 'fewbit[torch]'."
        )


def distill(  # noqa: PLR0913
    source: ModelSource,
    start: Mapping[Slot, QuantTensor],
    text: TuneText,
    settings: TuneSettings,
    job: Job = _UNKEPT,
    *,
    config: ModelConfig | None = None,
) -> TuneResult:
    """Move a quantized model's output distribution towards its source's.

    Minimizes the mean of KL(source || model) over the windows' positions (knowledge distillation,
    Hinton et al. 2015, at temperature 1) in the parameters that `settings.what` names. Every value
    is rounded in the forward pass to what its format stores, with straight-through gradients
    (Bengio et al. 2013), so the result is what was trained, bit for bit.

    Args:
        source: the model to come close to.
        start: the tensor of every slot: matrices in any format, vectors of shape (1, n) in floats.
        text: the windows to train on, and the held-out ones.
        settings: what is tuned and how.
        job: where to keep states and checkpoints, so that a stopped job goes on, and who is told.
        config: of the model that `start` belongs to, where a transform made it another than the
            source's.

    Returns:
        The tensors with the least held-out divergence seen: never more than that of `start`.

    Raises:
        MissingError: torch is not installed, or a slot has no tensor.
        UsageError: too few windows, a token outside the vocabulary, or more memory than there is.
        NumericalError: the divergence is not finite.
    """
    require_torch()
    from fewbit.tune.distillation import run  # noqa: PLC0415, torch takes seconds to import

    return run(source, start, text, settings, job, config or source.config)
