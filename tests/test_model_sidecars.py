import json

import pytest

from fewbit.checkpoint.checkpoint import GgufFacts, HuggingFaceFacts
from fewbit.checkpoint.huggingface import read_facts
from fewbit.model.sidecars import sidecars
from fewbit.tokens.from_gguf import from_gguf
from fewbit.tokens.from_hugging_face import from_hugging_face
from fewbit.tokens.identity import fingerprint
from fewbit.tokens.pieces import byte_of_character

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def byte_level(**changes) -> dict:
    letters = list(byte_of_character())
    words = ["he", "ll", "hell", "hello"]
    special = ["<|start|>", "<|im_end|>"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": letters + words + special,
        "tokenizer.ggml.token_type": [NORMAL] * (len(letters) + len(words)) + [CONTROL] * 2,
        "tokenizer.ggml.merges": ["h e", "l l", "he ll", "hell o"],
        "tokenizer.ggml.bos_token_id": len(letters) + 4,
        "tokenizer.ggml.eos_token_id": len(letters) + 5,
        "tokenizer.chat_template": "{{ bos_token }}{{ messages }}",
    }
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


def sentence_piece(**changes) -> dict:
    special = ["<unk>", "<s>", "</s>"]
    octets = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = ["▁", "h", "i", "hi", "▁hi"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": special + octets + pieces,
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * 5,
        "tokenizer.ggml.scores": [0.0] * 259 + [-3.0, -4.0, -5.0, -1.0, -2.0],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


@pytest.mark.parametrize(
    "metadata",
    [
        byte_level(),
        byte_level(pre="qwen2"),
        byte_level(pre="smollm", add_bos_token=False),
        byte_level(add_eos_token=True),
        sentence_piece(),
        sentence_piece(add_space_prefix=False, add_bos_token=False),
    ],
    ids=["llama3", "qwen2", "smollm", "eos", "sentence-piece", "sentence-piece-bare"],
)
def test_a_tokenizer_of_a_gguf_file_comes_back_the_same(metadata):
    files = sidecars(GgufFacts(metadata))
    source = from_gguf(metadata)
    written = from_hugging_face(
        files["tokenizer.json"],
        json.loads(files["tokenizer_config.json"]),
        json.loads(files["generation_config.json"]),
    )
    assert fingerprint(source) == fingerprint(written)
    assert written.behaviour.prefix == source.behaviour.prefix
    assert written.behaviour.suffix == source.behaviour.suffix
    # Nothing had to be reconciled: transformers, which reads tokenizer.json alone, agrees too.
    assert not [text for text in written.behaviour.hazards if "add_" in text]


def test_the_chat_template_goes_where_transformers_looks():
    config = json.loads(sidecars(GgufFacts(byte_level()))["tokenizer_config.json"])
    assert config["chat_template"] == "{{ bos_token }}{{ messages }}"
    assert config["bos_token"] == "<|start|>"


def test_a_tokenizer_that_lost_a_token_is_told_apart():
    metadata = byte_level()
    files = sidecars(GgufFacts(metadata))
    tree = json.loads(files["tokenizer.json"])
    tree["model"]["merges"].pop()
    damaged = from_hugging_face(
        json.dumps(tree).encode(),
        json.loads(files["tokenizer_config.json"]),
        json.loads(files["generation_config.json"]),
    )
    assert fingerprint(from_gguf(metadata)) != fingerprint(damaged)


def test_files_of_a_folder_keep_their_content():
    facts = HuggingFaceFacts(
        config={},
        generation_config={"eos_token_id": [1, 2]},
        tokenizer_json=b'{"model": 1}',
        tokenizer_config={"bos_token": "é"},
        chat_template="{{ x }}",
    )
    files = sidecars(facts)
    assert files["tokenizer.json"] == b'{"model": 1}'
    assert json.loads(files["tokenizer_config.json"]) == {"bos_token": "é"}
    assert json.loads(files["generation_config.json"]) == {"eos_token_id": [1, 2]}
    assert files["chat_template.jinja"] == b"{{ x }}"


def test_a_source_without_a_tokenizer_gives_no_files():
    assert sidecars(GgufFacts({"general.architecture": "llama"})) == {}
    assert sidecars(HuggingFaceFacts({}, None, None, None, None)) == {}


@pytest.mark.parametrize(
    ("configured", "written"),
    [
        (None, True),
        ("{{ old }}", True),
        ("{{ new }}", False),
        ([{"name": "default", "template": "{{ new }}"}], False),
        ([{"name": "tool_use", "template": "{{ new }}"}], True),
    ],
)
def test_the_template_that_counts_is_the_one_that_comes_back(tmp_path, configured, written):
    """A folder may have a file of its own beside an older one in the tokenizer's configuration."""
    (tmp_path / "config.json").write_text("{}")
    stated = {} if configured is None else {"chat_template": configured}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(stated))
    (tmp_path / "chat_template.jinja").write_text("{{ new }}")
    files = sidecars(read_facts(tmp_path))
    assert ("chat_template.jinja" in files) == written
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "config.json").write_text("{}")
    for name, content in files.items():
        (copy / name).write_bytes(content)
    assert read_facts(copy).chat_template == "{{ new }}"
