"""Reading GPTQ folders (AutoGPTQ, GPTQModel): versions 1 and 2, 2, 3, 4 and 8 bits.

A module has `qweight` int32 [inputs * bits / 32, outputs], packed along the inputs; `qzeros` int32
[groups, outputs * bits / 32], packed along the outputs; `scales` [groups, outputs]; and mostly
`g_idx` int32 [inputs], the group of each input, which is out of order where columns were quantized
by importance ("desc_act"). Version 1 stores zero - 1, version 2 the zero itself. Files mislabel
their version, but where `sym` is true every zero is 2^(bits-1) and the stored values tell it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from fewbit.checkpoint.arrays import bad_tensor, floats_of, info_of, integers_of, require_shape
from fewbit.checkpoint.detect import CONFIG
from fewbit.checkpoint.huggingface import HuggingFaceCheckpoint
from fewbit.checkpoint.packed_folder import (
    QUANTIZATION,
    PackedFolder,
    require_layout,
    stated_config,
)
from fewbit.checkpoint.packed_weight import IntegerWeight, checked_groups, integer_weight
from fewbit.errors import BadFileError, UnsupportedError
from fewbit.formats.words import WORD, from_words, unpack_across

METHOD = "gptq"
V1, V2 = "gptq", "gptq_v2"
"""What files call the versions."""

_BITS = (2, 3, 4, 8)
_QWEIGHT = ".qweight"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The `quantization_config` of GPTQ; what does not change the layout is not read."""

    bits: int
    group_size: int
    sym: bool = True
    checkpoint_format: str | None = None
    format: str | None = None
    pack_dtype: Literal["int32"] | None = None
    dynamic: dict[str, Any] | None = None
    """Other bits for some modules; their tensors say the same."""

    @property
    def label(self) -> str:
        """The version that the file claims."""
        return self.checkpoint_format or self.format or V1


@dataclass(frozen=True)
class _Module:
    """A packed module."""

    folder: HuggingFaceCheckpoint
    name: str
    config: Config

    def part(self, name: str) -> str:
        return f"{self.name}.{name}"

    def bad(self, part: str, problem: str) -> BadFileError:
        return bad_tensor(self.folder, self.part(part), problem)

    @cached_property
    def parts(self) -> tuple[str, ...]:
        names = (self.part(name) for name in ("qweight", "qzeros", "scales", "g_idx"))
        return tuple(name for name in names if name in self.folder.tensors)

    @cached_property
    def groups(self) -> int:
        return self._matrix("scales")[0]

    @cached_property
    def shape(self) -> tuple[int, int]:
        """[outputs, inputs]."""
        words, outputs = self._matrix("qweight")
        index = self.folder.tensors.get(self.part("g_idx"))
        if index is not None:
            inputs = index.shape[0] if index.shape else 0
        elif self.config.dynamic:
            inputs = self.groups * max(self.config.group_size, 1)
        else:
            inputs = words * WORD // self.config.bits
        if inputs < 1 or words * WORD % inputs:
            raise self.bad("qweight", f"has {words} words for {inputs} inputs")
        require_shape(self.folder, self.part("scales"), (self.groups, outputs))
        return outputs, inputs

    @cached_property
    def bits(self) -> int:
        words, inputs = self._matrix("qweight")[0], self.shape[1]
        bits = words * WORD // inputs
        if bits not in _BITS:
            raise UnsupportedError(
                f"{self.folder.path}: {self.name!a} has {bits} bits; supported of GPTQ are "
                f"{', '.join(map(str, _BITS))}."
            )
        if bits != self.config.bits and not self.config.dynamic:
            raise self.bad("qweight", f"has {bits} bits, but {CONFIG} says {self.config.bits}")
        return bits

    def codes(self) -> NDArray[np.uint8]:
        words = integers_of(self.folder, self.part("qweight"), "i32")
        return from_words(np.ascontiguousarray(words.T), self.bits, self.shape[1])

    def scales(self) -> NDArray[np.floating]:
        return floats_of(self.folder, self.part("scales")).T

    def stored_zeros(self) -> NDArray[np.uint8]:
        """Return what `qzeros` holds, uint8 [groups, outputs]."""
        outputs = self.shape[0]
        require_shape(
            self.folder, self.part("qzeros"), (self.groups, -(-outputs * self.bits // WORD))
        )
        return unpack_across(
            integers_of(self.folder, self.part("qzeros"), "i32"), self.bits, outputs
        )

    def group_of(self) -> NDArray[np.integer] | None:
        name, inputs = self.part("g_idx"), self.shape[1]
        if name not in self.folder.tensors:
            size = self.config.group_size
            ragged = size > 0 and inputs % size != 0
            return np.arange(inputs) // size if ragged else None
        found = integers_of(self.folder, name, "i32", "i64").reshape(-1)
        return checked_groups(found, self.groups, lambda problem: self.bad("g_idx", problem))

    def _matrix(self, part: str) -> tuple[int, int]:
        found = info_of(self.folder, self.part(part)).shape
        if len(found) != 2:
            raise self.bad(part, f"has shape {found} where two dimensions are expected")
        return found[0], found[1]


def open_gptq(folder: HuggingFaceCheckpoint) -> PackedFolder:
    """Return a GPTQ folder with its packed weights in our formats.

    Raises:
        BadFileError, MissingError: configuration and tensors contradict each other, or are damaged:
            a `g_idx` out of range among them.
        UnsupportedError: another layout, such as that of Marlin or of GPTQModel's planar bits.
        NumericalError: a scale is NaN or infinite.
    """
    config = _read_config(folder)
    modules = [
        _Module(folder, name.removesuffix(_QWEIGHT), config)
        for name in folder.tensors
        if name.endswith(_QWEIGHT)
    ]
    return PackedFolder(folder, [integer_weight(_weight(module)) for module in modules])


def _read_config(folder: HuggingFaceCheckpoint) -> Config:
    owner = folder.path / CONFIG
    config = stated_config(folder.facts.config[QUANTIZATION], Config, "GPTQ", owner)
    require_layout(config.label, (V1, V2), "GPTQ", owner)
    if config.bits not in _BITS:
        raise UnsupportedError(
            f"{owner}: GPTQ with {config.bits} bits is not supported; supported are "
            f"{', '.join(map(str, _BITS))}."
        )
    return config


def _weight(module: _Module) -> IntegerWeight:
    symmetric = module.config.sym
    return IntegerWeight(
        name=module.part("weight"),
        parts=module.parts,
        shape=module.shape,
        bits=module.bits,
        groups=module.groups,
        codes=module.codes,
        scales=module.scales,
        zeros=None if symmetric else lambda: _zeros(module),
        group_of=module.group_of(),
        notes=_version_notes(module) if symmetric else _wrapped_notes(module),
    )


def _version_notes(module: _Module) -> tuple[str, ...]:
    """Tell the version of a symmetric weight by its zeros; say where the label is another.

    Raises:
        BadFileError: its zeros are those of neither version.
    """
    middle = 1 << (module.bits - 1)
    stored = module.stored_zeros()
    for version, value in ((V1, middle - 1), (V2, middle)):
        if (stored == value).all():
            if version == module.config.label:
                return ()
            return (
                f"its zeros are those of {version}, though it is labelled {module.config.label}",
            )
    other = int(stored[(stored != middle) & (stored != middle - 1)][:1].sum()) or "both"
    raise module.bad(
        "qzeros",
        f"holds {other} where symmetric weights of {module.bits} bits have {middle - 1} (version "
        f"1) or {middle} (version 2) everywhere",
    )


def _wrapped_notes(module: _Module) -> tuple[str, ...]:
    """Say where version 1 stores its largest code, which is -1 and so the zero 0."""
    if module.config.label == V2:
        return ()
    wrapped = int((module.stored_zeros() == (1 << module.bits) - 1).sum())
    if not wrapped:
        return ()
    return (f"{wrapped} of its zeros are stored as {(1 << module.bits) - 1} and read as 0",)


def _zeros(module: _Module) -> NDArray[np.uint8]:
    """Return the zero points, uint8 [outputs, groups]."""
    stored = module.stored_zeros()
    if module.config.label == V1:
        stored = (stored + np.uint8(1)) & np.uint8((1 << module.bits) - 1)
    return np.ascontiguousarray(stored.T)
