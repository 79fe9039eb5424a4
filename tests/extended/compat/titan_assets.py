"""Assets that torchtitan's debug configs read below the current directory: a tokenizer, and the data set c4_test.

Both are generated, not downloaded.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def make(folder: Path, documents: int = 2000) -> None:
    """Write the assets to `folder`.

    ``tests/assets/tokenizer`` is a tokenizer of single bytes; ``tests/assets/c4_test`` has documents that count in
    words.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer_dir, data_dir = folder / "tests/assets/tokenizer", folder / "tests/assets/c4_test"
    for path in (tokenizer_dir, data_dir):
        path.mkdir(parents=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<bos>", "<eos>"])
    tokenizer.save(str(tokenizer_dir / "tokenizer.json"))
    (tokenizer_dir / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<bos>", "eos_token": "<eos>"}))
    draw = random.Random(0)
    with (data_dir / "data.json").open("w") as f:
        for _ in range(documents):
            first = draw.randrange(1000)
            numbers = (" ".join(WORDS[int(d)] for d in str(n)) for n in range(first, first + draw.randrange(5, 15)))
            f.write(json.dumps({"text": ", ".join(numbers) + "."}) + "\n")


if __name__ == "__main__":
    make(Path())
