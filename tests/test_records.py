"""Records are read strictly."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fewbit.errors import BadFileError
from fewbit.records.base import from_json, to_json
from fewbit.records.kernels import KernelRecord, RejectedKernel

RECORD = KernelRecord(
    slot="head.weight",
    format="q8_0",
    kernel="w8",
    activations="f32",
    bytes=3,
    rejected=(RejectedKernel(kernel="amx", reason="this CPU has none"),),
)


def test_a_record_survives_json() -> None:
    assert from_json(KernelRecord, to_json(RECORD), name="x") == RECORD


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"slot": 3}', b"\xff", to_json(RECORD)[:-3] + b', "more": 1}']
)
def test_a_malformed_record_is_refused(text: bytes) -> None:
    with pytest.raises(BadFileError, match=r"kernels\.json is not a valid KernelRecord"):
        from_json(KernelRecord, text, name="kernels.json")


@pytest.mark.parametrize("half", ["\udce9", "\ud83d"])
def test_names_that_are_no_utf8_can_be_recorded(half: str) -> None:
    found = from_json(KernelRecord, to_json(replace(RECORD, kernel=f"a{half}b")), name="x")
    assert found.kernel.startswith("a\N{REPLACEMENT CHARACTER}") and found.kernel.endswith("b")
    assert found.rejected == RECORD.rejected
