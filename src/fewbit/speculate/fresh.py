"""A draft that knows nothing of what it has read, for runs that must not profit from others."""

from __future__ import annotations

from fewbit.speculate.combined import CombinedDraft
from fewbit.speculate.drafts import Draft
from fewbit.speculate.head_draft import HeadDraft
from fewbit.speculate.model_draft import ModelDraft


def fresh(draft: Draft) -> Draft:
    """Return a draft that knows no sequence, nor what others began with, on the same store."""
    if isinstance(draft, CombinedDraft):
        return CombinedDraft(*map(fresh, draft.parts))
    return draft.anew() if isinstance(draft, ModelDraft | HeadDraft) else draft
