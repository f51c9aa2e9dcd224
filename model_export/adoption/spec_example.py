"""The example of a spec file that `model-export adopt --help` prints; a test parses it."""

from __future__ import annotations

SPEC_EXAMPLE = """\
[tables.film]
variable = "embedding/film"    # a key of variables/variables.index, or the end of one; `adopt DIR` alone lists them
combiner = "mean"              # of its features; sum, mean or sqrtn

[features.film_id]             # one id per row
table = "film"

[features.genres]              # inputs genres__values and genres__row_splits, weights if wanted
table = "film"
is_ragged = true
max_ids_per_row = 8            # of the padded lookup
on_bad_id = "drop"             # error, drop, drop_negative, default_row (with default_id), clamp
vocabulary = { file = "genres.txt", first_id = 1, oov_id = 0 }   # one string per line, beside this file

[signatures.serving_default]   # a signature that is a lookup already: feature -> its output
outputs = { film_id = "output_0" }
inputs = { film_id = { ids = "film" } }   # where they are not <feature>, <feature>__values, <feature>__row_splits

[lookup]                       # signatures to add; left out: "lookup" on cpu, where no signature fits
device = ["cpu", "tpu_tensor_core"]
batch_sizes = [1, 8, 64]
"""
