"""The files that both engines read: SmolLM2-135M in three forms, made once, and one of your own."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from processes import WorkerError

from fewbit.checkpoint.checkpoint import GgufFacts, TensorInfo
from fewbit.checkpoint.gguf_read import GgufCheckpoint
from fewbit.checkpoint.gguf_types import ValueType
from fewbit.checkpoint.gguf_write import overlay, write_gguf
from fewbit.formats.registry import BLOCK_FORMATS, decode, encode, encoded_bytes
from fewbit.formats.spec import BlockSpec, QuantTensor
from fewbit.model.gguf_metadata import file_type


@dataclass(frozen=True)
class Models:
    """Paths; None where nothing was given."""

    folder: Path
    """Where what is made is kept for the next time."""
    large: Path | None
    """A model of 1.5B in Q4_K_M."""

    def small(self, form: str) -> Path:
        """Return SmolLM2-135M in `q4_0`, `q8_0` or `bf16`, made if it is not there yet."""
        path = self.folder / f"smollm2-135m-{form}.gguf"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            if form == "q4_0":
                _fewbit("quantize", "smollm2-135m", "--recipe", "rtn-q4_0", "--out", str(path))
            else:
                rewrite(Path(_fewbit("pull", "smollm2-135m").splitlines()[-1]), path, form)
        return path


def rewrite(source: Path, out: Path, form: str) -> None:
    """Write a GGUF file's matrices in another format, wider ones too; vectors stay as they are."""
    spec = BLOCK_FORMATS[form].spec
    with GgufCheckpoint(source) as checkpoint:
        infos = {name: _as(spec, info) for name, info in checkpoint.tensors.items()}

        def read(name: str) -> QuantTensor:
            tensor = checkpoint.read(name)
            same = infos[name].format == tensor.spec
            return tensor if same else encode(decode(tensor), spec)

        facts = checkpoint.facts
        assert isinstance(facts, GgufFacts)
        kind = {"general.file_type": (ValueType.UINT32, file_type({form: 1}))}
        write_gguf(out, overlay(facts, kind), list(infos.values()), read)


def _as(spec: BlockSpec, info: TensorInfo) -> TensorInfo:
    if len(info.shape) < 2:
        return info
    return TensorInfo(info.name, spec, info.shape, encoded_bytes(spec, info.matrix_shape))


def _fewbit(*arguments: str) -> str:
    command = [sys.executable, "-m", "fewbit", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WorkerError(f"fewbit {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout
