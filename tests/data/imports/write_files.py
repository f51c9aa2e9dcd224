"""Writes the files in this folder with gensim 4.4, fastText 0.9.2 and PyTorch 2.15, which the tests do not install.

python -m pip install gensim fasttext-wheel torch, then python tests/data/imports/write_files.py in the repository.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import fasttext
import numpy as np
import torch
from gensim.models import KeyedVectors

HERE = Path(__file__).parent
WORDS = ["the", "naïve", "中文", "new\u0085line", "\u2028", "x"]
ROWS = (np.arange(24, dtype=np.float32).reshape(6, 4) / 3 - 4).astype(np.float32)


def main() -> None:
    """Writes all files."""
    vectors = KeyedVectors(4)
    vectors.add_vectors(WORDS, ROWS)
    for name, is_binary in (("gensim.vec", False), ("gensim.vec.gz", False), ("gensim.bin", True)):
        vectors.save_word2vec_format(str(HERE / name), binary=is_binary)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
        text.write("a b c a b c a b\n" * 20)
        text.flush()
        model = fasttext.train_unsupervised(text.name, dim=4, minCount=1, bucket=4, epoch=1, thread=1)
    model.save_model(str(HERE / "fasttext.bin"))
    rows = torch.from_numpy(ROWS)
    module = torch.nn.Embedding(6, 4)
    module.weight.data = rows.clone()
    torch.save({"model": torch.nn.ModuleDict({"user": module}).state_dict(), "step": 3}, HERE / "state_dict.pt")
    torch.save(rows, HERE / "tensor.pt")
    several = {"half": rows.half(), "bfloat16": rows.bfloat16(), "double": rows.double(), "turned": rows.T}
    several |= {"part": rows[2:5], "every_other": rows[:, ::2], "integers": rows.int(), "vector": rows[0]}
    torch.save(several, HERE / "several.pt")
    torch.save(module, HERE / "module.pt")
    torch.save(rows, HERE / "before_1_6.pt", _use_new_zipfile_serialization=False)


if __name__ == "__main__":
    main()
