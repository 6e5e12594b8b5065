"""How long `import fewbit` and `fewbit --help` take, and that neither imports torch."""

from __future__ import annotations

import subprocess
import sys
import time

BARS = {"import fewbit": 0.3, "fewbit --help": 0.5}
COMMANDS = {
    "import fewbit": [sys.executable, "-c", "import fewbit"],
    "fewbit --help": [sys.executable, "-m", "fewbit", "--help"],
}


def main() -> None:
    for name, command in COMMANDS.items():
        seconds = min(_seconds(command) for _ in range(5))
        print(f"{name}: {seconds:.2f} s (bar {BARS[name]} s)")
    code = "import fewbit, fewbit.cli.app, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    print(f"torch imported: {done.stdout.strip()}")


def _seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
