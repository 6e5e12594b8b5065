"""What speculation is worth: plain beside speculative, and llama.cpp's best of both, in one table.

    python benchmarks/speculation.py --large QWEN-1.5B.gguf --middle QWEN-0.5B.gguf --data FOLDER
    python benchmarks/speculation.py lookup concurrent --large QWEN-1.5B.gguf
    python benchmarks/speculation.py --quick         # whether it runs at all

Plain and speculative generation take turns on the same prompts in one process, the peer in one of
its own between them. A ratio is taken in each turn; the table has the median and the spread. With
each row stands how many drafted tokens were accepted; below the table the costs that the lengths
were chosen by. Without a model the rows that need it say so.

What a part found is kept in FOLDER/speculation/PART.json: a run that was stopped, or asked for the
same with the same models and the same fewbit, file for file, goes on with the parts that are
missing. --again measures what is kept once more, as after a change of this benchmark itself.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kept_parts import Part, part_of, stamp
from models import Models, rewrite
from processes import Worker, WorkerError, rows_of
from table import Row, as_json, markdown, not_run
from turns import (
    PEER_BAR,
    PEER_DRAFTS,
    best_peer,
    peer_turn,
    row_against_peer,
    row_of_ends,
    row_of_turns,
    rows_of_turns,
    turns_of,
)

from fewbit.evaluate.conditions import processor
from fewbit.evaluate.prompts import builtin_prompts, read_prompts
from fewbit.records.kept import program_digest
from fewbit.runtime.native import available_cores

CODE = "coding"
"""The category of Spec-Bench's code prompts."""

SAMPLED = 0.8
SEQUENCES = 16
SERVED_TURNS = 3
"""Each of twice as many requests, half a minute long."""
NO_PAIR = "give --large FILE and --middle FILE"
NO_LARGE = "give --large FILE"


@dataclass(frozen=True)
class Run:
    """The choices of one run."""

    folder: Path
    large: Path | None
    middle: Path | None
    data: Path | None
    peer_python: str
    threads: int
    turns: int
    tokens: int
    notes: list[str] = field(default_factory=list)

    def prompts(self, kind: str) -> list[str]:
        """Return our own prompts of a kind, and for code those of Spec-Bench where they are."""
        found = list(builtin_prompts()[kind])
        if kind == "code" and self.data is not None:
            theirs = read_prompts(self.data / "question.jsonl")[CODE]
            found = [p for pair in zip(found, theirs, strict=False) for p in pair]
        return [found[i % len(found)] for i in range(self.turns)]

    def ours(self, model: Path, **options: str | int) -> Worker:
        """Start fewbit with a target."""
        chosen = {"threads": self.threads, "context": 1536, **options}
        return Worker(sys.executable, "fewbit_speculation.py", model, **chosen)

    def note(self, text: str) -> None:
        """Keep a condition, once."""
        if text not in self.notes:
            self.notes.append(text)


def pair(run: Run) -> Iterator[Row]:
    """The 1.5B with the 0.5B drafting greedily, as it is and prepared."""
    if run.large is None or run.middle is None:
        yield not_run("1.5B with the 0.5B drafting, greedy code", ">= 1.35 x", NO_PAIR)
        yield not_run("same, the draft prepared", ">= 1.6 x", NO_PAIR)
        return
    prepared = _prepared(run)
    with run.ours(run.large) as ours:
        groups = [[ours.ask("prompt", text=text)] for text in run.prompts("code")]
        for draft, name, least in ((prepared, "0.5B prepared", 1.6), (run.middle, "0.5B", 1.35)):
            turns = turns_of(ours, str(draft), groups, run.tokens)
            yield from rows_of_turns(f"1.5B, {name} drafting, greedy code", turns, least)
        _note_costs(run, ours, (str(prepared), str(run.middle)))


def sampled(run: Run) -> Iterator[Row]:
    """The same at a temperature and without a seed: drafted tokens are judged by rejection."""
    work = f"1.5B, 0.5B prepared drafting, code, temperature {SAMPLED}"
    if run.large is None or run.middle is None:
        yield not_run(work, ">= 1.3 x", NO_PAIR)
        return
    prepared = str(_prepared(run))
    with run.ours(run.large) as ours:
        groups = [[ours.ask("prompt", text=text)] for text in run.prompts("code")]
        turns = turns_of(ours, prepared, groups, run.tokens, SAMPLED)
        yield row_of_turns(work, turns, 1.3)
        _note_costs(run, ours, (prepared,))


def peer(run: Run) -> Iterator[Row]:
    """The prepared draft beside the better of llama.cpp's plain and speculative runs."""
    work = "1.5B, 0.5B prepared, over llama.cpp's best"
    if run.large is None or run.middle is None:
        yield not_run(work, f">= {PEER_BAR} x", NO_PAIR)
        return
    prepared = str(_prepared(run))
    options = {"threads": run.threads, "context": 1536, "draft": str(run.middle)}
    theirs = Worker(run.peer_python, "llama_cpp_speculation.py", run.large, **options)
    with run.ours(run.large) as ours, theirs:
        ids = [ours.ask("prompt", text=text) for text in run.prompts("code")]
        best = best_peer(theirs, ids[0], run.tokens)
        run.note(f"llama.cpp: {theirs.ask('facts')['system']}; best of {PEER_DRAFTS}: {best}")
        turns, peers = [], []
        for prompt in ids[: max(1, run.turns // 2)]:  # the peer takes five times as long
            found = turns_of(ours, prepared, [[prompt]], run.tokens)
            if found:
                turns += found
                peers.append(peer_turn(theirs, prompt, run.tokens, best))
        yield row_against_peer(work, turns, peers, best)


def lookup(run: Run) -> Iterator[Row]:
    """n-gram and suffix drafts: rewriting a file, and chat."""
    model, name = _target(run)
    with run.ours(model) as ours:
        for kind, least in (("rewrite", 2.5), ("chat", 0.97)):
            ids = [ours.ask("prompt", text=text) for text in run.prompts(kind)]
            # A rewritten file is as long as the file: its draft pays to the end.
            tokens = run.tokens * 3 if kind == "rewrite" else run.tokens
            for draft in ("ngram", "suffix"):
                turns = turns_of(ours, draft, [[i] for i in ids], tokens)
                bar = least if name.startswith("1.5B") else None
                yield from rows_of_turns(f"{name}, {draft}, {kind}", turns, bar)
        _note_costs(run, ours, ("ngram", "suffix"))


def nested(run: Run) -> Iterator[Row]:
    """int8 weights whose upper halves draft for them."""
    work = "1.5B int8, its high bits drafting, greedy code"
    if run.large is None:
        yield not_run(work, ">= 1.2 x", NO_LARGE)
        return
    model = _as_int8(run, run.large)
    with run.ours(model, draft="nested") as ours:
        ids = [ours.ask("prompt", text=text) for text in run.prompts("code")]
        turns = turns_of(ours, "nested", [[i] for i in ids], run.tokens)
        yield from rows_of_turns(work, turns, 1.2)
        facts = ours.ask("facts", "nested")
        more = facts["peak"] / facts["peak_alone"]
        shown = f"{facts['peak'] / 1e6:.0f} MB"
        yield Row("same, peak memory over the target alone", shown, "", f"{more:.2f} x", "",
                  "<= 1.05 x", more <= 1.05)  # fmt: skip
        _note_costs(run, ours, ("nested",))


def concurrent(run: Run) -> Iterator[Row]:
    """Sixteen requests at once: never slower."""
    model, name = _target(run)
    drafts = (
        ["ngram"] if run.middle is None or run.large is None else ["ngram", str(_prepared(run))]
    )
    with run.ours(model, sequences=SEQUENCES) as ours:
        for kind in ("code", "chat"):
            texts = builtin_prompts()[kind]
            # Twice as many as places: one that waits takes the place of one that has ended.
            some = [texts[i % len(texts)] for i in range(2 * SEQUENCES)]
            ids = [ours.ask("prompt", text=text) for text in some]
            for draft in drafts:
                turns = turns_of(ours, draft, [ids] * min(run.turns, SERVED_TURNS), run.tokens)
                shown = Path(draft).stem
                work = f"{name}, {SEQUENCES} at once, {shown}, {kind}"
                yield from rows_of_turns(work, turns, 0.97)
                yield row_of_ends(turns)
        _note_costs(run, ours, drafts)


PARTS: Mapping[str, Callable[[Run], Iterator[Row]]] = {
    "pair": pair,
    "sampled": sampled,
    "peer": peer,
    "lookup": lookup,
    "nested": nested,
    "concurrent": concurrent,
}

MINUTES = {"pair": 4, "sampled": 2, "peer": 3, "lookup": 6, "nested": 3, "concurrent": 9}
"""What each needs by default on two quiet cores, the making of models the first time included."""


def _note_costs(run: Run, ours: Worker, drafts: Iterable[str]) -> None:
    for draft in drafts:
        facts = ours.ask("facts", draft)
        run.note(f"{Path(draft).stem}: {facts['costs']}")
        run.note(f"kernels {', '.join(facts['kernels'])}")


def _target(run: Run) -> tuple[Path, str]:
    """Return the 1.5B, or SmolLM2 where it is not given."""
    if run.large is not None:
        return run.large, "1.5B"
    return Models(run.folder, None).small("q4_0"), "SmolLM2"


def _prepared(run: Run) -> Path:
    """Return the 0.5B prepared as a draft, made if it is not there yet."""
    path = run.folder / "qwen2.5-coder-0.5b-draft.gguf"
    if not path.exists():
        _fewbit("draft", "prepare", str(run.middle), "--for", str(run.large), "--out", str(path))
    return path


def _as_int8(run: Run, large: Path) -> Path:
    """Return the 1.5B in Q8_0, made if it is not there yet."""
    path = run.folder / "qwen2.5-coder-1.5b-q8_0.gguf"
    if not path.exists():
        rewrite(large, path, "q8_0")
    return path


def _fewbit(*arguments: str) -> None:
    command = [sys.executable, "-m", "fewbit", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WorkerError(f"fewbit {' '.join(arguments)} failed: {done.stderr.strip()}")


def main() -> None:
    chosen = _arguments()
    run = Run(
        folder=chosen.folder,
        large=chosen.large,
        middle=chosen.middle,
        data=chosen.data,
        peer_python=chosen.peer_python,
        threads=chosen.threads,
        turns=1 if chosen.quick else chosen.turns,
        tokens=12 if chosen.quick else chosen.tokens,
    )
    run.folder.mkdir(parents=True, exist_ok=True)
    parts = {name: _part(run, name, again=chosen.again) for name in chosen.parts or PARTS}
    rows = [row for part in parts.values() for row in part.rows]
    took = [f"{name} {p.seconds:.0f} s ({p.cpu_seconds:.0f})" for name, p in parts.items()]
    notes = dict.fromkeys(note for part in parts.values() for note in part.notes)
    conditions = [
        f"{processor()}, {run.threads} threads; elapsed (processor time): {', '.join(took)}",
        *notes,
    ]
    print("\n".join([markdown(rows), "", *(f"- {line}" for line in conditions)]))
    if chosen.json:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        record = {"conditions": conditions, "rows": as_json(rows)}
        chosen.json.write_text(json.dumps(record, indent=2) + "\n")
    sys.exit(any(part.failed for part in parts.values()))


def _part(run: Run, name: str, *, again: bool) -> Part:
    """Return a part, kept or run now; its rows are shown on stderr as they come."""
    path = run.folder / "speculation" / f"{name}.json"
    if again:
        path.unlink(missing_ok=True)
    print(
        f"{name}: about {MINUTES[name]} minutes by default on two quiet cores",
        file=sys.stderr,
        flush=True,
    )
    asked = {
        "fewbit": program_digest(),
        "models": [stamp(run.large), stamp(run.middle)],
        "prompts": None if run.data is None else str(run.data),
        "sizes": [run.threads, run.turns, run.tokens],
    }
    run.notes.clear()
    part = part_of(path, asked, lambda: _shown(rows_of(name, PARTS[name], run)), run.notes)
    if part.kept:
        print(f"  kept in {path}", file=sys.stderr)
    return part


def _shown(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        print(" | ".join(cell for cell in row.cells() if cell), file=sys.stderr, flush=True)
        yield row


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    parser.add_argument("--large", type=Path, help="Qwen2.5-Coder-1.5B-Instruct in Q4_K_M")
    parser.add_argument("--middle", type=Path, help="Qwen2.5-Coder-0.5B-Instruct in Q4_K_M")
    parser.add_argument("--data", type=Path, help="a folder with Spec-Bench's question.jsonl")
    parser.add_argument(
        "--folder", type=Path, default=Path("build/benchmarks"), help="keeps what is made"
    )
    parser.add_argument("--peer-python", default=sys.executable, help="a Python with llama_cpp")
    parser.add_argument("--threads", type=int, default=min(2, available_cores()))
    parser.add_argument("--turns", type=int, default=8, help="prompts a row")
    parser.add_argument("--tokens", type=int, default=96, help="generated for each")
    parser.add_argument("--quick", action="store_true", help="tiny sizes; figures mean nothing")
    parser.add_argument("--again", action="store_true", help="measure what is kept once more")
    parser.add_argument("--json", type=Path, help="write rows and every value here too")
    return parser.parse_args()


if __name__ == "__main__":
    main()
