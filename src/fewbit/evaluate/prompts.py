"""What speculation is measured on: code to write, a file to rewrite, questions to answer.

The built-in prompts are our own; others come from a file of JSON lines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fewbit.errors import BadFileError

Prompts = Mapping[str, tuple[str, ...]]
"""Prompts by kind."""

_FUNCTIONS = (
    (
        "def running_median(values: list[float], width: int) -> list[float]:",
        "Return the median of each window of `width` consecutive values, in order.\n\n"
        "    >>> running_median([1, 9, 2, 8], 3)\n    [2, 8]",
    ),
    (
        "def parse_duration(text: str) -> int:",
        "Return the seconds of a duration such as '1h30m', '45s' or '2d'.\n\n"
        "    Raises ValueError for anything else.\n\n    >>> parse_duration('1h30m')\n    5400",
    ),
    (
        "def merge_intervals(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:",
        "Return the union of half-open intervals, sorted, with touching ones joined.\n\n"
        "    >>> merge_intervals([(5, 7), (1, 3), (3, 4)])\n    [(1, 4), (5, 7)]",
    ),
    (
        "def longest_unique_substring(text: str) -> str:",
        "Return the first of the longest substrings of `text` without a repeated character.\n\n"
        "    >>> longest_unique_substring('abcabd')\n    'cabd'",
    ),
    (
        "def transpose_table(rows: list[dict[str, object]]) -> dict[str, list[object]]:",
        "Turn a list of rows into columns; a key that a row lacks is None there.\n\n"
        "    >>> transpose_table([{'a': 1}, {'a': 2, 'b': 3}])\n"
        "    {'a': [1, 2], 'b': [None, 3]}",
    ),
    (
        "def topological_order(edges: dict[str, list[str]]) -> list[str]:",
        "Return every node after all that point to it; ties in alphabetical order.\n\n"
        "    Raises ValueError where the edges have a cycle.",
    ),
    (
        "def to_roman(number: int) -> str:",
        "Return a number from 1 to 3999 in Roman numerals.\n\n"
        "    >>> to_roman(1994)\n    'MCMXCIV'",
    ),
    (
        "def word_wrap(text: str, width: int) -> list[str]:",
        "Break a text into lines of at most `width` characters, between words; a longer word has a "
        "line of its own.",
    ),
)

_INVENTORY = '''\
"""A small inventory: what is in stock, what was sold, what has to be ordered."""

from dataclasses import dataclass, field


@dataclass
class Item:
    """A thing that is sold."""

    name: str
    price: float
    stock: int = 0
    least: int = 5


@dataclass
class Inventory:
    """All items by name."""

    items: dict[str, Item] = field(default_factory=dict)
    sold: dict[str, int] = field(default_factory=dict)

    def add(self, item: Item) -> None:
        """Add an item; a second one of the same name is an error."""
        if item.name in self.items:
            raise ValueError(f"{item.name} is there already")
        self.items[item.name] = item

    def sell(self, name: str, count: int = 1) -> float:
        """Take items out of stock and return what they cost."""
        item = self.items[name]
        if count > item.stock:
            raise ValueError(f"only {item.stock} of {name} in stock")
        item.stock -= count
        self.sold[name] = self.sold.get(name, 0) + count
        return count * item.price

    def restock(self, name: str, count: int) -> None:
        """Put items into stock."""
        if count < 1:
            raise ValueError("count must be at least 1")
        self.items[name].stock += count

    def to_order(self) -> list[str]:
        """Return the names of items of which there are too few."""
        return sorted(name for name, item in self.items.items() if item.stock < item.least)

    def value(self) -> float:
        """Return what everything in stock costs together."""
        return sum(item.price * item.stock for item in self.items.values())
'''

_QUEUE = """\
// A bounded queue of jobs, shared by threads that produce and threads that consume.

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>

template <typename Job>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // Waits for room and adds a job; returns false once the queue is closed.
  bool push(Job job) {
    std::unique_lock<std::mutex> lock(mutex_);
    not_full_.wait(lock, [this] { return closed_ || jobs_.size() < capacity_; });
    if (closed_) {
      return false;
    }
    jobs_.push_back(std::move(job));
    not_empty_.notify_one();
    return true;
  }

  // Waits for a job and takes it; returns nothing once the queue is closed and empty.
  std::optional<Job> pop() {
    std::unique_lock<std::mutex> lock(mutex_);
    not_empty_.wait(lock, [this] { return closed_ || !jobs_.empty(); });
    if (jobs_.empty()) {
      return std::nullopt;
    }
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    not_full_.notify_one();
    return job;
  }

  void close() {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    not_empty_.notify_all();
    not_full_.notify_all();
  }

 private:
  const size_t capacity_;
  std::deque<Job> jobs_;
  std::mutex mutex_;
  std::condition_variable not_empty_;
  std::condition_variable not_full_;
  bool closed_ = false;
};
"""

_CHANGES = (
    (_INVENTORY, "rename the method `sell` to `take_out`, and nothing else"),
    (_QUEUE, "rename the class to `JobQueue`, and change nothing else"),
    (_INVENTORY, "let `least` be 10 by default, and nothing else"),
    (_QUEUE, "add a comment before `close` that says what it does, and change nothing else"),
)

_QUESTIONS = (
    "Why do leaves change colour in autumn? Explain it to a curious ten-year-old.",
    "I have two free days in a rainy city. Suggest a plan, with a reason for each part.",
    "What are the arguments for and against working from home? Give your own view at the end.",
    "Write a short letter to a neighbour whose dog barks at night. Be kind but clear.",
    "How does a lock on a canal work, step by step?",
    "Describe the smell of a bakery in the morning to someone who cannot smell.",
    "What should I think about before I buy a used bicycle?",
    "Tell me a story about a lighthouse keeper who collects lost umbrellas.",
)


def builtin_prompts() -> Prompts:
    """Return our own prompts: `code`, `rewrite` and `chat`."""
    code = [
        "Complete this Python function. Answer with the whole function and nothing else.\n\n"
        f'```python\n{head}\n    """{text}\n    """\n```'
        for head, text in _FUNCTIONS
    ]
    rewrite = [
        f"Rewrite this file: {change}. Answer with the whole new file only.\n\n```\n{file}```"
        for file, change in _CHANGES
    ]
    return {"code": tuple(code), "rewrite": tuple(rewrite), "chat": _QUESTIONS}


class _Line(msgspec.Struct):
    """A line of a file of prompts, ours or Spec-Bench's; other keys do not matter."""

    prompt: str = ""
    kind: str = ""
    category: str = ""
    turns: list[str] = []


def read_prompts(path: Path) -> Prompts:
    """Read prompts from JSON lines.

    A line has `prompt` and perhaps `kind`; or, as in Spec-Bench, `turns`, of which the first is
    taken, and perhaps `category`.

    Raises:
        BadFileError: the file cannot be read, or a line has no prompt.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise BadFileError(f"{path} cannot be read: {error.strerror}.") from error
    found: dict[str, list[str]] = defaultdict(list)
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        line = _line(text, f"line {number} of {path}")
        found[line.kind or line.category or "prompts"].append(line.prompt or line.turns[0])
    if not found:
        raise BadFileError(f"{path} has no prompts; write a JSON object a line with a `prompt`.")
    return {kind: tuple(prompts) for kind, prompts in found.items()}


def _line(text: bytes, name: str) -> _Line:
    try:
        line = msgspec.json.decode(text, type=_Line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFileError(f"{name} is no prompt: {error}.") from error
    if not line.prompt and not (line.turns and line.turns[0]):
        raise BadFileError(f"{name} has neither `prompt` nor `turns`; give one of them.")
    return line
