"""What the pair check says of each difference, each planted once."""

import json

import numpy as np
import pytest
import tokenizers
from tiny_subjects import CONFIG, begin_with_bos, tokenizer, write_subject
from tiny_tokenizers import (
    METADATA_OF_FOLDERS,
    byte_level,
    folder_tokenizer,
    sentence_piece,
)
from tokenizers import decoders, models, pre_tokenizers

from fewbit.cli import app
from fewbit.errors import MissingError, UnsupportedError
from fewbit.model.weights import open_model
from fewbit.records.base import from_json, to_json
from fewbit.records.pair import Consequence, PairReport, PairVerdict
from fewbit.speculate.pair import check_pair, require_usable
from fewbit.speculate.pair_member import PairMember, member_of, pair_of
from fewbit.tokens.from_gguf import from_gguf
from fewbit.tokens.from_hugging_face import from_hugging_face
from fewbit.tokens.to_gguf import to_gguf

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT = (
    "{% if tools %}{{ 'call <tool_call>' + '{' }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)


def member(
    *, merges=(("t", "h"), ("th", "e")), specials=SPECIALS, end="<|im_end|>", cut=None, **fields
):
    """A member with a byte-level vocabulary: letters, merges, special tokens last."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    texts = [*alphabet, *("".join(pair) for pair in merges)]
    ids = {text: token for token, text in enumerate(texts)}
    backend = tokenizers.Tokenizer(models.BPE(ids, list(merges)))
    backend.pre_tokenizer = cut or pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(specials))
    config = {"eos_token": end}
    found = from_hugging_face(backend.to_str().encode(), config)
    described = {
        "name": "m",
        "path": "m",
        "tokenizer": found,
        "template": CHAT,
        "context": 512,
        "rows": found.vocabulary_size,
    }
    return PairMember(**(described | fields))


def difference(report, check):
    """The one difference that a check names; every other check agrees."""
    differing = [c for c in report.checks if c.differences]
    assert [c.name for c in differing] == [check]
    assert all(c.agrees for c in report.checks if c not in differing)
    (found,) = differing[0].differences
    return found


def test_a_model_fits_itself():
    report = check_pair(member(), member())
    assert report.verdict is PairVerdict.USABLE
    assert report.differences == ()
    assert all(check.agrees for check in report.checks)
    assert report.shared.count == report.shared.same_ids == 261
    assert all(probe.cut_alike and probe.proposable == 1 for probe in report.probes)
    assert report.reasons == ("Every token of the target has the same id in the draft.",)
    assert from_json(PairReport, to_json(report), name="x") == report


def test_vocabularies_that_differ_by_padding_alone_are_usable():
    report = check_pair(member(rows=320), member(rows=384))
    found = difference(report, "vocabulary padding")
    assert report.verdict is PairVerdict.USABLE
    assert found.consequence is Consequence.NONE
    assert "320 rows for 261 ids" in found.found
    assert "384 for 261" in found.found


def test_an_end_token_that_differs_is_named_with_when_generation_stops():
    report = check_pair(member(), member(end="<|endoftext|>"))
    found = difference(report, "special tokens")
    assert report.verdict is PairVerdict.USABLE
    assert "<|im_end|> (260), the draft's <|endoftext|> (258)" in found.found
    assert "stops where the target draws an end of its own" in found.effect
    assert found.consequence is Consequence.SLOWER


def test_an_end_that_only_one_has_is_named():
    one = member(specials=("<a>", "<b>"), end="<a>")
    report = check_pair(one, member(specials=("<a>", "<b>"), end="<b>"))
    token, ends = (d.found for d in report.differences)
    assert token == "The target's end token is <a> (258), the draft's <b> (259)."
    assert ends == "Only the target stops at <a> (258) and only the draft would stop at <b> (259)."


def test_templates_that_differ_in_braces_are_found_where_they_matter():
    other = CHAT.replace("'{' }}", "'{{' }}")
    report = check_pair(member(), member(template=other))
    found = difference(report, "chat template")
    assert found.found.endswith("they write otherwise: a question with tools.")
    assert any("target" in e and "<tool_call>{" in e for e in found.examples)
    assert any("draft" in e and "<tool_call>{{" in e for e in found.examples)
    assert report.reasons[-1] == "1 difference may cost accepted tokens."


def test_templates_that_write_alike_cost_nothing():
    report = check_pair(member(), member(template=CHAT + "{# a comment #}"))
    found = difference(report, "chat template")
    assert found.consequence is Consequence.NONE
    assert "they write alike" in found.found
    assert len(report.reasons) == 1


@pytest.mark.parametrize("side", ["target", "draft"])
def test_a_missing_template_is_named(side):
    pair = {"target": member(), "draft": member()}
    pair["draft" if side == "target" else "target"] = member(template=None)
    found = difference(check_pair(pair["target"], pair["draft"]), "chat template")
    assert found.found == f"Only the {side} has a chat template."


def test_two_without_a_template_agree():
    assert not check_pair(member(template=None), member(template=None)).differences


def test_a_template_that_fails_is_told_apart_from_one_that_works():
    found = difference(check_pair(member(), member(template="{{ nothing() }}")), "chat template")
    assert "a question, " in found.found


@pytest.mark.parametrize(("draft", "consequence"), [(128, "SLOWER"), (1024, "NONE")])
def test_contexts_are_compared(draft, consequence):
    found = difference(check_pair(member(), member(context=draft)), "context")
    assert found.consequence is Consequence[consequence]
    assert f"{draft:,}" in found.found


def test_other_merges_are_found_by_rank_and_by_the_texts_they_cut():
    one = member(merges=(("t", "h"), ("h", "e")))
    tree = json.loads(one.tokenizer.backend.to_str())
    tree["model"]["merges"].reverse()
    two = from_hugging_face(json.dumps(tree).encode(), {"eos_token": "<|im_end|>"})
    report = check_pair(one, PairMember("d", "d", two, CHAT, 512, two.vocabulary_size))
    cut, probes = report.differences
    assert "2 in both" in cut.found
    assert cut.examples[0] == "merge 0 is 't h' in the target, 'h e' in the draft"
    assert "['th', 'e', ' '] of the target's, ['t', 'he', ' '] by itself" in probes.examples[0]
    assert report.verdict is PairVerdict.USABLE


def test_another_cut_of_words_shows_in_the_probe_texts():
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    merges = ((".", "Ċ"), ("t", "h"))
    report = check_pair(member(merges=merges), member(merges=merges, cut=cut))
    names = [c.name for c in report.checks if c.differences]
    assert names == ["merges and words", "probe texts"]
    assert report.differences[0].examples[1].startswith("draft: no words")
    assert report.differences[1].examples[0].startswith("prose, behind ")
    assert not report.probes[0].cut_alike


def test_moved_tokens_are_mapped_and_named():
    report = check_pair(
        member(merges=(("t", "h"), ("i", "n"))), member(merges=(("i", "n"), ("t", "h")))
    )
    assert report.verdict is PairVerdict.MAPPED
    assert report.verdict.exit_code == 0
    first = report.checks[0].differences[0]
    assert first.found == "Under another id in the draft: 2 of 261 shared tokens."
    assert first.examples == ("'th' (256) is 'th' (257)", "'in' (257) is 'in' (256)")
    assert report.shared.same_ids == report.shared.count - 2


def test_tokens_of_one_side_are_named_with_what_becomes_of_them():
    report = check_pair(member(), member(merges=(("t", "h"), ("Ċ", "Ċ"))))
    texts = [(d.found, d.examples) for d in report.checks[0].differences]
    assert texts == [
        (
            "Unknown to the draft: 1 of the target's 261 tokens.",
            ("'the' (257) is read as 'th' (256), 'e' (68)",),
        ),
        ("Unknown to the target: 1 of the draft's 261 tokens.", (r"'\n\n' (257)",)),
    ]
    assert report.verdict is PairVerdict.MAPPED


def test_a_draft_with_more_tokens_needs_no_mapping():
    report = check_pair(member(), member(specials=(*SPECIALS, "<more>")))
    assert report.verdict is PairVerdict.USABLE
    found = report.checks[0].differences[0]
    assert (found.consequence, found.examples) == (Consequence.NONE, ("<more> (261)",))


def test_vocabularies_with_nothing_in_common_are_not_usable():
    """Nothing but capital letters: it could propose next to no token of a common text."""
    capitals = [chr(letter) for letter in range(65, 91)]
    backend = tokenizers.Tokenizer(models.BPE({t: i for i, t in enumerate(capitals)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    draft = PairMember("d", "d", from_hugging_face(backend.to_str().encode()), None, 512, 26)
    report = check_pair(member(), draft)
    assert report.verdict is PairVerdict.NOT_USABLE
    assert report.verdict.exit_code == 3
    assert "take one with the target's tokenizer" in report.reasons[0]
    with pytest.raises(UnsupportedError, match=r"d cannot draft for m: it can propose \d%"):
        require_usable(pair_of(member(), draft))


def test_an_embedding_without_rows_for_all_tokens_is_named():
    report = check_pair(member(), member(rows=258))
    assert "m has 261 token ids and only 258 rows." in [d.found for d in report.differences]
    assert report.verdict is PairVerdict.MAPPED


def test_a_cut_head_is_named_and_lowers_what_can_be_proposed():
    kept = np.arange(200, dtype=np.int32)
    report = check_pair(member(), member(kept=kept))
    (found,) = report.differences
    assert found.found == "The draft's head was cut to 200 tokens."
    assert found.examples[0].endswith(" (200)")
    assert report.verdict is PairVerdict.USABLE
    assert all(probe.proposable < 1 for probe in report.probes if probe.name == "prose")


def test_byte_level_and_sentence_piece_are_usable_with_mapping():
    one, two = from_gguf(byte_level()), from_gguf(sentence_piece())
    target = PairMember("t", "t", one, None, 512, one.vocabulary_size)
    draft = PairMember("d", "d", two, None, 512, two.vocabulary_size)
    assert check_pair(target, draft).verdict is PairVerdict.MAPPED
    assert check_pair(draft, target).verdict is PairVerdict.MAPPED


def bare(found):
    """A member that is nothing but its tokenizer."""
    return PairMember("m", "m", found, None, 512, found.vocabulary_size)


@pytest.mark.parametrize("kind", METADATA_OF_FOLDERS)
def test_a_folder_and_the_file_that_was_made_of_it_have_one_tokenizer(kind):
    folder = from_hugging_face(*folder_tokenizer(kind))
    file = from_gguf(to_gguf(folder, folder.vocabulary_size + 7))
    for one, other in ((folder, file), (file, folder)):
        report = check_pair(bare(one), bare(other))
        assert report.differences == ()
        assert report.verdict is PairVerdict.USABLE


def test_merges_of_tied_scores_are_compared_between_files_of_one_kind_only():
    text, config = folder_tokenizer("llama")
    tree = json.loads(text)
    tree["model"]["merges"][-1:-3:-1] = tree["model"]["merges"][-2:]
    folder = from_hugging_face(text, config)
    swapped = from_hugging_face(json.dumps(tree).encode(), config)
    file = from_gguf(to_gguf(folder, folder.vocabulary_size))
    assert check_pair(bare(file), bare(swapped)).differences == ()
    (found,) = check_pair(bare(folder), bare(swapped)).differences
    assert found.found.startswith("The merges differ")


def test_what_a_run_says_first_is_what_costs_tokens():
    found = require_usable(pair_of(member(rows=320), member(end="<|endoftext|>", rows=384)))
    assert [d.consequence for d in found] == [Consequence.SLOWER]
    assert "end token" in found[0].found


def test_a_model_without_a_tokenizer_is_no_member(tmp_path):
    folder = write_subject(tmp_path / "m")
    (folder / "tokenizer.json").unlink()
    with open_model(folder) as source, pytest.raises(MissingError, match="no tokenizer"):
        member_of(source)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("pair")
    other = {**CONFIG, "max_position_embeddings": 256}
    return {
        "target": write_subject(root / "target"),
        "draft": write_subject(root / "draft", config=other, backend=begin_with_bos(tokenizer())),
    }


def test_the_command_draws_the_checks_and_ends_with_0(folders, capsys):
    assert app.run(["pair", str(folders["target"]), str(folders["draft"])]) == 0
    out = capsys.readouterr().out
    assert out.startswith("draft drafting for target\n")
    assert "differ context: The target was made for 512 positions, the draft for 256." in " ".join(
        out.split()
    )
    assert "usable" in out


def test_the_command_writes_its_record(folders, tmp_path, capsys):
    assert app.run(["pair", str(folders["target"]), str(folders["draft"]), "--json", "-"]) == 0
    report = from_json(PairReport, capsys.readouterr().out.encode(), name="stdout")
    assert (report.target.name, report.draft.context) == ("target", 256)


def test_the_command_refuses_what_has_no_tokenizer(folders, tmp_path, capsys):
    folder = write_subject(tmp_path / "bare")
    (folder / "tokenizer.json").unlink()
    assert app.run(["pair", str(folders["target"]), str(folder)]) == 2
    assert "no tokenizer.json" in capsys.readouterr().err
