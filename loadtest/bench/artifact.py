"""Exports the benchmark's model: with a manifest by model_export, and as plain SavedModels for TensorFlow alone.

python -m loadtest.bench.artifact FOLDER full|small|tiny MODEL...
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from loadtest.bench.workloads import FULL, LOOKUP, PREDICT, SMALL, TINY, Data, key_of

ROOT = Path(__file__).parents[2]
# The folder names of the benchmark's models, and the signatures of each. A model that TensorFlow runs alone has one
# signature: with both in one model, TensorFlow's optimizer copies whole tables for one of them. model_keys is `model`
# with a vocabulary of strings for each feature.
MODELS = {"model": (PREDICT, LOOKUP), "model_keys": (LOOKUP,), "graph_lookup": (LOOKUP,), "graph_predict": (PREDICT,)}

_SPEC = """
[tables.user]
variable = "tables/user"
[tables.item]
variable = "tables/item"
[tables.tag]
variable = "tables/tag"
combiner = "mean"
[features.user]
table = "user"
[features.item]
table = "item"
[features.tags]
table = "tag"
is_ragged = true
"""


def prepared(folder: Path, sizes: str, models: Iterable[str] = ("model",)) -> Path:
    """Returns the folder of the models; a child process exports the named models that do not exist yet."""
    missing = [name for name in models if not (folder / name / "1").exists()]
    if missing:
        command = [sys.executable, "-m", "loadtest.bench.artifact", str(folder), sizes, *missing]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the export failed:\n{done.stdout}{done.stderr}")
    return folder


def main() -> None:
    """Exports the named models into the folder, all in this process, which imports TensorFlow once."""
    from model_export import adopt

    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    data = Data({"full": FULL, "small": SMALL, "tiny": TINY}[sys.argv[2]])
    for name in sys.argv[3:]:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            saved = Path(scratch) / "saved"
            _save(data, saved, MODELS[name])
            if name.startswith("model"):
                spec = Path(scratch) / "spec.toml"
                spec.write_text(_with_vocabularies(data, Path(scratch)) if name == "model_keys" else _SPEC)
                # The lookup of tags ends in a padding to the rows of `user`, which adopt does not read as a lookup.
                adopt(saved, spec, folder / name, allow_unproven=True)
            else:
                (folder / name).mkdir(exist_ok=True)
                saved.rename(folder / name / "1")


def _with_vocabularies(data: Data, folder: Path) -> str:
    lines = []
    for line in _SPEC.splitlines():
        lines.append(line)
        if line.startswith("table = "):
            table = line.split('"')[1]
            keys = folder / f"{table}.txt"
            keys.write_text("".join(f"{key_of(row)}\n" for row in range(len(data.tables[table]))))
            lines.append(f'vocabulary = {{ file = "{keys.name}" }}')
    return "\n".join(lines) + "\n"


def _save(data: Data, target: Path, names: tuple[str, ...]) -> None:
    import tensorflow as tf

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = {name: tf.Variable(table, name=name) for name, table in data.tables.items()}
            self.tower = {name: tf.Variable(weights, name=name) for name, weights in data.tower.items()}

        def _looked_up(self, user: Any, item: Any, values: Any, row_splits: Any) -> dict[str, Any]:
            ragged = tf.RaggedTensor.from_row_splits(values, row_splits, validate=False)
            tags = tf.math.segment_mean(tf.gather(self.tables["tag"], ragged.values), ragged.value_rowids())
            return {
                "user": tf.gather(self.tables["user"], user),
                "item": tf.gather(self.tables["item"], item),
                # Add zeros for the rows without tags at the end of the batch, for which segment_mean returns nothing.
                "tags": tf.pad(tags, [[0, tf.shape(user)[0] - tf.shape(tags)[0]], [0, 0]]),
            }

        def lookup(self, user: Any, item: Any, tags__values: Any, tags__row_splits: Any) -> dict[str, Any]:
            return self._looked_up(user, item, tags__values, tags__row_splits)

        def serving_default(self, user: Any, item: Any, tags__values: Any, tags__row_splits: Any) -> dict[str, Any]:
            found = self._looked_up(user, item, tags__values, tags__row_splits)
            joined = tf.concat([found["user"], found["item"], found["tags"]], 1)
            hidden = tf.nn.relu(tf.matmul(joined, self.tower["kernel_1"]) + self.tower["bias_1"])
            return {"score": tf.matmul(hidden, self.tower["kernel_2"]) + self.tower["bias_2"]}

    model = Model()
    inputs = ("user", "item", "tags__values", "tags__row_splits")
    specs = [tf.TensorSpec([None], tf.int64, name) for name in inputs]
    signatures = {name: tf.function(getattr(model, name), input_signature=specs) for name in names}
    tf.saved_model.save(model, str(target), signatures=signatures)


if __name__ == "__main__":
    main()
