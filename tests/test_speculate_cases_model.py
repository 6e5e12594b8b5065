"""What goes wrong with speculation elsewhere, where it takes a real path to see it.

Like `test_speculate_cases.py`, with tiny models in files, their tokenizers and their templates.
"""

import re

import numpy as np
import pytest
import tokenizers
from fakes import FixedDraft
from tiny_models import CONFIGS, random_weights
from tiny_subjects import CONFIG, begin_with_bos, sharp_weights, tokenizer, write_subject
from tiny_tokenizers import folder_tokenizer
from tokenizers import decoders, models, pre_tokenizers

from fewbit.cli import app
from fewbit.engine.engine import Engine
from fewbit.engine.loaded import load_model
from fewbit.engine.loaded_draft import load_draft
from fewbit.engine.request import Request, Speculation
from fewbit.engine.stop import StopCondition
from fewbit.errors import UnsupportedError
from fewbit.model.runner import RunSettings
from fewbit.records.generation import FinishReason
from fewbit.sampling import SamplingParams
from fewbit.speculate.controller import FixedLengths
from fewbit.tokens.grammar import Grammar, GrammarKind

GREEDY = SamplingParams(temperature=0)
SETTINGS = RunSettings(threads=2, context=192, sequences=4)


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    """A target of the real path with a draft much like it, of a shorter context."""
    root = tmp_path_factory.mktemp("family")
    random = np.random.default_rng(0)
    near = {
        name: (w + 0.1 * w.std() * random.standard_normal(w.shape)).astype(np.float32)
        for name, w in sharp_weights().items()
    }
    target = write_subject(root / "target", weights=sharp_weights())
    draft = write_subject(
        root / "draft", weights=near, config={**CONFIG, "max_position_embeddings": 64}
    )
    return target, draft


@pytest.fixture(scope="module")
def opened(family):
    return load_model(family[0], SETTINGS)


def generated(loaded, speculation, requests):
    """Return tokens and record of each request, all at once."""
    found = [([], []) for _ in requests]
    for output in Engine(loaded.served, speculation).generate(requests):
        found[output.request][0].extend(output.tokens)
        found[output.request][1].extend([output.record] if output.record else [])
    return [(tokens, record[0]) for tokens, record in found]


@pytest.mark.parametrize("kind", ["gemma3", "mistral"])
def test_14_a_sliding_window_after_rejections_equals_a_fresh_run(kind, tmp_path):
    """transformers #48280, mlx-lm #1914: the cache of windows of 8 and 16 positions was wrong."""
    folder = write_subject(
        tmp_path / kind, config=CONFIGS[kind], weights=random_weights(CONFIGS[kind])
    )
    loaded = load_model(folder, SETTINGS)
    random = np.random.default_rng(0)
    wrong = FixedDraft(lambda seen, length: random.integers(3, 250, length).tolist())
    request = Request((1, 7, 9, 4, 30, 31), SamplingParams(seed=1), StopCondition(60))
    (plain, _), *_ = generated(loaded, None, [request])
    speculation = Speculation(wrong, 6, control=FixedLengths)
    (found, record), *_ = generated(loaded, speculation, [request])
    assert found == plain
    assert record.draft.wasted > 100


def subject(folder, *, rows=320, **fields):
    """A model of the real path with so many rows in its embedding."""
    config = {**CONFIG, "vocab_size": rows}
    return write_subject(folder, config=config, weights=random_weights(config), **fields)


def requires_plain_output(loaded, draft):
    """Generate hot and seeded, with and without the draft, and compare."""
    hot = [SamplingParams(temperature=5, seed=seed) for seed in range(4)]
    requests = [Request((1, 40, 41), params, StopCondition(40)) for params in hot]
    speculation = Speculation(draft, 4, control=FixedLengths)
    plain = generated(loaded, None, requests)
    for (tokens, record), (wanted, _) in zip(
        generated(loaded, speculation, requests), plain, strict=True
    ):
        assert tokens == wanted
        assert max(tokens) < loaded.tokenizer.vocabulary_size == 261
        assert record.draft.blocks > 0


def test_15_vocabularies_that_differ_by_padding_alone_are_one(tmp_path):
    """vLLM #7252: 151,936 and 152,064 rows for the same tokens were refused."""
    loaded = load_model(subject(tmp_path / "target"), SETTINGS)
    found = load_draft(subject(tmp_path / "draft", rows=384), loaded, SETTINGS)
    assert found.differences == ()
    requires_plain_output(loaded, found.draft)


def sentence_pieces():
    """Another kind of vocabulary, which begins every text with a space."""
    return tokenizers.Tokenizer.from_str(folder_tokenizer("llama")[0].decode())


OTHERS = {
    "other merges": lambda: begin_with_bos(tokenizer(merges=(("i", "n"), ("t", "h"), ("a", "n")))),
    "SentencePiece": sentence_pieces,
}


@pytest.mark.parametrize("kind", OTHERS)
def test_15_other_vocabularies_are_mapped_and_the_output_stays(kind, tmp_path):
    loaded = load_model(subject(tmp_path / "target"), SETTINGS)
    folder = subject(tmp_path / "draft", rows=960, backend=OTHERS[kind]())
    found = load_draft(folder, loaded, SETTINGS)
    assert any("Under another id" in difference.found for difference in found.differences)
    requires_plain_output(loaded, found.draft)


def test_15_vocabularies_with_little_in_common_are_refused_with_their_first_tokens(tmp_path):
    backend = tokenizers.Tokenizer(models.BPE({chr(i): i - 65 for i in range(65, 91)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    loaded = load_model(subject(tmp_path / "target"), SETTINGS)
    with pytest.raises(
        UnsupportedError, match=r"draft cannot draft for target.*<s> \(1\) is <s> \(26\)"
    ):
        load_draft(subject(tmp_path / "draft", backend=backend), loaded, SETTINGS)


def test_16_a_draft_with_a_shorter_context_stops_there_and_generation_goes_on(family, opened):
    """vLLM #57941: crashed."""
    draft = load_draft(family[1], opened, SETTINGS).draft
    assert draft.context == 64
    request = Request((1, 50, 51), SamplingParams(seed=1), StopCondition(120))
    speculation = Speculation(draft, 4, control=FixedLengths)
    (tokens, record), *_ = generated(opened, speculation, [request])
    assert tokens == generated(opened, None, [request])[0][0]
    assert len(tokens) == 120
    assert record.draft.blocks > 0
    assert "context of 64 tokens is full" in record.draft_off


@pytest.mark.parametrize("seed", [2, None])
def test_17_a_grammar_that_begins_inside_a_draft_holds_from_there_on(family, opened, seed):
    """vLLM #36138: the tail of the block behind the boundary was free."""
    begin = opened.tokenizer.encode(">", add_special=False)[0]
    grammar = Grammar(GrammarKind.REGEX, "(xy|z){9,12}", after=begin)
    params = SamplingParams(seed=seed, temperature=4, logit_bias={begin: 14.0})
    draft = load_draft(family[1], opened, SETTINGS).draft
    stop = StopCondition(60, opened.ends)
    requests = [Request((1, 70 + i, 9), params, stop, sample=i, grammar=grammar) for i in range(12)]
    found = generated(opened, Speculation(draft, 8, control=FixedLengths), requests)
    tails = []
    assert sum(record.draft.blocks for _, record in found) > 20
    for tokens, record in found:
        if begin in tokens[1:] and record.finish is FinishReason.STOP:
            tails.append(opened.tokenizer.decode(tokens[tokens.index(begin) + 1 : -1]))
    assert len(tails) >= 3
    assert all(re.fullmatch("(xy|z){9,12}", tail) for tail in tails)
    if seed is not None:
        plain = generated(opened, None, requests)
        assert [tokens for tokens, _ in found] == [tokens for tokens, _ in plain]


def test_19_templates_that_differ_are_said_before_the_run(tmp_path, capsys):
    """SpecForge #296: draft and target had different templates, and acceptance was poor."""
    target = write_subject(tmp_path / "target")
    draft = write_subject(
        tmp_path / "draft", template="{{ messages[0].content }} tools: {{ tools }}"
    )
    options = ["-p", "the", "--max-tokens", "3", "--draft", str(draft)]
    assert app.run(["generate", str(target), *options]) == 0
    lines = capsys.readouterr().err.splitlines()
    said = next(i for i, line in enumerate(lines) if "The chat templates differ" in line)
    assert "they write otherwise" in lines[said]
    assert said < next(i for i, line in enumerate(lines) if line.startswith("prompt: "))
    assert app.run(["pair", str(target), str(draft)]) == 0
    assert "differ chat template" in capsys.readouterr().out


def test_20_greedy_output_is_the_same_for_any_rows_in_a_batch(family, opened):
    """mlx-lm #1423: a step over several rows rounded otherwise, and the output differed."""
    requests = [Request((1, 60 + i, 9), GREEDY, StopCondition(50)) for i in range(4)]
    alone = [generated(opened, None, [request])[0][0] for request in requests]
    for longest in (1, 3, 8):
        draft = load_draft(family[1], opened, SETTINGS).draft
        speculation = Speculation(draft, longest, control=FixedLengths)
        assert [tokens for tokens, _ in generated(opened, speculation, requests)] == alone
