"""A tokenizer and a chat template for the tiny models: a token a byte, and one that ends a turn."""

import json

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

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
