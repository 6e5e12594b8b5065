"""The certificate's own tiny models, opened once for a test file."""

import atexit
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from fewbit.certify.certificate import TINY
from fewbit.certify.enumeration import Enumerated
from fewbit.certify.planted import PLAIN
from fewbit.certify.tiny import HEAD_LAYERS, write_draft, write_head, write_target
from fewbit.engine.loaded import load_model
from fewbit.engine.loaded_draft import load_draft
from fewbit.engine.loaded_head import load_head
from fewbit.engine.named_drafts import named_draft
from fewbit.model.head_source import open_head
from fewbit.speculate.drafts import NgramDraft


@cache
def tiny():
    """Return (target, draft model): both small enough to enumerate."""
    with TemporaryDirectory(prefix="fewbit-test-") as folder:
        settings = replace(TINY, nested=True, states=lambda layers: HEAD_LAYERS)
        target = load_model(write_target(Path(folder, "target")), settings)
        return target, load_draft(write_draft(Path(folder, "draft")), target, TINY).draft


atexit.register(tiny.cache_clear)


def drawing(**fields):
    """Return a request of three tokens along the draft model: 45 paths."""
    target, draft = tiny()
    given = {"params": PLAIN, "described": "", "length": 3, "longest": 2, **fields}
    return Enumerated(draft.name, target, draft, **given)


def beside(kind, **fields):
    """Return the same along a draft of the target itself, such as `exit:1`."""
    target, _ = tiny()
    given = {"params": PLAIN, "described": "", "length": 3, "longest": 2, **fields}
    return Enumerated(kind, target, named_draft(kind)(target), **given)


def matching(**fields):
    """Return the same along n-grams."""
    target, _ = tiny()
    given = {"params": PLAIN, "described": "", "length": 3, "longest": 2, **fields}
    return Enumerated("ngram", target, NgramDraft(longest=2, shortest=1), **given)


def heading(**fields):
    """Return the same along a head, which can propose two of the three tokens."""
    target, _ = tiny()
    with TemporaryDirectory(prefix="fewbit-test-") as folder:
        draft = load_head(open_head(write_head(Path(folder, "head"))), target, 1).draft
    given = {"params": PLAIN, "described": "", "length": 3, "longest": 2, **fields}
    return Enumerated(draft.name, target, draft, **given)
