"""A draft model opened beside its target: on its threads, with its tokens, in its context."""

import json

import numpy as np
import pytest
from fakes import draft_query
from tiny_models import CONFIGS, random_weights
from tiny_subjects import begin_with_bos, capitals, tokenizer, write_subject

from fewbit.checkpoint.gguf_write import write_gguf
from fewbit.cli.app import run
from fewbit.engine.engine import Engine
from fewbit.engine.loaded import load_model
from fewbit.engine.loaded_draft import load_draft
from fewbit.engine.request import Request, Speculation
from fewbit.engine.scheduler import Limits
from fewbit.engine.stop import StopCondition
from fewbit.errors import UnsupportedError, UsageError
from fewbit.model import memory
from fewbit.model.cut_head import cut_head
from fewbit.model.pieces import Piece, step_of
from fewbit.model.runner import RunSettings
from fewbit.model.weights import open_model
from fewbit.records.base import from_json
from fewbit.records.generation import GenerationReport
from fewbit.runtime.memory import Available
from fewbit.runtime.step import PAGE
from fewbit.sampling import SamplingParams
from fewbit.speculate.controller import FixedLengths

GREEDY = SamplingParams(temperature=0)
SETTINGS = RunSettings(threads=2, context=192, sequences=4)


def nearly(weights, share, seed=7):
    """The same weights, each off by a share of their deviation: a draft that is often right."""
    random = np.random.default_rng(seed)
    return {
        name: (w + share * w.std() * random.standard_normal(w.shape)).astype(np.float32)
        for name, w in weights.items()
    }


def pair(folder, config, share=0.1, **fields):
    """Write a target and a draft of one kind."""
    weights = random_weights(config)
    target = write_subject(folder / "target", config=config, weights=weights)
    draft = write_subject(folder / "draft", config=config, weights=nearly(weights, share), **fields)
    return target, draft


@pytest.fixture(scope="module", params=["llama-tied", "gemma3", "mistral"])
def opened(request, tmp_path_factory):
    """Two of them have windows of 8 and 16 positions."""
    target, draft = pair(tmp_path_factory.mktemp(request.param), CONFIGS[request.param])
    return load_model(target, SETTINGS), draft


def texts(count, seed=5):
    random = np.random.default_rng(seed)
    return [tuple(random.integers(3, 250, n).tolist()) for n in random.integers(4, 90, count)]


def served(loaded, speculation, requests):
    """Return each request's tokens and record, with the requests joining one after another."""
    engine = Engine(loaded.served, speculation, limits=Limits(rows=64, sequences=3))
    waiting, found = list(requests), {}
    numbers = {}
    while waiting or engine.busy:
        if waiting:
            numbers[engine.add(waiting.pop(0))] = len(numbers)
        for output in engine.step():
            tokens, _ = found.get(numbers[output.request], ((), None))
            found[numbers[output.request]] = (*tokens, *output.tokens), output.record
    return [found[i] for i in range(len(requests))]


def test_requests_that_join_and_leave_get_what_they_would_get_alone(opened):
    loaded, path = opened
    draft = load_draft(path, loaded, SETTINGS).draft
    params = [GREEDY, SamplingParams(seed=3), SamplingParams(temperature=0.5, top_k=40, seed=4)]
    requests = [
        Request(prompt, params[i % 3], StopCondition(max_tokens=24))
        for i, prompt in enumerate(texts(6))
    ]
    alone = [served(loaded, None, [request])[0][0] for request in requests]
    together = served(loaded, Speculation(draft, 4, control=FixedLengths), requests)
    assert [tokens for tokens, _ in together] == alone
    counts = [p for _, record in together for p in record.draft.positions]
    assert 0 < sum(p.accepted for p in counts) < sum(p.tested for p in counts)
    assert draft.pages_held == 0


def pages_of(runner, tokens, pages):
    """The store's pages after a prompt is run, of which only whole positions are looked at."""
    rows = np.array(tokens, np.int32)
    runner.executor.step(step_of([Piece(rows, 0, pages, np.empty(0, np.int32))]))
    return [runner.executor.page(int(page)) for page in pages]


def test_the_store_after_rollbacks_equals_that_of_a_fresh_run(opened):
    """Bit for bit, over all positions of full pages."""
    loaded, path = opened
    one, other = (load_draft(path, loaded, SETTINGS) for _ in range(2))
    random = np.random.default_rng(0)
    tokens = list(texts(1)[0])
    drafted = taken = 0
    while len(tokens) < 2 * PAGE + 1:
        proposal = one.draft.propose([draft_query(0, tokens, 4, params=GREEDY)])[0].tokens
        count = int(random.integers(0, len(proposal) + 1))
        drafted, taken = drafted + len(proposal), taken + count
        tokens += proposal[:count]
        tokens.append(int(random.integers(3, 250)))
    one.draft.propose([draft_query(0, tokens, 1, params=GREEDY)])
    assert taken < drafted
    held = one.draft._store.sequences[0].table.array[:2]
    fresh = pages_of(other.runner, tokens[: 2 * PAGE], np.arange(2, dtype=np.int32))
    assert [one.runner.executor.page(int(page)) for page in held] == fresh
    wrong = [*tokens[:PAGE], tokens[PAGE] + 1, *tokens[PAGE + 1 : 2 * PAGE]]
    assert pages_of(other.runner, wrong, np.arange(2, dtype=np.int32)) != fresh


def test_it_runs_on_the_threads_of_its_target(opened):
    loaded, path = opened
    runner = load_draft(path, loaded, SETTINGS).runner
    assert runner.executor.pool is loaded.runner.executor.pool


def test_it_has_no_more_context_than_its_target_or_itself(tmp_path):
    config = CONFIGS["llama-tied"]
    target, draft = pair(tmp_path, config)
    written = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps({**written, "max_position_embeddings": 100}))
    loaded = load_model(target, SETTINGS)
    small = load_draft(draft, loaded, SETTINGS).draft
    assert small.context == 100
    request = Request(texts(1)[0][:40], GREEDY, StopCondition(max_tokens=100))
    [(plain, _)] = served(loaded, None, [request])
    [(tokens, record)] = served(loaded, Speculation(small, 4, control=FixedLengths), [request])
    assert tokens == plain
    assert "context of 100 tokens is full" in record.draft_off


# --- vocabularies ---------------------------------------------------------------------------------


def test_rows_beyond_the_tokens_are_padding_and_never_drafted(tmp_path):
    config = CONFIGS["llama-tied"]
    wide = {**config, "vocab_size": 352}
    target = write_subject(tmp_path / "target", config=config)
    draft = write_subject(tmp_path / "draft", config=wide)
    loaded = load_model(target, SETTINGS)
    opened = load_draft(draft, loaded, SETTINGS)
    assert opened.runner.program.vocabulary == 352
    assert opened.draft._model.vocabulary == loaded.vocabulary < 320
    assert opened.draft._model.support is None


def test_tokens_under_other_ids_are_mapped(tmp_path):
    """The draft is the target but for two merges, and so for the ids behind them."""
    config = CONFIGS["llama-tied"]
    other = begin_with_bos(tokenizer(merges=(("a", "n"), ("t", "h"), ("th", "e"))))
    target, path = pair(tmp_path, config, share=0.05, backend=other)
    loaded = load_model(target, SETTINGS)
    opened = load_draft(path, loaded, SETTINGS)
    assert opened.differences
    requests = [Request(prompt, GREEDY, StopCondition(max_tokens=20)) for prompt in texts(2)]
    plain = [served(loaded, None, [request])[0][0] for request in requests]
    drafted = served(loaded, Speculation(opened.draft, 3, control=FixedLengths), requests)
    assert [tokens for tokens, _ in drafted] == plain
    assert sum(p.accepted for _, record in drafted for p in record.draft.positions)


def test_a_vocabulary_with_little_in_common_is_refused(tmp_path):
    config = CONFIGS["llama-tied"]
    ends = {"bos_token": "A", "eos_token": "B"}
    target, draft = pair(tmp_path, config, backend=capitals(), tokenizer_config=ends)
    with pytest.raises(UnsupportedError, match="draft cannot draft for target"):
        load_draft(draft, load_model(target, SETTINGS), SETTINGS)


# --- prepared drafts ------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(seed=3)], ids=["greedy", "seeded"])
def test_a_prepared_draft_changes_nothing_either(opened, tmp_path, sampling):
    loaded, path = opened
    kept = np.sort(np.random.default_rng(1).choice(259, 200, replace=False)).astype(np.int32)
    cut = cut_head(open_model(path), kept, "target")
    file = tmp_path / "small.gguf"
    write_gguf(file, cut.checkpoint.facts, [*cut.checkpoint.tensors.values()], cut.checkpoint.read)
    draft = load_draft(file, loaded, SETTINGS).draft
    requests = [Request(prompt, sampling, StopCondition(max_tokens=24)) for prompt in texts(4)]
    plain = [served(loaded, None, [request])[0][0] for request in requests]
    drafted = served(loaded, Speculation(draft, 4, control=FixedLengths), requests)
    assert [tokens for tokens, _ in drafted] == plain
    assert sum(p.accepted for _, record in drafted for p in record.draft.positions)


# --- from the command line ------------------------------------------------------------------------


def report_of(capsys, *arguments):
    assert run(["generate", *map(str, arguments), "--json", "-"]) == 0
    out, err = capsys.readouterr()
    return from_json(GenerationReport, out.encode(), name="stdout"), err


@pytest.mark.parametrize("sampling", [(), ("--temperature", 0.8, "--seed", 3)])
def test_generate_with_a_draft_model_says_the_same(tmp_path, capsys, sampling):
    target, draft = pair(tmp_path, CONFIGS["llama-tied"], share=0.02)
    shared = (target, "--raw", "-p", "abcabc", "--max-tokens", 40, *sampling)
    plain, _ = report_of(capsys, *shared)
    drafted, err = report_of(capsys, *shared, "--draft", draft, "--draft-tokens", 3)
    assert "fewbit draft prepare" in err
    assert drafted.tokens == plain.tokens
    assert drafted.generation.draft.draft == "draft"
    assert drafted.draft.model.path == str(draft)
    assert drafted.draft.kernels
    assert plain.draft is None


def test_a_draft_that_is_not_there_is_named(tmp_path, capsys):
    target = write_subject(tmp_path / "target")
    assert run(["generate", str(target), "-p", "a", "--draft", "nowhere"]) == 2
    said = capsys.readouterr().err
    assert "draft 'nowhere'" in said
    assert "ngram" in said


def test_what_the_target_has_yet_to_take_is_no_room_for_a_draft(opened, monkeypatch):
    target, path = opened
    theirs = target.runner.loading.memory
    left = load_draft(path, target, SETTINGS).runner.loading.memory.needed
    left += theirs.store + theirs.workspace
    monkeypatch.setattr(memory, "available_memory", lambda: Available(left, "left in a cgroup"))
    load_draft(path, target, SETTINGS)
    left -= 1
    with pytest.raises(
        UsageError, match=r"The draft model needs .* its target .* left in a cgroup"
    ):
        load_draft(path, target, SETTINGS)
