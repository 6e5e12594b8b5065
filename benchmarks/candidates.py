"""What the benchmark of quality compares: our files, what each is held to, and what should win."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SMALL = ("Q4_0", "Q4_1", "IQ4_NL", "IQ4_XS", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_0")
LARGE = ("Q5_K_S", "Q5_K_M")
"""llama.cpp's types of about 90 to 112 MB for SmolLM2-135M."""

AT_3_5, AT_4_5, AT_5_5 = (
    ("Q2_K", "Q3_K_S", "Q3_K_M"),
    ("Q3_K_L", "Q4_0", "IQ4_XS", "IQ4_NL", "Q4_K_S"),
    ("Q4_K_M", "Q4_1", "Q5_0", "Q5_K_S", "Q5_K_M"),
)
"""llama.cpp's types about each number of bits per weight; smaller ones count as well."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """A file of ours: how `fewbit quantize` makes it, and what it is held to."""

    name: str
    recipe: str
    options: tuple[str, ...] = ()
    suffix: str = ".gguf"
    """Empty where no GGUF file can hold it, and a folder is written."""
    activations: str | None = None
    """How layers round their inputs where it is measured; None for what the file says."""
    peers: tuple[str, ...] = ()
    """llama.cpp's types to compare with, of which the best that is no larger counts."""
    same_type: bool = False
    """Whether the one peer counts although it may be a little larger or smaller."""
    bar: float | None = None
    """Largest ratio of divergences."""

    @property
    def stem(self) -> str:
        """The file's name without what it ends in; measured in two ways it is made once."""
        return "-".join((self.recipe, *(o.removeprefix("--") for o in self.options)))

    @property
    def calibrated(self) -> bool:
        """Whether text is run to make it."""
        return not self.recipe.startswith(("rtn-", "mse-", "hqq-"))


@dataclass(frozen=True)
class Claim:
    """Two of our files of which the first should diverge less, window by window."""

    better: str
    worse: str


_BEST = "awq-gptq-refined-q4_0"
_PROPAGATED = ("--propagation", "0.5")


def _same_type(name: str, recipe: str, peer: str, *options: str, bar: float = 0.85) -> Made:
    return Made(
        name=name,
        recipe=recipe,
        options=options,
        peers=(peer,),
        same_type=True,
        bar=bar,
    )


def _tuned(name: str, *options: str) -> Made:
    return _same_type(name, _BEST, "Q4_0", *options, bar=0.5)


def _w8a8(method: str) -> Made:
    return Made(name=f"{method} w8a8", recipe=f"{method}-w8a8", suffix="")


def _w8(method: str) -> Made:
    name = f"{method} w8, bf16 inputs"
    return Made(name=name, recipe=f"{method}-w8a8", suffix="", activations="bf16")


def _sized(size: int) -> Made:
    return Made(
        name=f"{size} MB",
        recipe=_BEST,
        options=("--target-size", f"{size}MB"),
        peers=SMALL + (LARGE if size > 105 else ()),
        bar=0.4,
    )


def _bits(bits: float, peers: tuple[str, ...]) -> Made:
    return Made(
        name=f"{bits} bits",
        recipe="gptq-refined-q4_k",
        options=("--target-bpw", str(bits)),
        peers=peers,
        bar=0.8,
    )


PARTS: Mapping[str, tuple[Made, ...]] = {
    "methods": (
        Made(name="rtn q4_0", recipe="rtn-q4_0"),
        Made(name="mse q4_0", recipe="mse-q4_0"),
        Made(name="imatrix q4_0", recipe="imatrix-q4_0"),
        Made(name="awq q4_0", recipe="awq-q4_0"),
        _same_type("gptq q4_0", "gptq-q4_0", "Q4_0"),
    ),
    "solved": (
        _same_type("refined q4_0", "gptq-refined-q4_0", "Q4_0"),
        _same_type("refined q5_0", "gptq-refined-q5_0", "Q5_0"),
        _same_type("refined q4_k", "gptq-refined-q4_k", "Q4_K_S"),
        _same_type("awq, refined q4_0", _BEST, "Q4_0"),
        _same_type("awq, refined, propagated q4_0", _BEST, "Q4_0", *_PROPAGATED),
    ),
    "activations": (
        _w8a8("rtn"),
        _w8a8("smoothquant"),
        _w8("smoothquant"),
        _w8a8("rotated"),
        _w8("rotated"),
    ),
    "tuned": (
        *(_tuned(f"q4_0, {what}", "--tune", what) for what in ("scales", "rounding", "weights")),
        _tuned("propagated q4_0, scales", *_PROPAGATED, "--tune", "scales"),
    ),
    "allocated": tuple(_sized(size) for size in (91, 105, 112)),
    "bits": (
        _bits(3.5, AT_3_5),
        _bits(4.5, AT_3_5 + AT_4_5),
        _bits(5.5, AT_4_5 + AT_5_5),
    ),
    "tuned-bits": (
        Made(
            name="4.5 bits, tuned",
            recipe="gptq-refined-q4_k",
            options=("--target-bpw", "4.5", "--tune", "scales"),
            peers=AT_3_5 + AT_4_5,
            bar=0.55,
        ),
    ),
}

CLAIMS = (
    Claim("awq q4_0", "rtn q4_0"),
    Claim("awq q4_0", "imatrix q4_0"),
    Claim("gptq q4_0", "rtn q4_0"),
    Claim("refined q4_0", "gptq q4_0"),
    Claim("awq, refined, propagated q4_0", "awq, refined q4_0"),
    Claim("propagated q4_0, scales", "q4_0, scales"),
    Claim("smoothquant w8a8", "rtn w8a8"),
    Claim("rotated w8a8", "smoothquant w8a8"),
    Claim("q4_0, rounding", "q4_0, scales"),
    Claim("q4_0, weights", "q4_0, scales"),
)

MULTIPLES = (
    ("smoothquant w8a8", "smoothquant w8, bf16 inputs", None),
    ("rotated w8a8", "rotated w8, bf16 inputs", 1.5),
)
"""Of two of our files, how many times the second's divergence the first's may be, where a bar is:
SmoothQuant beside rotations, since a factor per channel cannot help rare tokens."""
