"""Transforms of a recipe, by name: what each searches for, and what it did to the model.

They come before solving, and one after the other: each sees the source as the ones before it left
it. Those that look at activations walk the unquantized model once over the calibration text and
search every site from the statistics of that walk; sites of a layer do not wait for each other,
because a rescale of one leaves the inputs at the others as they were.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit.calibrate.calibration import CalibrationSet
from fewbit.errors import UnsupportedError, UsageError
from fewbit.formats.registry import decode
from fewbit.formats.spec import NumberFormat
from fewbit.methods.awq import search_awq
from fewbit.methods.rescale import equalize
from fewbit.methods.rotation import block_size, hadamard, randomized, signs
from fewbit.methods.scaling import Consumer, Scaling
from fewbit.methods.smoothquant import search_smoothquant
from fewbit.model.config import ModelConfig
from fewbit.model.decoder import build_program
from fewbit.model.residual import rotate_residual
from fewbit.model.sites import Site, SiteKind, rescale_sites
from fewbit.model.transformed import TransformedSource, transformed
from fewbit.model.transforms import Edit, Rescale, RotateHeads, RotateMlp, Transform
from fewbit.model.weights import ModelSource
from fewbit.program import Slot
from fewbit.quantization.bound import BoundModel
from fewbit.quantization.kept_scalings import KeptScalings
from fewbit.quantization.walk import Cut, CutInput, WalkOptions, cuts, walk
from fewbit.runtime.native import Pool

Formats: TypeAlias = Mapping[Slot, NumberFormat]
"""The format of every matrix that the plan quantizes."""

SAMPLE_ROWS = 256
"""Rows of a site's input, evenly spread over the calibration text, on which SmoothQuant measures
the error: that of a 256-row mean is about 6% of it, and the same rows judge every candidate."""
_SEED = 0
_SMALLEST_BLOCK = 16
"""Elements that a rotation inside the MLP should spread an outlier over, at least."""


@dataclass(frozen=True, kw_only=True)
class Walking:
    """What a transform needs that looks at activations."""

    calibration: CalibrationSet
    pool: Pool
    progress: Callable[[int, int, str], None] = lambda _done, _all, _site: None
    kept: KeptScalings | None = None
    """What earlier runs of the job found, and where this one keeps what it finds."""

    def of(self, number: int, name: str) -> Walking:
        """Return it for one transform of the recipe, by its number."""
        return self if self.kept is None else replace(self, kept=self.kept.of(f"{number}-{name}"))


@dataclass(frozen=True, eq=False)
class Found:
    """What a search gives back."""

    transforms: tuple[Transform, ...]
    detail: str


@dataclass(frozen=True, eq=False)
class Applied:
    """A transform of a recipe as it was applied, for the manifest."""

    name: str
    detail: str
    slots: tuple[Slot, ...]
    """Whose bits it changed."""


_Search: TypeAlias = Callable[[ModelSource, Formats, Walking | None], Found]


def check_transforms(names: Sequence[str]) -> None:
    """Refuse names that no transform has.

    Raises:
        UnsupportedError: the message lists those there are.
    """
    for name in names:
        if name not in TRANSFORMS:
            raise UnsupportedError(
                f"The transform '{name}' is not known; there are {', '.join(TRANSFORMS)}."
            )


def need_text(names: Sequence[str]) -> bool:
    """Return whether a transform among them looks at activations."""
    return any(name in _WALKING for name in names)


def outline(source: ModelSource, names: Sequence[str], formats: Formats) -> TransformedSource:
    """Return the source as the transforms will leave it in everything but values.

    Plans are made on it: touched tensors are float32, and a table may have become two.

    Raises:
        UnsupportedError: a transform is not known or cannot be applied to this model.
    """
    check_transforms(names)
    changed = transformed(source, ())
    for name in names:
        search = _RESCALES_OF_ONE if name in _RESCALING else TRANSFORMS[name]
        changed = transformed(changed, search(changed, formats, None).transforms)
    return changed


def apply_transforms(
    source: ModelSource, names: Sequence[str], formats: Formats, walking: Walking | None
) -> tuple[TransformedSource, tuple[Applied, ...]]:
    """Search and apply transforms in order.

    Args:
        source: the model; only read.
        names: keys of `TRANSFORMS`.
        formats: of every matrix that will be quantized; a site where another matrix than a router
            is kept is left alone, because its matrices would have to be stored in float32.
        walking: the calibration text; needed where `need_text`.

    Raises:
        UnsupportedError: a transform is not known or cannot be applied to this model.
        UsageError: one of them needs calibration text and there is none.
        NumericalError: a weight or a state is not finite; says where.
    """
    check_transforms(names)
    changed, applied = transformed(source, ()), []
    for number, name in enumerate(names):
        if walking is None and name in _WALKING:
            raise UsageError(
                f"The transform '{name}' looks at activations; give a text with --calibration."
            )
        own = None if walking is None else walking.of(number, name)
        found = TRANSFORMS[name](changed, formats, own)
        changed = transformed(changed, found.transforms)
        touched = dict.fromkeys(slot for t in found.transforms for slot in t.edits())
        applied.append(Applied(name, found.detail, tuple(touched)))
    return changed, tuple(applied)


def usable_sites(source: ModelSource, formats: Formats) -> tuple[Site, ...]:
    """Return the sites whose matrices, routers aside, will all be quantized."""
    return tuple(s for s in rescale_sites(source.config) if _matrices(s) <= formats.keys())


def _matrices(site: Site) -> set[Slot]:
    producers = () if site.kind is SiteKind.NORM else site.producers
    slots = (*producers, *site.consumers)
    return {s for s in slots if not s.endswith((".bias", ".router.weight"))}


def _of_one(source: ModelSource, formats: Formats, _: Walking | None) -> Found:
    """Return factors of 1 for every site."""
    sites = usable_sites(source, formats)
    return Found(tuple(Rescale(s, np.ones(s.width, np.float32)) for s in sites), "")


def _awq(source: ModelSource, formats: Formats, walking: Walking | None) -> Found:
    assert walking is not None

    def search(site: Site, taken: CutInput) -> Scaling:
        return search_awq(_consumers(source, site, formats), taken(), _channels(site))

    return _searched(source, formats, walking, search, gram=True)


def _smoothquant(source: ModelSource, formats: Formats, walking: Walking | None) -> Found:
    assert walking is not None

    def search(site: Site, taken: CutInput) -> Scaling:
        consumers = _consumers(source, site, formats)
        sample = taken.sample(SAMPLE_ROWS)
        return search_smoothquant(consumers, sample, _channels(site))

    return _searched(source, formats, walking, search, gram=False)


def _rescale(source: ModelSource, formats: Formats, _: Walking | None) -> Found:
    sites = usable_sites(source, formats)
    found = tuple(Rescale(site, _equalized(source, site)) for site in sites)
    return Found(found, f"{len(found)} sites, ranges equalized")


def _equalized(source: ModelSource, site: Site) -> NDArray[np.float32]:
    produced = decode(source.read(site.producers[0]))
    if site.kind is SiteKind.NORM:
        produced = produced.T + np.float32(site.offset)
    consumers = [decode(source.read(slot)) for slot in site.consumers]
    return equalize(produced, consumers, _channels(site))


def _rotate_heads(source: ModelSource, _: Formats, __: Walking | None) -> Found:
    sites = [s for s in rescale_sites(source.config) if s.kind is SiteKind.VALUES]
    matrix = randomized(hadamard(source.config.head_dim), _SEED)
    detail = f"Hadamard matrix of {source.config.head_dim}, signs drawn with seed {_SEED}"
    return Found(tuple(RotateHeads(site, matrix) for site in sites), detail)


def _rotate_residual(source: ModelSource, _: Formats, __: Walking | None) -> Found:
    size = source.config.hidden
    rotation = rotate_residual(source, randomized(hadamard(size), _SEED))
    detail = f"Hadamard matrix of {size}, signs drawn with seed {_SEED}"
    if rotation.untied:
        detail += "; the final norm is folded into the head, which no longer shares the input table"
    return Found((rotation,), detail)


def _rotate_mlp(source: ModelSource, _: Formats, __: Walking | None) -> Found:
    width = source.config.intermediate
    size = block_size(width)
    _check_mlps(source.config, size)
    sites = tuple(s for s in rescale_sites(source.config) if s.kind is SiteKind.UP)
    rotation = RotateMlp(sites, size, signs(width, _SEED))
    blocks = f"{width // size} blocks of {size}" if size < width else f"Hadamard matrix of {size}"
    return Found((rotation,), f"{blocks}, signs drawn with seed {_SEED}")


def _check_mlps(config: ModelConfig, size: int) -> None:
    """Refuse MLPs that no op can rotate.

    Raises:
        UnsupportedError: mixtures, a width without a useful block, or MLPs that are rotated.
    """
    if config.mixture is not None:
        raise UnsupportedError(
            "The MLPs of this model cannot be rotated: they are mixtures of experts, whose op has "
            "no place for a rotation; leave rotate-mlp out."
        )
    if size < _SMALLEST_BLOCK:
        raise UnsupportedError(
            f"The MLPs of this model cannot be rotated: their width {config.intermediate} divides "
            f"into blocks of {size}, and less than {_SMALLEST_BLOCK} spread nothing; leave "
            "rotate-mlp out."
        )
    if config.mlp_rotation:
        raise UnsupportedError(
            "The MLPs of this model are rotated already, by the recipe that it was made with; "
            "leave rotate-mlp out."
        )


TRANSFORMS: Mapping[str, _Search] = MappingProxyType(
    {
        "awq": _awq,
        "smoothquant": _smoothquant,
        "rescale": _rescale,
        "rotate-heads": _rotate_heads,
        "rotate-residual": _rotate_residual,
        "rotate-mlp": _rotate_mlp,
    }
)
"""By the name that recipes use."""

ONLINE = frozenset({"rotate-mlp"})
"""Those that need an op of their own in the Program, which few containers can say."""
_WALKING = frozenset({"awq", "smoothquant"})
_RESCALING = _WALKING | {"rescale"}
_RESCALES_OF_ONE: _Search = _of_one

_SiteSearch: TypeAlias = Callable[[Site, CutInput], Scaling]


def _searched(
    source: ModelSource, formats: Formats, walking: Walking, search: _SiteSearch, *, gram: bool
) -> Found:
    """Walk the model and search every site; sites that no cut reaches keep factors of 1.

    Where an earlier run of the job found all of them, nothing is walked.
    """
    sites, kept = usable_sites(source, formats), walking.kept
    earlier = [None if kept is None else kept.find(n, s.width) for n, s in enumerate(sites)]
    scalings = {s: found for s, found in zip(sites, earlier, strict=True) if found is not None}
    program = build_program(source.config)
    reached = {cut.x for cut in cuts(program)}
    missing = {
        buffer: site
        for buffer, site in {site.buffer: site for site in sites}.items()
        if site not in scalings and buffer in reached
    }

    def visit(cut: Cut, taken: CutInput) -> None:
        site = missing.get(cut.x)
        if site is not None:
            walking.progress(len(scalings), len(sites), cut.slots[0])
            scalings[site] = search(site, taken)
            if kept is not None:
                kept.keep(sites.index(site), scalings[site])

    if missing:
        model = BoundModel(source, program, walking.pool)
        options = WalkOptions(walking.pool, gram=None if gram else frozenset())
        walk(program, walking.calibration, model, visit, options)
    ones = {site: np.ones(site.width, np.float32) for site in sites}
    factors = ones | {site: scaling.factors for site, scaling in scalings.items()}
    found = tuple(Rescale(site, factors[site]) for site in sites)
    return Found(found, _summary(sites, scalings))


def _summary(sites: Sequence[Site], scalings: Mapping[Site, Scaling]) -> str:
    """Return how many sites were rescaled, and the geometric mean of what that does to errors."""
    gains = [s.after / s.before for s in scalings.values() if s.changes and s.after > 0]
    if not gains:
        return f"none of {len(sites)} sites gains"
    mean = math.exp(sum(map(math.log, gains)) / len(gains))
    return f"{len(gains)} of {len(sites)} sites, output error {mean:.3f} of what it was, on average"


def _consumers(source: ModelSource, site: Site, formats: Formats) -> list[Consumer]:
    return [Consumer(decode(source.read(s)), formats.get(s)) for s in site.consumers]


def _channels(site: Site) -> NDArray[np.intp]:
    return site.spread(np.arange(site.width, dtype=np.float64)).astype(np.intp)


def fingerprints(source: ModelSource) -> list[str]:
    """Return the hash of what happens to each touched slot, as `slot hash`.

    Work that was stopped goes on only where the search found the same factors again.
    """
    if not isinstance(source, TransformedSource):
        return []
    return [f"{slot} {_digest(edits)}" for slot, edits in source.edits.items()]


def _digest(edits: Sequence[Edit]) -> str:
    running = hashlib.sha256()
    for edit in edits:
        running.update(type(edit).__name__.encode())
        for value in vars(edit).values():
            running.update(np.asarray(value, np.float64).tobytes())
    return running.hexdigest()
