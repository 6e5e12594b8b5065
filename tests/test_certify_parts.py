"""A certificate that is stopped: what has ended is kept, and the whole is as if never stopped."""

from functools import partial

import msgspec
import pytest
from certify_cases import drawing, matching
from test_certify_checks import other_model_drafting, quiet
from tiny_text import write_text_model

from fewbit.certify import certificate, equality, partition, planted, rollback
from fewbit.certify.cases import PROMPTS, SAMPLED, CertifySettings
from fewbit.certify.certificate import OpenDraft, certify
from fewbit.certify.partition import Sought, check_sampling
from fewbit.certify.parts import Parts, parts_in
from fewbit.cli.app import run
from fewbit.engine.loaded import load_model
from fewbit.errors import BadFileError
from fewbit.evaluate.conditions import conditions
from fewbit.model.runner import RunSettings
from fewbit.records.base import from_json
from fewbit.records.certificate import Certificate
from fewbit.records.kept import Kept
from fewbit.speculate.suffix import SuffixDraft

SETTINGS = CertifySettings(tokens=5, lengths=(3,), together=(16,))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = write_text_model(tmp_path_factory.mktemp("tiny"))
    return load_model(folder, RunSettings(threads=1, context=512, sequences=17))


@pytest.fixture
def few(monkeypatch):
    """Few requests, one case to enumerate and one bug: parts are many all the same, and quick."""
    monkeypatch.setattr(equality, "PROMPTS", {name: PROMPTS[name] for name in ("list", "rewrite")})
    ways = ("greedy", "temperature 0.7, top-p 0.9")
    monkeypatch.setattr(equality, "SAMPLED", {way: SAMPLED[way] for way in ways})
    case = drawing(length=2)
    monkeypatch.setattr(certificate, "_enumerated", lambda target, draft, own: iter([case]))
    monkeypatch.setattr(planted, "CONTROLS", planted.CONTROLS[:1])
    monkeypatch.setattr(planted, "replace", lambda given, **fields: case)


def certified(model, draft, work):
    drafting = OpenDraft(draft, None, lambda target, folder: matching().draft)
    ran = conditions(model.runner.kernels, 1, "native")
    found = certify(model, drafting, SETTINGS, ran, quiet, parts_in(work, "asked"))
    return msgspec.structs.replace(found, seconds=0.0)


class StoppedHere(BaseException):
    """Stands for Ctrl-C."""


def stop_after(monkeypatch, parts):
    """Have the run end when so many parts were kept."""
    left = [parts]
    add = Kept.add

    def counted(self, name, record):
        if not left[0]:
            raise StoppedHere
        left[0] -= 1
        add(self, name, record)

    monkeypatch.setattr(Kept, "add", counted)


@pytest.mark.parametrize("stops", [(5,), (13, 16)], ids=["suffix", "model"])
def test_wherever_it_is_stopped_the_certificate_is_the_same(
    model, few, tmp_path, monkeypatch, stops
):
    """With a model as the draft too, whose store is warm from other parts unless it begins anew."""
    draft = SuffixDraft() if len(stops) == 1 else other_model_drafting(model, tmp_path)
    whole = certified(model, draft, tmp_path / "whole")
    for parts in stops:
        work = tmp_path / str(parts)
        with monkeypatch.context() as patched:
            stop_after(patched, parts)
            with pytest.raises(StoppedHere):
                certified(model, draft, work)
        assert certified(model, draft, work) == whole


def test_a_draft_that_is_warm_from_other_parts_would_tell(model, few, tmp_path, monkeypatch):
    """The negative control: without a draft that begins anew acceptance depends on what ran."""
    draft = other_model_drafting(model, tmp_path)
    for module in (equality, rollback):
        monkeypatch.setattr(module, "fresh", lambda given: given)
    first = certified(model, draft, tmp_path / "first")
    assert certified(model, draft, tmp_path / "again") != first


def test_what_has_ended_is_not_run_again(model, few, tmp_path, monkeypatch):
    whole = certified(model, SuffixDraft(), tmp_path)

    def never(*_, **__):
        raise AssertionError("it was kept")

    monkeypatch.setattr(equality, "said", never)
    assert certified(model, SuffixDraft(), tmp_path) == whole
    (tmp_path / "certificates").rename(tmp_path / "elsewhere")
    with pytest.raises(AssertionError, match="it was kept"):
        certified(model, SuffixDraft(), tmp_path)


def test_the_time_of_all_parts_counts_whenever_they_ran(tmp_path):
    ticks = iter(range(100))
    make = partial(equality.PlainRun, tokens=(1,), logprobs=(-0.5,))
    for expected in (1.0, 1.0):
        parts = Parts(tmp_path, clock=lambda: float(next(ticks)))
        for _ in range(2):
            assert parts.once("plain", "a", equality.PlainRun, make) == make()
        assert parts.seconds == expected


def test_waves_of_sampling_are_parts(model, tmp_path):
    sought, draft = Sought(0.4), other_model_drafting(model, tmp_path)
    check = partial(check_sampling, model, draft, 3, quiet, sought)
    whole = check(parts=Parts(tmp_path / "a"))
    assert (tmp_path / "a" / "sampling.jsonl").exists()
    drawn = partition.tokens_needed(0.4, 0.25)
    assert whole.tokens >= drawn / 2
    kept = (tmp_path / "a" / "sampling.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "sampling.jsonl").write_bytes(b"".join(kept[:-1]))
    assert check(parts=Parts(tmp_path / "b")) == whole


def test_a_damaged_part_is_refused_by_name(tmp_path):
    make = partial(equality.PlainRun, tokens=(1,), logprobs=(-0.5,))
    Parts(tmp_path).once("plain", "a", equality.PlainRun, make)
    file = tmp_path / "plain.jsonl"
    file.write_bytes(file.read_bytes().replace(b"tokens", b"tokeys"))
    with pytest.raises(BadFileError, match="'a', which is no PlainRun"):
        Parts(tmp_path).once("plain", "a", equality.PlainRun, make)


def test_ctrl_c_ends_with_75_and_the_command_that_goes_on(few, tmp_path, monkeypatch, capsys):
    model = str(write_text_model(tmp_path / "model"))
    small = ("--draft-tokens", "2", "--concurrency", "16", "--tokens", "4", "--threads", "1")
    json, work = tmp_path / "c.json", tmp_path / "work"
    command = ["certify", model, "--draft", "ngram", *small, "--json", str(json)]

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(certificate, "check_caches", interrupted)
        assert run([*command, "--work", str(work)]) == 75
        err = capsys.readouterr().err
        assert f"kept in {work}" in err
        assert f"Go on with: fewbit certify {model}" in err
    monkeypatch.setattr(equality, "said", interrupted)  # all of it is kept
    code = run([*command, "--work", str(work)])
    assert from_json(Certificate, json.read_bytes(), name="c").standing.exit_code == code


def test_another_question_has_parts_of_its_own(tmp_path):
    make = partial(equality.PlainRun, tokens=(1,), logprobs=(-0.5,))
    for asked in ("one", "another"):
        parts_in(tmp_path, asked).once("plain", "a", equality.PlainRun, make)
    assert len(list((tmp_path / "certificates").iterdir())) == 2


def test_another_build_has_parts_of_its_own(tmp_path, monkeypatch):
    make = partial(equality.PlainRun, tokens=(1,), logprobs=(-0.5,))
    parts_in(tmp_path, "asked").once("plain", "a", equality.PlainRun, make)
    monkeypatch.setattr("fewbit.certify.parts.program_digest", lambda: "rebuilt")
    other = partial(equality.PlainRun, tokens=(2,), logprobs=(-0.25,))
    found = parts_in(tmp_path, "asked").once("plain", "a", equality.PlainRun, other)
    assert found == other()
