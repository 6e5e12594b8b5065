"""What must agree before two files are compared, each planted once."""

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import tokenizers
from tiny_models import CONFIGS, random_weights, write_gguf
from tiny_subjects import CONFIG, begin_with_bos, tokenizer, write_subject
from tokenizers import pre_tokenizers

from fewbit.errors import IdentityError
from fewbit.evaluate.artefact.scan import scan
from fewbit.evaluate.identity import Subject, check_identity
from fewbit.evaluate.subject import open_subject
from fewbit.model.weights import open_model
from fewbit.quantization import quantize
from fewbit.records.manifest import Change, Manifest, SourceFacts
from fewbit.records.recipe import Recipe, Role, Rule

EMBEDDING = "model.embed_tokens.weight"


def identity(source, candidate):
    return check_identity(open_subject(source), open_subject(candidate))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_subject(tmp_path_factory.mktemp("source") / "model")


def test_a_model_is_itself(source):
    found = identity(source, source)
    assert [c.name for c in found.checks] == [
        "architecture",
        "vocabulary",
        "special tokens",
        "beginning of a text",
        "tokenization",
        "chat template",
        "generation settings",
    ]
    assert found.equal_tensors == len(random_weights(CONFIG))
    assert (found.rounded_tensors, found.declared) == (0, ())
    assert found.checks[3].found == "<s> (1)"


def changed(name, change):
    weights = random_weights(CONFIG)
    weights[name] = change(weights[name])
    return weights


REFUSED = {
    "another width": (
        {"config": {**CONFIG, "intermediate_size": 64}},
        "The source's intermediate is 96 and the candidate's 64",
    ),
    "another rope": (
        {"config": {**CONFIG, "rope_theta": 123.0}},
        "The models compute .* differently \\(frequencies",
    ),
    "another context": (
        {"config": {**CONFIG, "max_position_embeddings": 256}},
        "The source's context is 512 and the candidate's 256",
    ),
    "another vocabulary": (
        {"backend": begin_with_bos(tokenizer(merges=(("t", "h"), ("th", "a"))))},
        "Token 260 is 'the' in the source and 'tha' in the candidate",
    ),
    "no beginning": (
        {"backend": tokenizer()},
        r"puts \[1\] before a text and the candidate's \[\]",
    ),
    "another end": (
        {"tokenizer_config": {"eos_token": "<pad>"}},
        "end-of-text token is 2 in the source and 0 in the candidate",
    ),
    "an old tokenizer": (
        {"backend": "reordered"},
        "the probe text is cut differently at token 97, behind",
    ),
    "another template": (
        {"template": "other"},
        r"different chat templates \(\d+ characters and 5 characters\)",
    ),
    "no template": ({"template": None}, r"different chat templates \(\d+ characters and none\)"),
    "a changed norm": (
        {"weights": changed("model.norm.weight", lambda w: w * np.float32(1.001))},
        "final_norm.weight is not quantized in the candidate, but 64 of its values differ",
    ),
    "one changed bit": (
        {
            "weights": changed(
                "model.layers.1.mlp.up_proj.weight",
                lambda w: (w.view(np.uint32) ^ np.eye(*w.shape, dtype=np.uint32)).view(np.float32),
            )
        },
        "layers.1.up.weight is not quantized in the candidate, but 64 of",
    ),
}


def cut_otherwise():
    """The same vocabulary and merges, but words are cut at every h."""
    backend = begin_with_bos(tokenizer())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("h", "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return backend


@pytest.mark.parametrize("name", REFUSED)
def test_each_difference_is_refused(name, source, tmp_path):
    changes, message = REFUSED[name]
    if changes.get("backend") == "reordered":
        changes = {"backend": cut_otherwise()}
    with pytest.raises(IdentityError, match=message) as caught:
        identity(source, write_subject(tmp_path / "candidate", **changes))
    assert caught.value.exit_code == 2


def test_merges_that_no_probe_text_shows_are_compared(tmp_path):
    """'qqz' is cut as qq z by one order and as q qz by the other."""
    backend = tokenizer(merges=(("q", "q"), ("q", "z")))
    tree = json.loads(backend.to_str())
    tree["model"]["merges"].reverse()
    other = tokenizers.Tokenizer.from_str(json.dumps(tree))
    assert backend.encode("qqz").ids != other.encode("qqz").ids
    one = write_subject(tmp_path / "one", backend=backend)
    two = write_subject(tmp_path / "two", backend=other)
    with pytest.raises(IdentityError, match="merge 0 is 'q q' in the source, 'q z' in the cand"):
        identity(one, two)


def test_an_untied_head_must_hold_the_same_table(source, tmp_path):
    """Some converters store a tied table twice, which changes nothing; another table does."""
    config = {**CONFIG, "tie_word_embeddings": False}
    weights = {**random_weights(CONFIG), "lm_head.weight": random_weights(CONFIG)[EMBEDDING]}
    twice = write_subject(tmp_path / "twice", config=config, weights=weights)
    assert identity(source, twice).equal_tensors == len(weights)
    assert identity(twice, source).equal_tensors == len(weights)
    assert len(scan(open_subject(source), open_subject(twice)).details.tensors) == 16
    other = write_subject(tmp_path / "other", config=config)
    for pair in ((source, other), (other, source)):
        with pytest.raises(IdentityError, match=r"head\.weight is not quantized"):
            identity(*pair)


def to_f16(weights):
    return {name: w.astype(np.float16) for name, w in weights.items()}


def test_rounding_to_a_narrower_float_is_recognised(source, tmp_path):
    candidate = write_subject(tmp_path / "c", weights=to_f16(random_weights(CONFIG)))
    found = identity(source, candidate)
    assert found.rounded_tensors == len(random_weights(CONFIG))
    assert found.equal_tensors == 0


def test_rounding_that_is_not_to_nearest_is_refused(source, tmp_path):
    weights = to_f16(random_weights(CONFIG))
    name = "model.norm.weight"
    weights[name] = np.nextafter(weights[name], np.float16(10))
    with pytest.raises(IdentityError, match=r"final_norm\.weight"):
        identity(source, write_subject(tmp_path / "c", weights=weights))


def test_gguf_stands_against_hugging_face(tmp_path):
    """Slots are compared: names, permuted rows and Gemma's norm offset do not matter."""
    for family in ("llama3", "gemma3"):
        config = CONFIGS[family]
        weights = random_weights(config)
        folder = write_subject(tmp_path / family, config=config, weights=weights)
        path = write_gguf(tmp_path / f"{family}.gguf", config, weights)
        one = open_subject(folder)
        other = Subject(open_model(path), one.tokenizer, one.chat_template)
        found = check_identity(one, other)
        assert found.equal_tensors == len(weights)
        assert check_identity(other, one).equal_tensors == len(weights)


def test_a_declared_change_is_named(source, tmp_path):
    weights = changed("model.norm.weight", lambda w: w * np.float32(2))
    candidate = open_subject(write_subject(tmp_path / "c", weights=weights))
    declared = msgspec.structs.replace(
        _manifest(), transforms=(Change(name="rescale", detail="", tensors=("model.norm.weight",)),)
    )
    subject = replace(candidate, manifest=declared)
    found = check_identity(open_subject(source), subject)
    assert [(d.slot, d.change) for d in found.declared] == [("final_norm.weight", "rescale")]
    with pytest.raises(IdentityError):
        check_identity(open_subject(source), replace(candidate, manifest=_manifest()))


def test_a_rotation_inside_the_mlp_is_no_difference_where_it_is_declared(source, tmp_path):
    rules = (Rule(role=Role.LINEAR, format="int8-row"),)
    recipe = Recipe(name="r", method="rtn", rules=rules, transforms=("rotate-mlp",))
    with open_model(source) as model:
        quantize(model, recipe, tmp_path / "rotated")
    for pair in ((source, tmp_path / "rotated"), (tmp_path / "rotated",) * 2):
        assert identity(*pair).checks[0].name == "architecture"
    assert "rotate-mlp" in identity(source, tmp_path / "rotated").checks[0].found
    undeclared = replace(open_subject(tmp_path / "rotated"), manifest=_manifest())
    with pytest.raises(IdentityError, match="mlp_rotation is 0 and the candidate's 32"):
        check_identity(open_subject(source), undeclared)


def _manifest():
    return Manifest(
        fewbit_version="0",
        source=SourceFacts(path="", sha256="", formats={}, quantized=False),
        container="fewbit",
        recipe=Recipe(name="r", method="rtn", rules=()),
        tensors=(),
        promised_bytes=0,
        tensor_bytes=0,
        bits_per_weight=0.0,
        source_bits_per_weight=0.0,
    )
