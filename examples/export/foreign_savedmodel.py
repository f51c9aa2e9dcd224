"""Adopts another program's SavedModel: `adopt` copies it and adds a manifest, so that a server maps its tables.

  python examples/export/foreign_savedmodel.py --out models/foreign

The same from a shell; without --spec, `adopt` searches the graph for lookups itself:

  model-export adopt DIR --spec spec.toml --out models/foreign

The spec adds a lookup that the graph lacks: means of ragged ids.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from model_export import adopt
from model_export.tensorflow_setup import tf

SPEC = """\
[tables.film]
variable = "embeddings/film"
combiner = "mean"

[features.film_id]
table = "film"

[features.seen]
table = "film"
is_ragged = true
"""


class ForeignModel(tf.Module):
    """A model that another team trained: it computes scores from films, and has no lookup signature."""

    def __init__(self):
        super().__init__()
        self.embeddings = {"film": tf.Variable(tf.random.stateless_normal([1000, 32], seed=[1, 2]), name="film")}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "film_id")])
    def score(self, film_id):
        return {"score": tf.reduce_sum(tf.gather(self.embeddings["film"], film_id), axis=1)}


def main() -> None:
    """Saves the other team's model, then adopts it with a spec file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("models/foreign"), metavar="DIR")
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as folder:
        model = ForeignModel()
        tf.saved_model.save(model, f"{folder}/foreign", signatures={"serving_default": model.score})
        spec = Path(folder) / "spec.toml"
        spec.write_text(SPEC)
        print(f"adopted and verified: {adopt(f'{folder}/foreign', spec, out)}")


if __name__ == "__main__":
    main()
