"""Built-in recipes as they are offered, with what is known of each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec.structs import replace

from fewbit.errors import FewbitError
from fewbit.formats.registry import parse_format
from fewbit.model.weights import ModelSource
from fewbit.quantization.estimate import Workload, time_needs
from fewbit.quantization.pipeline import needs_text
from fewbit.quantization.planning import plan
from fewbit.quantization.rates import Rates, timed_rates
from fewbit.recipes import built_in
from fewbit.records.offers import Offer, Offers

USES: Mapping[str, str] = MappingProxyType(
    {
        "gptq-refined-q4_0": "a GGUF file of 4.5 bits, minutes of time",
        "gptq-refined-iq4_xs": "a GGUF file of 4.25 bits",
        "gptq-refined-q4_k": "a GGUF file with minima; rows of 256",
        "gptq-refined-q5_k": "a GGUF file of 5.5 bits",
        "gptq-refined-q6_k": "a GGUF file of 6.6 bits",
        "gptq-refined-q3_k": "a GGUF file of 3.4 bits, for large models",
        "gptq-q4_0": "as gptq-refined-q4_0, in less time",
        "imatrix-q4_0": "with an importance matrix that exists",
        "awq-int4-g128": "rescaled channels, groups of 128",
        "gptq-refined-int4-g32": "a folder for fewbit, or vLLM after an export",
        "gptq-refined-int4-g128": "the same, smaller",
        "rtn-int4-g32": "no text, seconds",
        "rtn-int8-g32": "no text, next to no loss",
        "rtn-fp8": "8-bit floats for other runtimes",
        "rtn-w8a8": "int8 weights and activations for other runtimes",
        "smoothquant-w8a8": "the same with SmoothQuant",
    }
)
"""The recipes that are offered, with what each is for."""

MEASURED: Mapping[str, float] = MappingProxyType(
    {
        "gptq-refined-q4_0": 0.121,
        "gptq-q4_0": 0.128,
        "smoothquant-w8a8": 0.0135,
        "rtn-w8a8": 0.0326,
        "rtn-int8-g32": 0.0065,
    }
)
"""Mean KL in nats on SmolLM2-135M off its grid (docs/recipes.md, docs/log.md)."""

_AT_BITS, _AT = 4.5, MEASURED["gptq-q4_0"]
_AGAINST_GPTQ = {"rtn": 2.3, "imatrix": 1.15, "awq": 0.86, "gptq": 1.0, "gptq-refined": 0.945}
"""Divergence at q4_0 over GPTQ's: .367, .182, .136 and .158 in the same runs (docs/log.md), and
.121 to .128 (docs/recipes.md)."""
_PER_BIT = 4.0
"""A bit less doubles the rounding error, and the divergence goes with its square."""
_RECKONED_BITS = (3.0, 7.0)
"""Outside of them the square does not hold, or other errors are larger."""

_WINDOWS, _TOKENS = 128, 512

_CONDITIONS = (
    "Expected KL in nats is that of SmolLM2-135M (moved off its old grid to bf16) on wikitext2, "
    "calibrated on a novel and Python code, with int8 activations; larger models lose less, so "
    "measure yours with fewbit eval.",
    "Figures without ~ were measured (docs/recipes.md; w8a8 and int8-g32 with the decoder layers "
    "alone quantized, docs/log.md); those with ~ are reckoned from them: four times the divergence "
    "for each bit less, and the method's ratio to GPTQ at q4_0.",
)
_TIMES = (
    "Times are rough, for 128 windows of 512 tokens of a text of yours, on this machine where "
    "nothing else runs."
)


def offers(source: ModelSource | None = None) -> Offers:
    """Return the recipes, with sizes and times where a model is given."""
    rates = timed_rates() if source is not None else None
    return Offers(
        model=None if source is None else str(source.path),
        offers=tuple(_offer(name, source, rates) for name in USES),
        conditions=_CONDITIONS if source is None else (*_CONDITIONS, _TIMES),
    )


def expected(name: str) -> tuple[float | None, bool]:
    """Return the divergence to expect of a built-in recipe, and whether it was measured."""
    if name in MEASURED:
        return MEASURED[name], True
    recipe, start = built_in(name), "awq" if name.startswith("awq-") else ""
    ratio = _AGAINST_GPTQ.get(start or recipe.method)
    bits = nominal_bits(name)
    if ratio is None or not _RECKONED_BITS[0] <= bits <= _RECKONED_BITS[1]:
        return None, False
    return ratio * _AT * _PER_BIT ** (_AT_BITS - bits), False


def nominal_bits(name: str) -> float:
    """Return the bits of a weight in a decoder layer, for long rows."""
    return parse_format(built_in(name).rules[0].format).bits_per_weight((4096, 4096))


def _offer(name: str, source: ModelSource | None, rates: Rates | None) -> Offer:
    divergence, measured = expected(name)
    found = Offer(
        recipe=name,
        use=USES[name],
        bits=nominal_bits(name),
        expected_divergence=divergence,
        measured=measured,
    )
    return found if source is None else _for_model(found, source, rates)


def _for_model(offer: Offer, source: ModelSource, rates: Rates | None) -> Offer:
    recipe = built_in(offer.recipe)
    try:
        planned = plan(source, recipe)
    except FewbitError as error:
        return replace(offer, refused=str(error))
    work = Workload(rows=_WINDOWS * _TOKENS) if needs_text(recipe) else Workload()
    seconds = sum(part.seconds for part in time_needs(planned, work, rates))
    return replace(offer, bytes=planned.promised_bytes, seconds=seconds)
