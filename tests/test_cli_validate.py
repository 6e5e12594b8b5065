"""`fewbit validate` on tiny models: from the command line to six answers, and each answer alone."""

import json
from itertools import islice

import pytest
from msgspec.structs import replace
from tiny_subjects import capitals, write_subject
from tiny_text import write_text_model

from fewbit.certify import certificate, planted
from fewbit.cli.app import run
from fewbit.cli.validate import _models
from fewbit.records.base import from_json, to_json
from fewbit.records.certificate import Standing
from fewbit.records.kept import fingerprint
from fewbit.records.outcome import Outcome
from fewbit.records.pair import PairVerdict
from fewbit.records.speculation import ServedPrompts
from fewbit.records.validation import Validation
from fewbit.validate import (
    Evidence,
    baseline_equality,
    caches_right,
    compatible_tokens,
    faster,
    quality,
    tokenizer_identity,
    validated,
    worst,
)

enumerated = certificate._enumerated
YES, NO, OPEN = Outcome.ACCEPT, Outcome.REJECT, Outcome.INCONCLUSIVE


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_text_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Return a model that is another in every way."""
    return str(write_subject(tmp_path_factory.mktemp("other")))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    file.write_text(
        '{"prompt": "a b a b a b a b", "kind": "code"}\n{"prompt": "one two one two"}\n'
    )
    return str(file)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("\n\n".join(f"A text of its own, number {i}. " * 8 for i in range(16)))
    return str(file)


@pytest.fixture(scope="module")
def small(prompts, text):
    return (
        *("--draft-tokens", "3", "--concurrency", "2", "--tokens", "8", "--turns", "1"),
        *("--prompts", prompts, "--text", text, "--axes", "language", "--threads", "1"),
    )


@pytest.fixture
def certified(found, monkeypatch):
    """Take the certificate that there is, which costs seconds to make."""
    monkeypatch.setattr("fewbit.cli.certify.certificate_of", lambda *_: found.certificate)


@pytest.fixture(scope="module")
def found(model, small, tmp_path_factory):
    """Return the validation of a model with itself as draft and as source."""
    json = tmp_path_factory.mktemp("out") / "v.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planted, "CONTROLS", planted.CONTROLS[:1])
        patch.setattr(certificate, "_enumerated", lambda *given: islice(enumerated(*given), 1))
        code = run(
            ["validate", model, "--draft", model, "--against", model, *small, "--json", str(json)]
        )
    validation = from_json(Validation, json.read_bytes(), name="v.json")
    assert code == validation.outcome.exit_code
    return validation


@pytest.fixture(scope="module")
def evidence(found):
    return Evidence(
        pair=found.pair,
        certificate=found.certificate,
        evaluation=found.evaluation,
        refused=found.refused,
        speculation=found.speculation,
    )


def test_a_model_with_itself_is_answered_by_yes_but_for_what_a_run_so_short_cannot_tell(found):
    answers = {question.name: question.outcome for question in found.questions}
    assert list(answers) == [
        "tokenizer identity",
        "vocabulary and special tokens",
        "baseline equality",
        "caches after rollback",
        "quality of the target",
        "speedup at concurrency",
    ]
    assert [answers[name] for name in list(answers)[:4]] == [YES] * 4
    assert answers["quality of the target"] is found.evaluation.verdict.outcome
    assert answers["speedup at concurrency"] is OPEN  # two turns decide nothing
    assert all(question.evidence for question in found.questions)
    assert found.pair.verdict is PairVerdict.USABLE


@pytest.mark.usefixtures("certified")
def test_the_answers_are_printed_one_by_one(model, small, capsys):
    code = run(["validate", model, "--draft", "ngram", "--against", model, *small])
    out = " ".join(capsys.readouterr().out.split())
    assert code in (0, 3, 4)
    for number, asked in ((1, "make the same tokens"), (4, "rejected"), (6, "concurrency")):
        assert f"{number}. " in out
        assert asked in out
    assert "the target's own tokens" in out


@pytest.mark.usefixtures("certified")
def test_another_source_is_a_no_and_no_error(model, other, small, tmp_path):
    json = tmp_path / "v.json"
    options = ("--draft", "ngram", "--against", other, *small, "--json", str(json))
    assert run(["validate", model, *options]) == 3
    validation = from_json(Validation, json.read_bytes(), name="v.json")
    assert validation.evaluation is None
    assert validation.refused in validation.questions[0].evidence[0]
    assert [validation.questions[i].outcome for i in (0, 4)] == [NO, NO]


def test_a_draft_that_cannot_be_used_is_a_no_and_the_rest_is_answered(
    model, small, tmp_path, monkeypatch
):
    """It shares too few tokens: nothing is run with it, and the target is measured all the same."""
    monkeypatch.setattr("fewbit.cli.certify.certificate_of", None)
    ends = {"bos_token": "A", "eos_token": "B"}
    strange = write_subject(tmp_path / "strange", backend=capitals(), tokenizer_config=ends)
    json, html = tmp_path / "v.json", tmp_path / "v.html"
    options = ("--draft", str(strange), "--against", model, *small)
    assert run(["validate", model, *options, "--json", str(json), "--html", str(html)]) == 3
    found = from_json(Validation, json.read_bytes(), name="v.json")
    answers = [question.outcome for question in found.questions]
    assert answers[:4] == [NO, NO, OPEN, OPEN] and answers[5] is OPEN
    assert answers[4] is found.evaluation.verdict.outcome
    assert found.questions[1].evidence[0].startswith("not usable: The draft can propose ")
    assert "see question 2" in found.questions[2].evidence[0]
    assert (found.certificate, found.speculation) == (None, None)
    page = html.read_text()
    assert page.count("Not asked, since the draft cannot be used") == 3
    assert str(strange) in page


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--draft", "none", "--against", "MODEL"), "--draft is none"),
        (("--draft", "ngram"), "--against"),
        (("--draft", "ngram", "--against", "MODEL", "--concurrency", "x"), "--concurrency is 'x'"),
        (("--draft", "ngram", "--against", "MODEL", "--concurrency", "513"), "513"),
        (("--draft", "ngram", "--against", "MODEL", "--axes", "langauge"), "langauge"),
        (("--draft", "ngram", "--against", "MODEL", "--gate", "GATE"), "did you mean language/kl"),
        (("--draft", "ngram", "--against", "MODEL", "--turns", "0"), "turns"),
        (("--draft", "ngram", "--against", "/nowhere.gguf"), "/nowhere.gguf"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(model, tmp_path, capsys, options, said):
    gate = tmp_path / "gate.toml"
    gate.write_text('[[slices]]\nmatch = "language/lk"\nmargin = 0.05\n')
    known = {"MODEL": model, "GATE": str(gate)}
    assert run(["validate", model, *(known.get(option, option) for option in options)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.mark.usefixtures("certified")
def test_what_is_kept_is_not_timed_again_and_its_time_is_said(
    model, small, tmp_path, monkeypatch, capsys
):
    json, work = tmp_path / "v.json", str(tmp_path / "work")
    command = ["validate", model, "--draft", "ngram", "--against", model, *small]
    command += ["--work", work, "--json", str(json)]
    run(command)
    first = from_json(Validation, json.read_bytes(), name="v.json")

    def never(*_):
        raise AssertionError("measured again")

    monkeypatch.setattr("fewbit.cli.bench_draft.speculation_report", never)
    run(command)
    again = from_json(Validation, json.read_bytes(), name="v.json")
    assert again.speculation == first.speculation
    assert again.questions[5].evidence == first.questions[5].evidence
    assert first.questions[5].evidence[-1].startswith("Measured at 20")
    monkeypatch.setattr("fewbit.records.kept.program_digest", lambda: "rebuilt")
    run(command)
    assert "measured again" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("of", ["target", "draft"])
def test_timings_are_kept_of_a_model_with_all_that_it_says(tmp_path, file, of):
    """Weights alone do not say how inputs are rounded, nor what a prompt is."""
    models = {name: write_text_model(tmp_path / name) for name in ("target", "draft")}

    def key():
        return fingerprint(_models(models["target"], str(models["draft"])))

    before = key()
    assert key() == before
    path = models[of] / file
    content = json.loads(path.read_text())
    if file == "tokenizer.json":
        content["added_tokens"] = content["added_tokens"][:-1]
    else:
        content["said"] = "otherwise"
    path.write_text(json.dumps(content))
    assert key() != before


def test_the_whole_is_as_its_worst_answer():
    assert worst(iter([YES, YES])) is YES
    assert worst(iter([YES, OPEN, YES])) is OPEN
    assert worst(iter([OPEN, NO, YES])) is NO


def test_a_draft_that_cannot_be_used_is_a_no(found):
    pair = replace(found.pair, verdict=PairVerdict.NOT_USABLE, reasons=("it shares nothing",))
    question = compatible_tokens(pair, "draft")
    assert question.outcome is NO
    assert "it shares nothing" in question.evidence[0]
    assert compatible_tokens(None, "ngram").outcome is YES


def test_a_certificate_that_fails_is_a_no(found):
    failed = replace(
        found.certificate, standing=Standing.NOT_CERTIFIED, reasons=("token 3 differs",)
    )
    assert baseline_equality(failed).outcome is NO
    assert baseline_equality(failed).evidence[0] == "token 3 differs"
    open_ = replace(found.certificate, standing=Standing.INCONCLUSIVE)
    assert baseline_equality(open_).outcome is OPEN


def test_caches_that_differ_or_were_never_written_over_are_told_apart(found):
    def answered(of="caches", **change):
        changed = tuple(replace(case, **change) for case in getattr(found.certificate, of))
        assert changed
        return caches_right(replace(found.certificate, **{of: changed})).outcome

    assert answered() is YES
    assert answered(differing=(1,)) is NO
    assert answered(written_over=0) is OPEN
    assert answered("draft_caches", differing=(1,)) is NO
    alone = caches_right(replace(found.certificate, draft_caches=()))
    assert "no cache of its own" in alone.evidence[-1]


def test_a_target_that_is_not_its_source_fails_two_questions(evidence):
    gone = Evidence(
        pair=evidence.pair,
        certificate=evidence.certificate,
        evaluation=None,
        refused="Token 3 is 'a' in the source.",
        speculation=evidence.speculation,
    )
    assert tokenizer_identity(gone).outcome is quality(None, gone.refused).outcome is NO
    assert validated("source", gone, 1.0).outcome is NO


def with_gains(report, *gains):
    """Return a report of one concurrency whose turns have these gains."""
    (run_, *_) = report.runs
    plain = ServedPrompts(tokens=100, seconds=1.0, gap_median=0.01, gap_p99=0.01)
    turns = tuple(
        replace(run_.turns[0], plain=plain, drafted=replace(plain, seconds=1 / gain))
        for gain in gains
    )
    return replace(report, runs=(replace(run_, turns=turns),))


@pytest.mark.parametrize(
    ("gains", "answer"),
    [
        ([1.5] * 12, YES),
        ([1.5] * 10 + [0.9] * 2, YES),
        ([1.5] * 9 + [0.9] * 3, OPEN),
        ([1.5] * 6 + [0.9] * 6, OPEN),
        ([0.8] * 10 + [1.1] * 2, NO),
        ([2.0], OPEN),
    ],
)
def test_faster_is_what_a_sign_test_says(found, gains, answer):
    question = faster(with_gains(found.speculation, *gains))
    assert question.outcome is answer
    assert "times as fast" in question.evidence[0]


def test_the_record_can_be_written_and_read(found):
    assert from_json(Validation, to_json(found), name="it") == found
