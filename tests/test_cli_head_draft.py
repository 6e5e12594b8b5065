"""A head that continues from hidden states, from its folder to text, record and certificate."""

from dataclasses import replace

import pytest
from engine_storm import Storm, alone, requests
from fakes import FakeDecoder
from head_cases import head_weights, write_native, write_speculators
from test_cli_generate import report_of
from tiny_models import CONFIGS
from tiny_text import write_text_model

import fewbit
from fewbit.certify import planted
from fewbit.certify.rollback import check_draft_caches
from fewbit.cli.app import run
from fewbit.engine.chosen_draft import choose_draft
from fewbit.engine.engine import Engine
from fewbit.engine.loaded import load_model
from fewbit.engine.request import Speculation
from fewbit.engine.scheduler import Limits
from fewbit.model.runner import RunSettings
from fewbit.records.base import from_json
from fewbit.records.certificate import Certificate, Standing
from fewbit.speculate import head_draft
from fewbit.speculate.controller import FixedLengths
from fewbit.speculate.head_sequence import HeadSequence

CONFIG = CONFIGS["llama"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("head")
    write_text_model(path / "target")
    write_native(path / "native", CONFIG, head_weights(CONFIG, own_embedding=False))
    write_speculators(path / "speculators", CONFIG, head_weights(CONFIG))
    return path


@pytest.mark.parametrize("form", ["native", "speculators"])
@pytest.mark.parametrize(
    "sampling", [(), ("--temperature", 1, "--seed", 3)], ids=["greedy", "seed"]
)
def test_a_head_changes_nothing(folder, capsys, form, sampling):
    shared = (folder / "target", "--raw", "-p", "abcabcabc", "--max-tokens", 30, *sampling)
    plain = report_of(capsys, *shared)
    draft = ("--draft", folder / form, "--draft-costs", "learned")
    drafted = report_of(capsys, *shared, *draft)
    assert (drafted.text, drafted.tokens) == (plain.text, plain.tokens)
    assert drafted.generation.draft.draft == f"eagle3:{form}"
    assert {"hidden.weight", "layers.0.q_state.weight", "head.weight"} <= {
        kernel.slot for kernel in drafted.draft_kernels
    }


def test_what_it_is_is_told(folder, capsys):
    draft = f"ngram+eagle3:{folder / 'native'}"
    assert (
        run(["generate", str(folder / "target"), "-p", "a", "--max-tokens", "3", "--draft", draft])
        == 0
    )
    err = capsys.readouterr().err
    assert "draft: a head with a KV cache" in err
    assert "matrices are rounded to q8_0" in err


def test_from_python(folder):
    with (
        fewbit.load(folder / "target") as plain,
        fewbit.load(folder / "target", draft=folder / "native", draft_tokens=3) as drafting,
    ):
        for prompt in ("abcabc", "abcabd"):
            before = plain.generate(prompt, max_tokens=20)
            after = drafting.generate(prompt, max_tokens=20)
            assert (after.text, after.tokens) == (before.text, before.tokens)
            assert after.record.draft.longest == 3


@pytest.mark.parametrize("name", ["{native}", "suffix+{native}"])
def test_joining_leaving_and_cancelling(folder, name):
    """Chunked prompts, shared pages, preemption; each output is that of its request alone."""
    chosen = choose_draft(name.format(native=folder / "native"), 3, lambda path: folder / path)
    settings = chosen.target_settings(RunSettings(context=128, sequences=3))
    target = load_model(folder / "target", settings)
    draft = chosen.opened(target, settings).speculation.draft
    served = replace(target.served, decoder=FakeDecoder)
    asked = requests(16, seed=1, vocabulary=target.vocabulary, longest=80)
    truth = alone(lambda: Engine(served, limits=Limits(rows=200, sequences=1)), asked)
    running = Engine(
        served,
        Speculation(draft, 3, control=FixedLengths),
        limits=Limits(rows=30, sequences=6),
    )
    running._scheduler._has_room = lambda generation: True  # so that some are set back
    storm = Storm(running, asked, truth, most=10).run(100)
    assert not storm.wrong
    storm.require_nothing_left()
    assert storm.cancelled > 0
    assert running.record.preemptions > 0


def test_a_head_is_certified(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(planted, "CONTROLS", planted.CONTROLS[:1])
    json = tmp_path / "c.json"
    small = ("--draft-tokens", "3", "--concurrency", "1,16", "--tokens", "12", "--threads", "1")
    arguments = ["certify", str(folder / "target"), "--draft", str(folder / "speculators")]
    assert run([*arguments, *small, "--json", str(json)]) == 0
    found = from_json(Certificate, json.read_bytes(), name="c.json")
    assert found.standing is Standing.CERTIFIED
    assert found.draft == "eagle3:speculators"
    assert found.enumerations[0].draft == "eagle3:tiny-head"
    assert found.enumerations[0].rule == "block"
    assert found.draft_kernels
    (case,) = found.draft_caches
    assert case.pages >= 2
    assert case.written_over > 5
    assert not case.differing
    assert any("the draft's own store equal those" in reason for reason in found.reasons)
    assert any("rounded to q8_0" in note for note in found.notes)


def test_a_row_that_keeps_a_drafted_state_is_found_in_the_heads_store(folder, monkeypatch):
    """An accepted token's row must be read again, with the target's state for the head's own."""
    chosen = choose_draft(str(folder / "speculators"), 3, lambda path: folder / path)
    settings = chosen.target_settings(RunSettings(threads=1, context=512, sequences=2))
    target = load_model(folder / "target", settings)
    draft = chosen.opened(target, settings).speculation.draft
    settle = HeadSequence.settle

    def kept(self, tokens):
        begun, unread = self.computed, settle(self, tokens)
        if begun and unread > 1:
            self.computed = len(tokens) - 2 - self.base
        return min(unread, 1) if begun else unread

    monkeypatch.setattr(HeadSequence, "settle", kept)
    monkeypatch.setattr(head_draft, "READ_ROWS", 512)
    (case,) = check_draft_caches(target, draft, 3)
    assert case.differing


def test_a_head_of_another_model_is_refused_in_a_sentence(folder, tmp_path, capsys):
    other = {**CONFIG, "vocab_size": 400}
    write_speculators(tmp_path / "other", other, head_weights(other))
    arguments = ["generate", str(folder / "target"), "-p", "a"]
    assert run([*arguments, "--draft", str(tmp_path / "other")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "it belongs to another model" in err
    assert len(err.splitlines()) == 1
