"""`fewbit draft train`: a head that drafts for a model from its own hidden states."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fewbit.cli.calibration import TextOptions
from fewbit.errors import OutputError

if TYPE_CHECKING:
    from fewbit.tune.head import Agreement, TrainedHead

HELD_OUT = 4
"""Windows that agreement is measured on before and after."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class HeadTextOptions(TextOptions):
    """Text that the target is shown while a head learns from it."""

    calibration_windows: Annotated[int, Parameter(help="Windows of calibration text at most.")] = 96


HEAD_TEXT = HeadTextOptions()


def train(  # noqa: PLR0913
    model: Annotated[str, Parameter(name="TARGET")],
    /,
    *,
    out: Path,
    tokens: int = 16_384,
    steps: int = 400,
    rate: float = 1e-3,
    unrolled: int = 3,
    text: HeadTextOptions = HEAD_TEXT,
    threads: int | None = None,
) -> int:
    """Train a head that drafts for a model from its hidden states (EAGLE-3); needs torch.

    Example: fewbit draft train smollm2-135m --out head

    Then: fewbit generate smollm2-135m --draft head. A training that is stopped begins anew.

    Args:
        model: The target: a name, a path to a GGUF file, or a folder.
        out: A new folder: config.json and safetensors in the form of speculators.
        tokens: How many tokens the head can propose, the most frequent ones.
        steps: Windows that are trained on, one a step.
        rate: Of the training, at its highest.
        unrolled: Tokens in a row that it is trained for, on its own states from the second on.
        text: What it is trained on.
        threads: Of the target; all cores.
    """
    from fewbit.calibrate.mix import calibration_windows, held_out_windows
    from fewbit.cli.progress import watched
    from fewbit.cli.pull import locate
    from fewbit.model.head_write import write_head
    from fewbit.model.runner import RunSettings, runner_of
    from fewbit.model.weights import open_model
    from fewbit.quantization.draft import kept_tokens
    from fewbit.tune import require_torch
    from fewbit.tune.head import HeadSettings, head_config, train_head

    require_torch()
    settings = HeadSettings(steps=steps, rate=rate, unrolled=unrolled)
    _require_new(out)
    with open_model(locate(model)) as source, watched() as progress:
        taps = head_config(source.config, 1).taps
        taps(source.config.layers)
        asked = text.settings(threads)
        seen = calibration_windows(source, asked, progress)
        held_out = held_out_windows(source, asked, HELD_OUT, seen, progress)
        kept = kept_tokens(source, tokens, seen.windows)
        run = RunSettings(threads=threads, context=text.window, states=taps)
        target = runner_of(source, run)
        trained = train_head(target, kept, seen.windows, held_out, settings, progress)
        write_head(out, trained.config, trained.weights, kept, source.path.name)
    print(_described(trained), file=sys.stderr)
    print(out)
    return 0


def _require_new(out: Path) -> None:
    if out.exists():
        raise OutputError(f"{out} exists already; remove it or choose another output.")


def _described(trained: TrainedHead) -> str:
    """Return what training brought, in a sentence."""
    return (
        "the head's likeliest token is the model's, by position in a block: before training "
        f"{_shares(trained.before)}, after it {_shares(trained.after)} (text that was not trained "
        "on, read as it stands)"
    )


def _shares(agreement: Agreement) -> str:
    return " ".join(f"{share:.0%}" for share in agreement)
