"""Peak memory of running SmolLM2-135M over its file's size, at a context of 2,048.

A process of its own loads the model, runs a prompt that fills the context, and reads the peak of
its resident memory as the system counts it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

CONTEXT = 2048
BAR = 150e6

CODE = """
import json, sys
import numpy as np
from fewbit.evaluate.machine.resident import peak_memory
from fewbit.model.runner import load

runner = load(sys.argv[1], context=int(sys.argv[2]))
tokens = (np.arange(runner.context) * 7919) % 40_000 + 10
for _ in runner.score(tokens, first=runner.context - 1):
    pass
print(json.dumps(peak_memory()))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="a GGUF file; the embedded model by default")
    model = parser.parse_args().model or _embedded()
    command = [sys.executable, "-c", CODE, model, str(CONTEXT)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak, size = json.loads(done.stdout), Path(model).stat().st_size
    print(
        f"{Path(model).name}: {size / 1e6:.1f} MB, peak {peak / 1e6:.1f} MB at a context of "
        f"{CONTEXT}: {(peak - size) / 1e6:.1f} MB over the file (bar {BAR / 1e6:.0f} MB)"
    )


def _embedded() -> str:
    command = [sys.executable, "-m", "fewbit", "pull", "smollm2-135m"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


if __name__ == "__main__":
    main()
