"""The artefact scan: what can be known of a candidate's stored bytes before anything is run.

Every tensor of candidate and source, expert by expert: values that are not finite, scales that
were never set, blocks whose codes are all clipped, dead rows, rows worse than zeros, the error of
each matrix with outliers ranked, and experts that no calibration token reached.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

from fewbit.checkpoint.own_manifest import altered, is_hashed_as_stored
from fewbit.evaluate.artefact.tensor import (
    BLOCK_ROWS,
    FAR,
    LEAST_FAR,
    Suspicion,
    chance_clipped,
    layout_of,
    not_finite,
    scan_tensor,
    values,
)
from fewbit.evaluate.axis import Brings
from fewbit.evaluate.identity import Subject, changed_slots, shared_slots, slot_in
from fewbit.formats.spec import QuantTensor
from fewbit.model.binding import is_vector
from fewbit.model.families import expert_of
from fewbit.model.weights import ModelSource
from fewbit.program import OUTSIDE, Slot
from fewbit.records.manifest import Manifest
from fewbit.records.measurement import AxisResult, Finding
from fewbit.records.scan import Defect, ErrorOutlier, ScanDetails, TensorError

AXIS = "scan"

_OUTLIERS = 10
_FEW_ZEROED = 0.01
"""Share of a matrix' groups that may have a second-level scale of zero."""
_LEAST_MATRICES = 8
"""In a format, so that one of them can stand out."""
_KINDS = {
    "source": ("values of the source that are not finite", "The source's values are all finite"),
    "non-finite": ("values that are not finite", "Every value is finite"),
    "scales": (
        "scales that are zero or not finite where the source has weights",
        "Every scale that matters is set",
    ),
    "zeroed": (
        "groups whose second-level scale is zero where the source has weights",
        "No matrix lost more than a few groups to a second-level scale of zero",
    ),
    "clipped": (
        "groups whose codes are all clipped at the ends of their range",
        "No group is clipped whole",
    ),
    "dead-rows": (
        "rows of zeros where the source has weights",
        "No row died",
    ),
    "rows": (
        f"blocks of {BLOCK_ROWS} rows whose error is over {FAR:g} times that of the others",
        f"No block of {BLOCK_ROWS} rows has an error far from that of the others in its matrix",
    ),
    "matrix": (
        f"matrices whose error is over {FAR:g} times the median of those in their format",
        "No matrix has an error far from that of the others in its format",
    ),
    "error": (
        "rows further from the source than zeros would be",
        "No row is further from the source than zeros would be",
    ),
}
"""What each kind of defect is called, and what is said where there is none."""


BRINGS = Brings({}, tuple(f"{AXIS}/{kind}" for kind in (*_KINDS, "uncalibrated", "manifest")))
"""What a gate may name."""


def scan(source: Subject, candidate: Subject, *, threads: int = 1) -> AxisResult:
    """Look at every tensor of a candidate beside its source's.

    Args:
        source: the exact model.
        candidate: what was made of it; both have the same slots (`check_identity`).
        threads: how many pieces of a matrix are looked at at once.
    """
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        looked = _Look(source.model, candidate, pool)
        found = [looked.at(slot) for slot in shared_slots(source.model, candidate.model)]
        changed = _changed(candidate, pool)
    errors = tuple(one.error for one in found if one.error is not None)
    defects = (
        *(defect for one in found for defect in one.defects),
        *far_matrices(errors),
    )
    uncalibrated = uncalibrated_experts(candidate.manifest)
    details = ScanDetails(
        tensors=errors,
        outliers=ranked_outliers(errors),
        defects=defects,
        uncalibrated=uncalibrated,
        opaque=tuple(dict.fromkeys(one.opaque for one in found if one.opaque)),
    )
    findings = (
        *(_finding(kind, defects) for kind in _KINDS),
        _calibration(uncalibrated),
        _unaltered(candidate, changed),
    )
    return AxisResult(
        axis=AXIS,
        findings=findings,
        details=details,
        notes=tuple(_notes(details)),
        seconds=time.perf_counter() - began,
    )


def far_matrices(errors: Sequence[TensorError]) -> Iterator[Defect]:
    """Yield the matrices whose error is far from that of the others in their format."""
    counts = Counter(error.candidate_format for error in errors)
    middles = _middles(errors)
    for error in errors:
        middle = middles[error.candidate_format]
        if counts[error.candidate_format] < _LEAST_MATRICES or not middle:
            continue
        if error.relative_error > max(FAR * middle, LEAST_FAR):
            yield Defect(
                kind=f"{AXIS}/matrix",
                slot=error.slot,
                layer=error.layer,
                expert=error.expert,
                count=1,
                of=1,
                first=f"a relative error of {error.relative_error:.3g}, the median {middle:.3g}",
            )


def _middles(errors: Sequence[TensorError]) -> dict[str, float]:
    """Return the median error of each format."""
    by_format: defaultdict[str, list[float]] = defaultdict(list)
    for error in errors:
        by_format[error.candidate_format].append(error.relative_error)
    return {form: median(found) for form, found in by_format.items()}


def ranked_outliers(errors: Sequence[TensorError]) -> tuple[ErrorOutlier, ...]:
    """Return the matrices whose error is the most times the median in their format."""
    middles = _middles(errors)
    ranked = [
        ErrorOutlier(
            slot=error.slot,
            format=error.candidate_format,
            relative_error=error.relative_error,
            times_median=error.relative_error / middles[error.candidate_format],
        )
        for error in errors
        if middles[error.candidate_format] > 0
    ]
    return tuple(sorted(ranked, key=lambda o: -o.times_median)[:_OUTLIERS])


def uncalibrated_experts(manifest: Manifest | None) -> tuple[Slot, ...]:
    """Return the experts' slots that a calibration did not reach, by the manifest."""
    if manifest is None:
        return ()
    return tuple(
        entry.slot
        for entry in manifest.tensors
        if entry.calibration_tokens == 0 and expert_of(entry.slot) is not None
    )


def _changed(candidate: Subject, pool: ThreadPoolExecutor) -> tuple[str, ...]:
    """Return the stored tensors that the candidate's manifest has another hash of."""
    if candidate.manifest is None:
        return ()
    return altered(candidate.model.checkpoint, candidate.manifest, pool.map)


@dataclass(frozen=True)
class _Found:
    """What was found of one slot."""

    error: TensorError | None
    defects: tuple[Defect, ...]
    opaque: str = ""


class _Look:
    """Looks at one slot after the other, and lets each one's pages go."""

    def __init__(self, source: ModelSource, candidate: Subject, pool: ThreadPoolExecutor) -> None:
        self._source, self._candidate, self._pool = source, candidate.model, pool
        manifest = candidate.manifest
        self._changes = {} if manifest is None else changed_slots(candidate, manifest.transforms)
        entries = () if manifest is None else manifest.tensors
        self._recorded = {entry.slot: entry.relative_error for entry in entries}

    def at(self, slot: Slot) -> _Found:
        places = slot_in(self._source, slot), slot_in(self._candidate, slot)
        found = self._vector(slot, *places) if is_vector(slot) else self._matrix(slot, *places)
        self._source.release(places[0])
        self._candidate.release(places[1])
        return found

    def _vector(self, slot: Slot, one: Slot, other: Slot) -> _Found:
        """Look at a norm's weight or a bias: only whether its values are finite."""
        pairs = ("source", self._source.read(one)), ("non-finite", self._candidate.read(other))
        found = (_broken(kind, tensor) for kind, tensor in pairs)
        return _Found(None, tuple(_defect(slot, one) for one in found if len(one.places)))

    def _matrix(self, slot: Slot, one: Slot, other: Slot) -> _Found:
        source, candidate = self._source.read(one), self._candidate.read(other)
        change = self._changes.get(other, "")
        scanned = scan_tensor(source, candidate, compared=not change, over=self._pool.map)
        suspicions = [s for s in scanned.suspicions if _counts(s, candidate)]
        error = None
        if math.isfinite(scanned.relative_error):
            relative = self._recorded.get(other, 0.0) if change else scanned.relative_error
            error = _tensor_error(slot, source, candidate, relative, change)
        elif not any(s.kind == "non-finite" for s in suspicions):
            suspicions.append(_broken("source", source))
        defects = tuple(_defect(slot, suspicion) for suspicion in suspicions)
        return _Found(error, defects, candidate.spec.name if scanned.opaque else "")


def _counts(suspicion: Suspicion, candidate: QuantTensor) -> bool:
    """Return whether places are more than chance and a search by importance leave."""
    if suspicion.kind == "zeroed":
        return len(suspicion.places) > _FEW_ZEROED * suspicion.of
    form = layout_of(candidate) if suspicion.kind == "clipped" else None
    return form is None or len(suspicion.places) > chance_clipped(form, suspicion.of)


def _broken(kind: str, tensor: QuantTensor) -> Suspicion:
    """Return the values of a tensor that are not finite."""
    return Suspicion(kind, not_finite(values(tensor)), tensor.shape[0] * tensor.shape[1])


def _tensor_error(
    slot: Slot, source: QuantTensor, candidate: QuantTensor, relative: float, change: str
) -> TensorError:
    return TensorError(
        slot=slot,
        layer=_layer(slot),
        expert=expert_of(slot),
        source_format=source.spec.name,
        candidate_format=candidate.spec.name,
        weights=candidate.shape[0] * candidate.shape[1],
        relative_error=relative,
        declared=change,
    )


def _defect(slot: Slot, suspicion: Suspicion) -> Defect:
    return Defect(
        kind=f"{AXIS}/{suspicion.kind}",
        slot=slot,
        layer=_layer(slot),
        expert=expert_of(slot),
        count=len(suspicion.places),
        of=suspicion.of,
        first=suspicion.places.first(),
    )


def _layer(slot: Slot) -> int:
    parts = slot.split(".")
    return int(parts[1]) if parts[0] == "layers" else OUTSIDE


def _finding(kind: str, defects: tuple[Defect, ...]) -> Finding:
    """Return whether a kind of defect was found, and where first."""
    name, (what, sound) = f"{AXIS}/{kind}", _KINDS[kind]
    met = [defect for defect in defects if defect.kind == name]
    found = f"{sound}."
    if met:
        first, places = met[0], sum(defect.count for defect in met)
        tensors = "1 tensor" if len(met) == 1 else f"{len(met)} tensors"
        found = (
            f"{tensors} with {places:,} {what}, the first in {first.slot} at {first.first} "
            f"({first.count:,} of {first.of:,} there)."
        )
    return Finding(name=name, axis=AXIS, passed=not met, found=found)


def _calibration(uncalibrated: tuple[Slot, ...]) -> Finding:
    found = "No expert was left without calibration tokens."
    if uncalibrated:
        found = (
            f"{len(uncalibrated)} matrices of experts were reached by no calibration token, the "
            f"first {uncalibrated[0]}."
        )
    return Finding(name=f"{AXIS}/uncalibrated", axis=AXIS, passed=not uncalibrated, found=found)


def _unaltered(candidate: Subject, changed: tuple[str, ...]) -> Finding:
    manifest = candidate.manifest
    if candidate.stale:
        found = f"{candidate.stale}; remove it."
    elif changed:
        found = (
            f"{len(changed)} stored tensors are not those that the manifest has the hash of, the "
            f"first {changed[0]}: they were changed after the artefact was made."
        )
    elif manifest is None:
        found = "The candidate has no manifest, so there are no hashes to compare with."
    elif not is_hashed_as_stored(manifest):
        found = (
            f"Every float is the one that the manifest has the hash of; {manifest.container} keeps "
            "codes otherwise than hashed."
        )
    else:
        found = "Every stored tensor is the one that the manifest has the hash of."
    return Finding(
        name=f"{AXIS}/manifest", axis=AXIS, passed=not (changed or candidate.stale), found=found
    )


def _notes(details: ScanDetails) -> Iterator[str]:
    if details.opaque:
        yield (
            f"Of matrices in {', '.join(details.opaque)} the scan saw only what they decode to, "
            "not codes and scales apart."
        )
    declared = [error for error in details.tensors if error.declared]
    if declared:
        yield (
            f"{len(declared)} matrices were transformed before they were quantized "
            f"({', '.join(sorted({e.declared for e in declared}))}): their errors are those that "
            "the manifest recorded."
        )
