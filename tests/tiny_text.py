"""A tokenizer and a chat template for the tiny models: a token a byte, and one that ends a turn."""

import json

import tokenizers
from tiny_models import CONFIGS, random_weights, write_huggingface
from tokenizers import decoders, models, pre_tokenizers

from fewbit.tokens.from_hugging_face import from_hugging_face

END = 256
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write_text_files(folder, *, template=True):
    """Put tokenizer.json and tokenizer_config.json beside a tiny model of 320 rows."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|im_end|>"])
    backend.add_tokens([f"<word{i}>" for i in range(257, 320)])
    backend.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "tokenizer_class": "GPT2Tokenizer"}
    if template:
        config["chat_template"] = TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_text_model(folder, name="llama", **options):
    """Write a tiny model of a configuration with its text files; return the folder."""
    config = CONFIGS[name]
    return write_text_files(write_huggingface(folder, config, random_weights(config)), **options)


def text_tokenizer(folder):
    """Write the text files into a folder and return the tokenizer that they make."""
    write_text_files(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    return from_hugging_face((folder / "tokenizer.json").read_bytes(), config)
