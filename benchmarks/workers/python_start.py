"""fewbit's Python interface from the start of a process to its first token, which it prints."""

from __future__ import annotations

import argparse

import fewbit


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", required=True)
    chosen = parser.parse_args()
    with fewbit.load(chosen.model, fewbit.RunSettings(threads=chosen.threads)) as model:
        print(next(model.stream(chosen.prompt, max_tokens=1), ""), flush=True)


if __name__ == "__main__":
    main()
