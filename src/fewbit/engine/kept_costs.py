"""Measured costs, kept for the next run of the same models on the same machine."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fewbit.atomic import write_bytes
from fewbit.engine.chosen_draft import OpenedDraft
from fewbit.engine.loaded import LoadedModel
from fewbit.errors import BadFileError, FewbitError
from fewbit.records.base import from_json, to_json
from fewbit.records.conditions import Conditions
from fewbit.records.costs import CostKey, CostTable, KeptCosts


def cost_key(
    target: LoadedModel, opened: OpenedDraft, conditions: Conditions, sequences: int
) -> CostKey:
    """Return what the costs of a target with a draft depend on.

    Args:
        target: the target.
        opened: the draft beside it.
        conditions: of the run.
        sequences: the most that are served at once.
    """
    record, speculation = opened.record, opened.speculation
    own = opened.kernels if record is None else record.kernels
    return CostKey(
        fewbit=conditions.fewbit,
        cpu=conditions.cpu,
        threads=conditions.threads,
        kernels=tuple(sorted({kernel.kernel for kernel in (*target.runner.kernels, *own)})),
        cache_type=conditions.kv,
        files=(*target.runner.source.checkpoint.stamps(), *opened.stamps),
        draft="" if speculation is None else speculation.draft.name,
        context=target.runner.context,
        sequences=sequences,
    )


def kept_path(folder: Path, key: CostKey) -> Path:
    """Return where costs of that key are kept."""
    return folder / f"{hashlib.sha256(to_json(key)).hexdigest()[:32]}.json"


def find_costs(folder: Path, key: CostKey) -> CostTable | None:
    """Return the costs kept under a key; None where there are none.

    Raises:
        BadFileError: the file that should have them is none of ours, or of another key.
    """
    path = kept_path(folder, key)
    try:
        text = path.read_bytes()
    except OSError:
        return None
    kept = from_json(KeptCosts, text, name=str(path))
    if kept.key != key:
        raise BadFileError(f"{path} has the costs of another run; delete it.")
    return kept.costs


def keep_costs(folder: Path, key: CostKey, costs: CostTable) -> str:
    """Keep costs; return why they could not be, in a sentence, or nothing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(kept_path(folder, key), to_json(KeptCosts(key=key, costs=costs)))
    except (OSError, FewbitError) as error:
        return f"The costs were not kept: {error}"
    return ""
