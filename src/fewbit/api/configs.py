"""The configurations of `quantize_`, with the names, fields and defaults of TorchAO's.

A program written for `torchao.quantization` (0.18) runs with its imports changed. What a field
means on a GPU only is accepted and has nothing to do here: TorchAO's int4 layouts, as weights are
always packed for this processor's kernels, and the settings of torch's inductor, which is not used.
What would change the numbers and cannot be had is refused.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from fewbit.api.schemes import Scheme
from fewbit.errors import UnsupportedError, UsageError
from fewbit.formats.registry import parse_format
from fewbit.formats.spec import NumberFormat
from fewbit.records.kernels import Activations

_RUN = 32
"""The kernels round inputs in runs of so many, so groups of weights are multiples of it."""

_VERSION = 2


@dataclass(frozen=True)
class PerTensor:
    """One scale for a whole matrix."""


@dataclass(frozen=True)
class PerRow:
    """One scale for each row of a matrix; of activations, for each token."""

    dim: int = -1

    def __post_init__(self) -> None:
        if self.dim != -1:
            raise UnsupportedError(f"PerRow has dim {self.dim}; only -1, the inputs, can be run.")


@dataclass(frozen=True)
class PerGroup:
    """One scale for each `group_size` consecutive inputs of a row."""

    group_size: int

    def __post_init__(self) -> None:
        _require_group(self.group_size)


Granularity: TypeAlias = PerTensor | PerRow | PerGroup
"""Which weights share a scale."""


@runtime_checkable
class Config(Protocol):
    """What `quantize_` takes."""

    @property
    @abstractmethod
    def scheme(self) -> Scheme:
        """What is to be done with each layer; raises UsageError or UnsupportedError."""
        ...


@dataclass(frozen=True)
class Int4WeightOnlyConfig:
    """4-bit weights with a scale and a zero point for each group; inputs in bf16.

    `int4_choose_qparams_algorithm` is `tinygemm` (the group's range) or `hqq` (scales of least
    |error|^0.7, Badri & Shaji 2023).

    Raises:
        UsageError, UnsupportedError: a value that cannot be.
    """

    group_size: int = 128
    set_inductor_config: bool = True
    int4_packing_format: str = "plain"
    int4_choose_qparams_algorithm: str = "tinygemm"
    int4_tile_packed_ntile: int = 8
    version: int = _VERSION

    def __post_init__(self) -> None:
        _require_group(self.group_size)
        _require_version(self.version)
        packings = ("plain", "preshuffled", "plain_int32", "tile_packed_to_4d")
        _require_one("int4_packing_format", self.int4_packing_format, packings)
        _require_one(
            "int4_choose_qparams_algorithm", self.int4_choose_qparams_algorithm, ("tinygemm", "hqq")
        )

    @property
    def scheme(self) -> Scheme:
        """`int4-g<group_size>-asym`."""
        method = "hqq" if _word(self.int4_choose_qparams_algorithm) == "hqq" else "rtn"
        return Scheme(parse_format(f"int4-g{self.group_size}-asym"), method=method)


@dataclass(frozen=True)
class Int8WeightOnlyConfig:
    """8-bit symmetric weights; inputs in bf16.

    As in TorchAO, groups are asked for by `granularity=PerGroup(..)`, not by `group_size`.

    Raises:
        UsageError, UnsupportedError: a value that cannot be.
    """

    group_size: int | None = None
    granularity: Granularity | None = PerRow()
    set_inductor_config: bool = True
    version: int = _VERSION

    def __post_init__(self) -> None:
        _require_version(self.version)
        if self.group_size is not None:
            raise UsageError(
                f"group_size is {self.group_size}; give granularity=PerGroup({self.group_size}) "
                "instead."
            )
        _require_granularity(self.granularity, (PerTensor, PerRow, PerGroup))

    @property
    def scheme(self) -> Scheme:
        """`int8-row`, `int8-g<n>` or `int8-tensor`."""
        return Scheme(_int8(self.granularity))


@dataclass(frozen=True)
class Int8DynamicActivationInt8WeightConfig:
    """8-bit symmetric weights; inputs in int8 with a scale for each token.

    `granularity` may be a pair, of activations and of weights.

    Raises:
        UsageError, UnsupportedError: a value that cannot be.
    """

    act_mapping_type: str = "symmetric"
    weight_only_decode: bool = False
    granularity: Granularity | Sequence[Granularity] | None = PerRow()
    set_inductor_config: bool = True
    version: int = _VERSION
    reduce_range: bool | None = False

    def __post_init__(self) -> None:
        _require_version(self.version)
        for name in ("weight_only_decode", "reduce_range"):
            if getattr(self, name):
                raise UnsupportedError(
                    f"{name} is {getattr(self, name)}; the kernels neither change with the number "
                    "of rows nor saturate, so leave it False."
                )
        if _word(self.act_mapping_type) != "symmetric":
            raise UnsupportedError(
                f"act_mapping_type is {self.act_mapping_type}; inputs have scales without zero "
                "points, so it must be symmetric."
            )
        activations, weights = self._granularities()
        _require_granularity(activations, (PerRow,))
        _require_granularity(weights, (PerTensor, PerRow))

    @property
    def scheme(self) -> Scheme:
        """`int8-row` or `int8-tensor`, with inputs rounded by token."""
        return Scheme(_int8(self._granularities()[1]), Activations.TOKEN)

    def _granularities(self) -> tuple[object, object]:
        if not isinstance(self.granularity, Sequence):
            return self.granularity, self.granularity
        if len(self.granularity) != 2:
            raise UsageError(
                f"granularity has {len(self.granularity)} parts; give one, or that of activations "
                "and that of weights."
            )
        return self.granularity[0], self.granularity[1]


@dataclass(frozen=True)
class Float8WeightOnlyConfig:
    """Weights in float8 (e4m3); inputs as they are, in float32.

    Raises:
        UsageError, UnsupportedError: a value that cannot be.
    """

    weight_dtype: object = "float8_e4m3fn"
    """A torch dtype, or its name."""
    set_inductor_config: bool = True
    version: int = _VERSION
    granularity: Granularity | None = None

    def __post_init__(self) -> None:
        _require_version(self.version)
        if _word(self.weight_dtype) != "float8_e4m3fn":
            raise UnsupportedError(
                f"weight_dtype is {self.weight_dtype}; the float8 that kernels read is "
                "float8_e4m3fn."
            )
        _require_granularity(self.granularity, (PerTensor, PerRow))

    @property
    def scheme(self) -> Scheme:
        """`fp8_e4m3-row` or `fp8_e4m3-tensor`."""
        where = "tensor" if isinstance(self.granularity, PerTensor) else "row"
        return Scheme(parse_format(f"fp8_e4m3-{where}"))


def scheme_of(config: object) -> Scheme:
    """Return what a configuration comes to.

    Raises:
        UsageError: it is none.
    """
    if isinstance(config, type) or not isinstance(config, Config):
        shown = config.__name__ if isinstance(config, type) else type(config).__name__
        raise UsageError(
            f"The configuration is {shown}; give one of fewbit's, such as "
            "fewbit.Int4WeightOnlyConfig(group_size=32)."
        )
    return config.scheme


def _int8(granularity: object) -> NumberFormat:
    if isinstance(granularity, PerGroup):
        return parse_format(f"int8-g{granularity.group_size}")
    return parse_format("int8-tensor" if isinstance(granularity, PerTensor) else "int8-row")


def _word(value: object) -> str:
    """Return an option's name, whether it is a string, a member of an enum or a torch dtype."""
    named = getattr(value, "name", value)
    return str(named).rpartition(".")[2].lower()


def _require_one(name: str, value: object, choices: tuple[str, ...]) -> None:
    if _word(value) not in choices:
        raise UnsupportedError(f"{name} is {value!r}; choose from {', '.join(choices)}.")


def _require_version(version: object) -> None:
    if version != _VERSION:
        raise UnsupportedError(f"version is {version!r}; there is version {_VERSION} only.")


def _require_group(size: object) -> None:
    if not isinstance(size, int) or size < _RUN or size % _RUN:
        raise UsageError(
            f"group_size is {size!r}; give a multiple of {_RUN}, such as 32, 64, 128 or 256."
        )


def _require_granularity(granularity: object, kinds: tuple[type, ...]) -> None:
    """Refuse what is none of the kinds; None stands for rows."""
    if granularity is None or isinstance(granularity, kinds):
        return
    raise UnsupportedError(
        f"granularity is {granularity!r}; choose from "
        f"{', '.join(f'fewbit.{kind.__name__}' for kind in kinds)}."
    )
