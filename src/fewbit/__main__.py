"""`python -m fewbit` is the `fewbit` command."""

from __future__ import annotations

from fewbit.cli.app import main

if __name__ == "__main__":
    main()
