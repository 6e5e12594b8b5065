"""Screenshots of a report for the README, light and dark, in headless Chromium.

    make report-images RECORD=evaluation.json

RECORD is what `fewbit eval --json` (or `compress`, in report.json) wrote.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from fewbit.report.kinds import read_record

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import chromium  # noqa: E402

WIDTH, HEIGHT = 1000, 1500
LARGEST = 300_000
"""Bytes of an image in a README."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--height", type=int, default=HEIGHT, help="pixels from the page's top")
    asked = parser.parse_args()
    path = chromium.found()
    if path is None:
        raise SystemExit("Chromium is not on the path; install it to take screenshots.")
    kind, record = read_record(asked.record.read_bytes(), str(asked.record))
    asked.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        page.write_text(kind.page(record))
        with chromium.browser(path, Path(folder) / "profile") as opened:
            for name, dark in (("report.png", False), ("report-dark.png", True)):
                opened.open(page, width=WIDTH, dark=dark)
                shot = opened.screenshot(height=asked.height)
                if len(shot) > LARGEST:
                    raise SystemExit(f"{name} has {len(shot):,} bytes; lower --height.")
                (asked.out / name).write_bytes(shot)
                print(asked.out / name, f"{len(shot):,} bytes")


if __name__ == "__main__":
    main()
