"""`fewbit certify`: proof, over the path that users run, that a draft changes nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fewbit.cli.output import HtmlOption, JsonOption
from fewbit.cli.running import RUNNING, RunningOptions, counts
from fewbit.errors import UsageError

if TYPE_CHECKING:
    from fewbit.certify.cases import CertifySettings
    from fewbit.certify.certificate import OpenDraft
    from fewbit.certify.parts import Parts
    from fewbit.engine.chosen_draft import ChosenDraft, OpenedDraft
    from fewbit.engine.loaded import LoadedModel
    from fewbit.model.runner import RunSettings
    from fewbit.records.certificate import Certificate
    from fewbit.records.conditions import Conditions
    from fewbit.speculate.drafts import Draft


def certify(  # noqa: PLR0913
    model: Annotated[str, Parameter(name="MODEL")],
    /,
    *,
    draft: str,
    draft_text: Path | None = None,
    draft_tokens: str = "1,4,8",
    draft_tree: int = 3,
    concurrency: str = "1,4,16",
    tokens: int = 24,
    long: Annotated[bool, Parameter(negative="")] = False,
    work: Path | None = None,
    running: RunningOptions = RUNNING,
    html: HtmlOption = None,
    json: JsonOption = None,
) -> int:
    """Prove that a draft changes nothing of what a model says.

    Exit code 0 is CERTIFIED, 3 NOT CERTIFIED, 4 INCONCLUSIVE; 75 is stopped, where --work keeps
    what was checked and the same command goes on.

    Example: fewbit certify smollm2-135m --draft ngram --html certificate.html

    Args:
        model: A name, a path to a GGUF file, or a folder; what is not here yet is fetched.
        draft: What drafts, as `fewbit generate --draft` takes it.
        draft_text: A text file that a suffix draft looks in too.
        draft_tokens: Tokens drafted at once; several numbers, separated by commas.
        draft_tree: Branches beside the drafted chain in the runs with trees; 0 leaves them out.
        concurrency: How many requests at once; several numbers, separated by commas.
        tokens: Tokens that each compared request generates.
        long: Also sample from the model itself, with 80% power for a bias of 0.01; minutes.
        work: A folder that keeps every part that has ended; one run at a time uses it.
        running: How the model runs.
        html: Write the certificate as a page that opens offline to this file.
        json: Write the certificate to this file; - prints it on stdout instead of the tables.
    """
    from fewbit.certify.cases import CertifySettings
    from fewbit.cli.output import deliver_with_page
    from fewbit.cli.pull import locate
    from fewbit.report.certificate import print_certificate
    from fewbit.report.html import certificate_page

    lengths = counts("draft-tokens", draft_tokens, "1,4,8")
    together = counts("concurrency", concurrency, "1,4,8")
    settings = CertifySettings(
        tokens=tokens, lengths=lengths, together=together, branches=draft_tree, long=long
    )
    found = certificate_of(locate(model), draft, draft_text, settings, running, work)
    deliver_with_page(found, json, print_certificate, html, certificate_page)
    return found.standing.exit_code


def certificate_of(  # noqa: PLR0913, PLR0917
    model: Path,
    draft: str,
    draft_text: Path | None,
    settings: CertifySettings,
    running: RunningOptions,
    work: Path | None = None,
) -> Certificate:
    """Open a model and a draft beside it, and check; progress goes to stderr.

    Raises:
        UsageError: the draft is none, or none of that name; or the model's context is too short.
        StoppedError: an interrupt or SIGTERM came, and `work` keeps what was checked.
        FewbitError: as `certify.certificate.certify`.
    """
    from fewbit.certify.certificate import certify as certified
    from fewbit.certify.room import room_for
    from fewbit.cli.drafts import chosen_draft
    from fewbit.cli.progress import watched
    from fewbit.cli.stopping import resumable
    from fewbit.engine.loaded import load_model
    from fewbit.model.weights import open_model

    longest = max(settings.lengths)
    chosen = chosen_draft(draft, longest, draft_text, branches=settings.branches)
    with open_model(model) as source:
        room = room_for(source, settings)
    run = chosen.target_settings(running.settings(room.sequences, room.context))
    target = load_model(model, run)
    kind = chosen_draft(_shallow(draft), longest, draft_text)
    opened = chosen.opened(target, run)
    drafting = _beside(opened, kind, target, run)
    ran = _conditions(target, run)
    text = None if draft_text is None else draft_text.read_bytes()
    parts = _parts(work, target, opened, (drafting.draft.name, text, settings.tokens, ran))
    with resumable(work), watched() as watch:
        return certified(target, drafting, settings, ran, watch, parts)


def _conditions(target: LoadedModel, run: RunSettings) -> Conditions:
    from fewbit.evaluate.conditions import conditions
    from fewbit.runtime.native import threads_of

    return conditions(
        target.runner.kernels,
        threads_of(run.threads),
        "native",
        kv=run.cache_type.value,
        rotated_keys=run.rotate_keys,
    )


def _parts(
    work: Path | None, target: LoadedModel, opened: OpenedDraft, asked: tuple[object, ...]
) -> Parts:
    """Return what a work folder keeps of these very models, asked for the same."""
    from fewbit.certify.parts import Parts, parts_in
    from fewbit.tokens.identity import fingerprint

    if work is None:
        return Parts()
    own = opened.kernels if opened.record is None else opened.record.kernels
    return parts_in(
        work,
        target.runner.source.checkpoint.stamps(),
        target.runner.kernels,
        fingerprint(target.tokenizer),
        opened.stamps,
        own,
        asked,
    )


def _beside(
    opened: OpenedDraft, kind: ChosenDraft, target: LoadedModel, run: RunSettings
) -> OpenDraft:
    """Return the draft beside the target, with how one of its kind is opened beside a tiny one.

    A tiny model runs as the target does, but for static scales, which it has none of.
    """
    from fewbit.certify.certificate import TINY, TINY_DRAFT, TINY_HEAD, OpenDraft
    from fewbit.certify.tiny import HEAD_LAYERS
    from fewbit.cli.drafts import draft_notes
    from fewbit.model.head_source import open_head
    from fewbit.records.kernels import Activations

    if opened.speculation is None:
        raise UsageError("--draft is none, which changes nothing; name a draft to certify.")
    static = run.activations is Activations.STATIC
    tiny = replace(
        TINY,
        activations=None if static else run.activations,
        cache_type=run.cache_type,
        rotate_keys=run.rotate_keys,
        nested=run.nested,
        states=None if run.states is None else lambda layers: HEAD_LAYERS,
    )

    def beside_tiny(target: LoadedModel, folder: Path) -> Draft:
        beside = kind if kind.path is None else replace(kind, path=folder / TINY_DRAFT)
        if kind.head is not None:
            beside = replace(kind, head=open_head(folder / TINY_HEAD))
        speculation = beside.opened(target, tiny).speculation
        assert speculation is not None
        return speculation.draft

    notes = (*target.runner.loading.notes, *draft_notes(opened))
    return OpenDraft(opened.speculation.draft, opened.record, beside_tiny, tiny, notes)


def _shallow(draft: str) -> str:
    """Return the name of a draft of the same kind for a model of two layers."""
    kinds = draft.split("+")
    return "+".join("exit:1" if kind.startswith("exit:") else kind for kind in kinds)
