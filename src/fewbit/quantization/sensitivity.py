"""What the output's divergence owes to each matrix, measured, and predicted for other formats.

Rounding errors are small and independent of each other, so the output's divergence is nearly the
sum of what each matrix brings alone, and each part grows with the square of its error (the first
term of KL's Taylor series; empirical: HIGGS, Malinovskii et al. 2024, "linearity theorem"). So one
probe a matrix is enough: put it in `PROBE`, measure the divergence, and scale it by the ratio of
the weighted squared errors for any other format. An error in a column counts as much as the square
of what the column is multiplied with.

A solver such as GPTQ takes more of the error from some matrices than from others (from o and q more
than from down), so a probe is what the solver makes of the matrix, where the caller has that;
rounding on scales fitted with the squares of the inputs stands in for it.

A measurement on few tokens is uncertain. Logarithms of divergence over error of one kind of matrix
(q, down, ...) follow a parabola over depth closely; what a measurement deviates from it is kept in
the ratio of the deviations' variance to that plus the measurements' own (James and Stein, 1961).
In a large model only some layers are probed, and the matrices of the others get what the parabola
says at their depth.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import UnsupportedError
from fewbit.formats.grid import fit, nearest, values
from fewbit.formats.recode import holds
from fewbit.formats.registry import BF16, decode, decode_rows, encode, parse_format
from fewbit.formats.spec import NumberFormat, QuantTensor
from fewbit.model.binding import is_vector
from fewbit.model.weights import ModelSource
from fewbit.program import OUTSIDE, Linear, Mixture, Program, Slot, slots_of
from fewbit.quantization.probing import ProbeModel

PROBE = "int4-g32"
"""Matrices are rounded to this; its error lies in the middle of those to choose from."""

_COARSER = ("int3-g32", "int2-g32")
"""What stands for it where the source's weights lie on its grid already, so that it errs in
nothing."""

PROBE_GROUP = 32
"""A matrix's columns must be a multiple of this to be probed."""

_SAMPLED_ROWS = 32, 128
"""At least and at most so many rows of a matrix, evenly spaced, give the errors of all formats.
Errors of rows vary by a few tenths, so the mean of 128 is within 3% and that of 32 within 6%, but
all formats see the same rows."""

_SAMPLED = 1 << 18
"""Elements of these rows, where there may be fewer than 128 of them."""

_PIECE = 1 << 22
"""Elements decoded at once."""

_LEAST_FOR_DEPTH = 6
"""Layers from which a parabola over depth is fitted; the mean serves fewer."""


@dataclass(frozen=True)
class Unit:
    """Matrices that are probed together."""

    slots: tuple[Slot, ...]
    layer: int
    site: str
    """What they do, the same in every layer: `q`, `gate+up`, `head`."""


@dataclass(frozen=True)
class Sensitivity:
    """What a unit's rounding to the probe format did."""

    unit: Unit
    divergence: float | None
    """Nats per token; None where the unit was not probed."""
    deviation: float
    """Standard error over windows; 0 with one window."""
    errors: Mapping[Slot, float]
    """The weighted squared error of each matrix in the probe format."""
    smoothed: float = 0.0
    """The divergence after `smooth`."""

    @property
    def error(self) -> float:
        """The weighted squared error of all its matrices."""
        return sum(self.errors.values())

    def of(self, slot: Slot) -> float:
        """Return a matrix's part of the smoothed divergence: as its error is of the unit's."""
        return self.smoothed * self.errors[slot] / self.error if self.error else 0.0


@dataclass(frozen=True)
class Probes:
    """What is measured, and on how much."""

    units: Sequence[Unit]
    windows: int
    """How many of the model's windows are run."""
    solved: Mapping[Slot, QuantTensor] = field(default_factory=dict)
    """Matrices in the probe format as a solver makes them; others are rounded."""
    form: str = PROBE
    """What matrices are rounded to."""


def probe_of(source: ModelSource, slots: Iterable[Slot]) -> str:
    """Return the probe format for some matrices: the finest of a few that none of them lies on."""
    infos = [source.info(slot) for slot in slots]
    for name in (PROBE, *_COARSER):
        form = parse_format(name)
        if not any(holds(form, info.format, info.matrix_shape[1]) for info in infos):
            return name
    return _COARSER[-1]


def units(program: Program, *, together: bool) -> tuple[Unit, ...]:
    """Return what is probed: single matrices, or those that read the same input together.

    Experts of a mixture are always one unit.
    """
    found: dict[Slot, Unit] = {}
    groups: dict[object, list[tuple[Slot, str]]] = defaultdict(list)
    layers: dict[object, int] = {}
    for op in program.ops:
        slots = [slot for slot in slots_of(op) if not is_vector(slot)]
        for slot in slots:
            single = isinstance(op, Linear) and not together
            key = slot if single or op.layer == OUTSIDE else (op.layer, _read(op))
            if slot not in found:
                groups[key].append((slot, "experts" if isinstance(op, Mixture) else op.site))
                layers[key] = op.layer
                found[slot] = Unit((slot,), op.layer, op.site)
    return tuple(
        Unit(
            tuple(slot for slot, _ in members),
            layers[key],
            "+".join(dict.fromkeys(site for _, site in members)),
        )
        for key, members in groups.items()
    )


def probed_layers(layers: int, most: int) -> frozenset[int]:
    """Return the layers that are probed of so many: `most` evenly spaced ones, ends included.

    The second layer is one more of them: in many models its MLP makes the activations that dwarf
    all others, and no course over depth foresees that (empirical: Sun et al. 2024, "Massive
    activations in large language models").
    """
    if layers <= most:
        return frozenset(range(layers))
    return frozenset({1, *np.linspace(0, layers - 1, most).round().astype(int).tolist()})


def measure(
    source: ModelSource,
    model: ProbeModel,
    probes: Probes,
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[Sensitivity, ...]:
    """Round one unit after the other and measure what the output does.

    Args:
        source: the model, whose matrices are rounded.
        model: what measures.
        probes: what is rounded.
        progress: called with the number of units that are done.

    Raises:
        UsageError: a matrix's columns are no multiple of the probe format's group.
    """
    found = []
    for done, unit in enumerate(probes.units, 1):
        rounded, errors = {}, {}
        for slot in unit.slots:
            counts = model.squares.get(slot)
            rounded[slot], by_column = _rounded(source, slot, counts, probes)
            errors[slot] = float(by_column.sum() if counts is None else by_column @ counts)
        per_window = model.measure(rounded, probes.windows)
        spread = float(per_window.std(ddof=1)) if probes.windows > 1 else 0.0
        mean = float(per_window.mean())
        found.append(Sensitivity(unit, mean, spread / math.sqrt(probes.windows), errors, mean))
        progress(done)
    return tuple(found)


def unprobed(source: ModelSource, model: ProbeModel, unit: Unit, probe: str = PROBE) -> Sensitivity:
    """Return a unit with its error in the probe format, reckoned from some of its rows."""
    errors = {}
    for slot in unit.slots:
        weight, rows = _sampled(source, slot)
        counts = model.squares.get(slot, np.ones(weight.shape[1]))
        by_column = _column_errors(weight, _nearest(weight, parse_format(probe), counts))
        errors[slot] = float(by_column @ counts) * rows / len(weight)
    return Sensitivity(unit, None, 0.0, errors)


def smooth(measured: Sequence[Sensitivity]) -> tuple[Sensitivity, ...]:
    """Draw each measurement towards its site's course over depth, as the module says.

    What was not probed gets the course itself.
    """
    sites: dict[str, list[int]] = defaultdict(list)
    for index, one in enumerate(measured):
        if one.error > 0 and one.divergence != 0:
            sites[one.unit.site].append(index)
    found = list(measured)
    for members in sites.values():
        chosen = [measured[i] for i in members]
        for i, log in zip(members, _course(chosen), strict=True):
            found[i] = replace(measured[i], smoothed=float(np.exp(log)) * measured[i].error)
    return tuple(found)


def format_errors(
    source: ModelSource,
    slot: Slot,
    formats: Sequence[NumberFormat],
    importance: NDArray[np.float64] | None,
    probe: str = PROBE,
) -> list[float]:
    """Return each format's squared error over that of the probe format, both of some rows.

    The weighted errors are compared and the plain ones, and the larger ratio counts. Where a
    massive activation makes one column outweigh all others, a scale fitted for that column rounds
    it well in a coarse format too, and the weighted ratio alone says that nothing is lost.

    Args:
        source: the model.
        slot: a matrix.
        formats: formats with a grid that divide its columns.
        importance: float64 [inputs], what an error in a column counts; None: 1 each.
        probe: the probe format.
    """
    weight, _ = _sampled(source, slot)
    counts = np.ones(weight.shape[1]) if importance is None else importance
    base, *found = (
        _column_errors(weight, _nearest(weight, form, counts))
        for form in (parse_format(probe), *formats)
    )
    return [
        max(_ratio(float(errors @ counts), float(base @ counts)), _ratio(errors.sum(), base.sum()))
        for errors in found
    ]


def _ratio(error: float, base: float) -> float:
    return error / base if base else 0.0


def _rounded(
    source: ModelSource,
    slot: Slot,
    importance: NDArray[np.float64] | None,
    probes: Probes,
) -> tuple[QuantTensor, NDArray[np.float64]]:
    """Return a matrix as floats on the probe's grid, and the squared error of each column.

    The floats are bf16: that rounding is 2^-9 of a value where the grid's is some hundredths of a
    group's largest, so its square is a thousandth of the error, and it is in the error returned.
    """
    tensor, solved = source.read(slot), probes.solved.get(slot)
    rows, columns = tensor.shape
    counts = np.ones(columns) if importance is None else importance
    errors = np.zeros(columns)
    codes = np.empty((rows, BF16.row_bytes(columns)), np.uint8)
    step = max(1, _PIECE // columns)
    for start in range(0, rows, step):
        piece = slice(start, start + step)
        weight = decode_rows(tensor, piece)
        on_grid = (
            _nearest(weight, parse_format(probes.form), counts)
            if solved is None
            else decode_rows(solved, piece)
        )
        floats = encode(on_grid, BF16)
        errors += _column_errors(weight, decode(floats))
        codes[piece] = floats.codes
    return QuantTensor(BF16, tensor.shape, codes), errors


def _nearest(
    weight: NDArray[np.float32], form: NumberFormat, importance: NDArray[np.float64]
) -> NDArray[np.float32]:
    try:
        grid = fit(weight, form, importance.astype(np.float32))
    except UnsupportedError:  # a format without a grid: fp8, bf16
        return decode(encode(weight, form))
    return values(nearest(weight, grid), grid)


def _column_errors(
    weight: NDArray[np.float32], rounded: NDArray[np.float32]
) -> NDArray[np.float64]:
    error = rounded - weight
    return np.asarray(np.einsum("rc,rc->c", error, error), np.float64)


def _sampled(source: ModelSource, slot: Slot) -> tuple[NDArray[np.float32], int]:
    """Return evenly spaced rows of a matrix, and how many it has."""
    rows, columns = source.outline(slot).shape
    count = min(rows, max(_SAMPLED_ROWS[0], min(_SAMPLED_ROWS[1], _SAMPLED // columns)))
    chosen = np.unique(np.linspace(0, rows - 1, count).astype(np.intp))
    return decode_rows(source.read(slot), chosen), rows


def _course(members: Sequence[Sensitivity]) -> NDArray[np.float64]:
    """Return the logarithm of divergence over error of units of one site, drawn to a course.

    With too few measurements for one they stay as they are, and their mean serves the others. What
    measured nothing at all does nothing: the logarithm of 0.
    """
    probed = [one for one in members if one.divergence]
    logs = np.array([np.log(one.divergence / one.error) for one in probed if one.divergence])
    if not probed:
        return np.full(len(members), -np.inf)
    depths = np.array([float(one.unit.layer) for one in members])
    was = np.array([bool(one.divergence) for one in members])
    degree = 2 if len(logs) >= _LEAST_FOR_DEPTH else 0
    design = np.vander(depths / max(float(np.abs(depths).max()), 1.0), degree + 1)
    found = np.asarray(design @ np.linalg.lstsq(design[was], logs, rcond=None)[0])
    if len(logs) < 3:
        found[was] = logs
        return found
    noise = float(
        np.mean([(one.deviation / one.divergence) ** 2 for one in probed if one.divergence])
    )
    left = logs - found[was]
    variance = max(0.0, float(left @ left) / (len(logs) - degree - 1) - noise)
    found[was] += left * (variance / (variance + noise) if noise else 1.0)
    return found


def _read(op: object) -> object:
    return op.x if isinstance(op, Linear | Mixture) else None
