"""Tiny tokenizers for tests: GGUF metadata and tokenizer.json, trained on a few lines here."""

import functools
import json

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from fewbit.tokens.pieces import byte_of_character

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

LINES = [
    "Hello, world! Don't they'll I'M WE'VE  two  spaces\tand tabs\t\t\n\n\nnew lines\r\n\r\n",
    "def function(self, value):\n    return value ** 2  # comment 12345 67 890\n        x += 1\n",
    "naïve café über 日本語テキスト 中文字符，标点。 한국어 हिन्दी ไทย 😀👩\u200d👧 e\u0301\n",
    "1234567890 12 345 6789 3.14159 1,000,000 ½ ² Ⅷ a1b2c3 x123y\n",
    "!!! ??? ... --> <-- == != ++ $100 +5 =6 a=b <tag> [x] {y} ^~|`` 'quoted' \"double\"\n",
]

PROBES = [
    *LINES,
    "",
    " ",
    "   ",
    "\n",
    "\t \n x",
    "a",
    " a",
    "  leading and trailing  ",
    "emoji 😀😃👍🏽 flags 🇩🇪🇫🇷 zero\u200bwidth",
    "combining e\u0301 o\u0308 n\u0303 \u1112\u1161\u11ab",
    "control \x00\x01\x7f end\ufffd",
    "<|first|>user\n<|last|> <|firstx|> <s>not</s> <tool>x</tool>",
    "<0x41> <unk> ▁under▁▁score",
    "mixedCASE camelCase SCREAMING_SNAKE it's It'S DON'T they'RE",
    "🙂" * 5 + "日本" * 5 + "1" * 11 + "\n" * 7 + " " * 9 + "x",
]

SPECIAL = ("<|first|>", "<|last|>")


@functools.cache
def trained_merges(vocabulary: int = 700) -> tuple[tuple[str, str], ...]:
    """Byte-level merges that cross word boundaries, so that a wrong cut of words shows."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(LINES * 3, trainer)
    merges = json.loads(backend.to_str())["model"]["merges"]
    return tuple((left, right) for left, right in merges)


def byte_level(pre: str = "smollm", **changes) -> dict:
    """GGUF metadata of a byte-level BPE: bytes, trained merges, special tokens, `<tool>`."""
    merges = trained_merges()
    tokens = list(byte_of_character())
    tokens += dict.fromkeys(left + right for left, right in merges)
    types = [NORMAL] * len(tokens) + [CONTROL, CONTROL, USER_DEFINED]
    tokens += [*SPECIAL, "<tool>"]
    metadata = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": types,
        "merges": [f"{left} {right}" for left, right in merges],
        "bos_token_id": len(tokens) - 3,
        "eos_token_id": len(tokens) - 2,
        "add_bos_token": True,
    }
    return _prefixed(metadata | changes)


def sentence_piece(**changes) -> dict:
    """GGUF metadata of a SentencePiece BPE with byte fallback and scores by rank."""
    special = ["<unk>", "<s>", "</s>"]
    octets = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = spaced_pieces()
    metadata = {
        "model": "llama",
        "tokens": [*special, *octets, *pieces, "<tool>", "\n\n"],
        "token_type": [UNKNOWN, CONTROL, CONTROL]
        + [BYTE] * 256
        + [NORMAL] * len(pieces)
        + [USER_DEFINED] * 2,
        "scores": [0.0] * 259 + [-float(rank) for rank in range(len(pieces))] + [-1000.0] * 2,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return _prefixed(metadata | changes)


@functools.cache
def spaced_pieces() -> tuple[str, ...]:
    """Pieces of a BPE trained on text with spaces as U+2581, merged ones first."""
    backend = tokenizers.Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=500, show_progress=False)
    backend.train_from_iterator([line.replace(" ", "▁") for line in LINES * 3], trainer)
    model = json.loads(backend.to_str())["model"]
    merged = list(dict.fromkeys(left + right for left, right in model["merges"]))
    letters = [text for text in model["vocab"] if len(text) == 1]
    return tuple(text for text in merged + sorted(letters) if text != "\n\n")


def hugging_face(**parts) -> tuple[bytes, dict]:
    """tokenizer.json and tokenizer_config.json of a byte-level BPE that adds BOS."""
    merges = list(trained_merges())
    letters = list(byte_of_character())
    texts = letters + list(dict.fromkeys(left + right for left, right in merges))
    backend = tokenizers.Tokenizer(models.BPE({t: i for i, t in enumerate(texts)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL))
    backend.add_tokens(["<tool>"])
    start = backend.token_to_id("<|first|>")
    backend.post_processor = processors.TemplateProcessing(
        single="<|first|> $A", special_tokens=[("<|first|>", start)]
    )
    tree = json.loads(backend.to_str()) | parts
    config = {
        "bos_token": "<|first|>",
        "eos_token": {"__type": "AddedToken", "content": "<|last|>"},
    }
    return json.dumps(tree).encode(), config


def _prefixed(metadata: dict) -> dict:
    return {
        f"tokenizer.ggml.{name}": value for name, value in metadata.items() if value is not None
    }


METADATA_OF_FOLDERS = ("smollm", "llama-bpe", "qwen2", "llama", "llama-bare")
"""Kinds of tokenizers that a folder can have and llama.cpp knows."""


def folder_tokenizer(kind: str) -> tuple[bytes, dict]:
    """tokenizer.json and tokenizer_config.json as published for such models."""
    tree = json.loads(_folder_backend(kind).to_str())
    names = ("<s>", "</s>") if kind.startswith("llama") and kind != "llama-bpe" else SPECIAL
    config = {"bos_token": names[0], "eos_token": names[1], "add_bos_token": True}
    start = next(t["id"] for t in tree["added_tokens"] if t["content"] == names[0])
    tree["post_processor"] = json.loads(
        json.dumps(
            {
                "type": "TemplateProcessing",
                "single": [
                    {"SpecialToken": {"id": names[0], "type_id": 0}},
                    {"Sequence": {"id": "A", "type_id": 0}},
                ],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
                "special_tokens": {
                    names[0]: {"id": names[0], "ids": [start], "tokens": [names[0]]}
                },
            }
        )
    )
    if kind.startswith("llama") and kind != "llama-bpe":
        config["unk_token"] = "<unk>"
    return json.dumps(tree).encode(), config


def _folder_backend(kind: str) -> tokenizers.Tokenizer:
    if kind in ("llama", "llama-bare"):
        return _sentence_piece_backend(spaced=kind == "llama")
    letters, merges = list(byte_of_character()), list(trained_merges())
    texts = letters + list(dict.fromkeys(left + right for left, right in merges))
    model = models.BPE(
        {text: i for i, text in enumerate(texts)}, merges, ignore_merges=kind == "llama-bpe"
    )
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = _published_cut(kind)
    if kind == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL))
    backend.add_tokens(["<tool>"])
    return backend


def _published_cut(kind: str) -> pre_tokenizers.PreTokenizer:
    if kind == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    numbers = r"\p{N}" if kind == "qwen2" else r"\p{N}{1,3}"
    expression = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + numbers
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    split = pre_tokenizers.Split(tokenizers.Regex(expression), behavior="isolated")
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, alphabet])


def _sentence_piece_backend(*, spaced: bool) -> tokenizers.Tokenizer:
    """As transformers converts a SentencePiece model: every split of a piece is a merge."""
    pieces = spaced_pieces()
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    known, merges = set(pieces), []
    for piece in pieces:
        cuts = range(len(piece) - 1, 0, -1)
        merges += [(piece[:c], piece[c:]) for c in cuts if {piece[:c], piece[c:]} <= known]
    ids = {text: token for token, text in enumerate(texts)}
    backend = tokenizers.Tokenizer(
        models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    marks = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.normalizer = (
        normalizers.Sequence([normalizers.Prepend("▁"), marks]) if spaced else marks
    )
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if spaced else steps)
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend
