"""Writes the benchmark's models: its own, and one with 10 GB of tables.

python -m loadtest.bench.models FOLDER full|small|tiny MODEL...

The benchmark's own is exported with a manifest by model_export, and as plain SavedModels for TensorFlow alone. The
large one has sparse files: only rows that requests read hold numbers, and the rest is copied from an exported one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.bench.workloads import FULL, LOOKUP, PREDICT, SMALL, TINY, Arrays, Data, key_of
from loadtest.foreign.frameworks import save_module
from loadtest.live_server import ROOT
from tests.toy_model import INDEX, MANIFEST, SHARD, bundle_index

SIZES = {"full": FULL, "small": SMALL, "tiny": TINY}
# The folder names of the benchmark's models, and the signatures of each. A model that TensorFlow runs alone has one
# signature: with both in one model, TensorFlow's optimizer copies whole tables for one of them. model_keys is `model`
# with a vocabulary of strings for each feature.
MODELS = {"model": (PREDICT, LOOKUP), "model_keys": (LOOKUP,), "graph_lookup": (LOOKUP,), "graph_predict": (PREDICT,)}

_SPEC = """
[tables.user]
variable = "kept/0/user"
[tables.item]
variable = "kept/0/item"
[tables.tag]
variable = "kept/0/tag"
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
        command = [sys.executable, "-m", "loadtest.bench.models", str(folder), sizes, *missing]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the export failed:\n{done.stdout}{done.stderr}")
    return folder


def main() -> None:
    from model_export import adopt

    folder, data = Path(sys.argv[1]), Data(SIZES[sys.argv[2]])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[3:]:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            saved = Path(scratch) / "1"
            _save(data, saved, MODELS[name])
            if name.startswith("model"):
                spec = Path(scratch) / "spec.toml"
                spec.write_text(_with_vocabularies(data, Path(scratch)) if name == "model_keys" else _SPEC)
                # The lookup of tags ends in a padding to the rows of `user`, which adopt does not read as a lookup.
                # Tiny tables show that the benchmark works, and no speed.
                adopt(saved, spec, folder / name, allow_unproven=True, measure=sys.argv[2] != "tiny")
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

    tables = {name: tf.Variable(table, name=name) for name, table in data.tables.items()}
    tower = {name: tf.Variable(weights, name=name) for name, weights in data.tower.items()}

    def lookup(user: Any, item: Any, tags__values: Any, tags__row_splits: Any) -> dict[str, Any]:
        ragged = tf.RaggedTensor.from_row_splits(tags__values, tags__row_splits, validate=False)
        tags = tf.math.segment_mean(tf.gather(tables["tag"], ragged.values), ragged.value_rowids())
        return {
            "user": tf.gather(tables["user"], user),
            "item": tf.gather(tables["item"], item),
            # Add zeros for the rows without tags at the end of the batch, for which segment_mean returns nothing.
            "tags": tf.pad(tags, [[0, tf.shape(user)[0] - tf.shape(tags)[0]], [0, 0]]),
        }

    def predict(user: Any, item: Any, tags__values: Any, tags__row_splits: Any) -> dict[str, Any]:
        found = lookup(user, item, tags__values, tags__row_splits)
        joined = tf.concat([found["user"], found["item"], found["tags"]], 1)
        hidden = tf.nn.relu(tf.matmul(joined, tower["kernel_1"]) + tower["bias_1"])
        return {"score": tf.matmul(hidden, tower["kernel_2"]) + tower["bias_2"]}

    calls = {LOOKUP: lookup, PREDICT: predict}
    save_module(target, {name: calls[name] for name in names}, [tables, tower])


TABLES = {"user": (30_000_000, 64), "item": (9_000_000, 64), "tag": (50_000, 32)}


def write_large_model(small: Path, target: Path, tables: Mapping[str, tuple[int, int]] = TABLES) -> None:
    """Writes a version folder whose tables are larger than those of an exported version.

    Args:
      small: an exported version folder with tables of the same names.
    """
    shutil.copytree(small, target, ignore=shutil.ignore_patterns("variables.*"))
    manifest = json.loads((small / MANIFEST).read_text())
    offset, tensors = 0, {}
    with (target / SHARD).open("wb") as file:
        for name, (rows, dim) in tables.items():
            entry = manifest["tables"][name]
            where = {"offset": offset, "nbytes": rows * dim * 4, "crc32c": 0}
            entry |= {"vocabulary_size": rows, "file": SHARD.as_posix(), **where}
            tensors[entry["variable"]] = ("float32", (rows, dim), where)
            for row in written_rows(rows):
                file.seek(offset + row * dim * 4)
                file.write(row_of(name, row, dim).tobytes())
            offset += entry["nbytes"]
        file.truncate(offset)
    (target / INDEX).write_bytes(bundle_index(tensors))
    paths = [path for path in target.rglob("*") if path.is_file()]
    sizes = {path.relative_to(target).as_posix(): path.stat().st_size for path in paths}
    sizes.pop(MANIFEST.as_posix(), None)
    manifest["files"] = sizes
    (target / MANIFEST).write_text(json.dumps(manifest))


def written_rows(rows: int) -> tuple[int, ...]:
    """Returns the rows that hold numbers: the last row, which would show an overflowing offset, and two others."""
    return (0, rows // 2, rows - 1)


def row_of(table: str, row: int, dim: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng([*table.encode(), row]).standard_normal(dim, np.float32)


def large_request(tables: Mapping[str, tuple[int, int]]) -> tuple[dict[str, Any], Arrays]:
    """Returns the ids of a lookup that reads only the rows of written_rows(), and the embeddings that it must get."""
    features = {"user": "user", "item": "item", "tags": "tag"}
    ids = {feature: list(written_rows(tables[table][0])) for feature, table in features.items()}
    expected = {
        feature: np.stack([row_of(table, row, tables[table][1]) for row in ids[feature]])
        for feature, table in features.items()
    }
    # Each request row has one tag, so the mean over its tags is that tag's row.
    return {**ids, "tags": [[row] for row in ids["tags"]]}, expected


if __name__ == "__main__":
    main()
