"""Measures the peak memory of `model-export export` for runs whose tables are in shards, by the size of the tables.

    python -m loadtest.export_memory --rows 1000 4000000

Each run, and each export, is made by a process of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
import tempfile
from pathlib import Path

_SHARDS = 4


def main() -> None:
    """Makes a training run of each size, exports it, and prints the checkpoint's size and the export's peak memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[1000, 4_000_000], help="rows of the user table (32 numbers each)"
    )
    parser.add_argument("--make", type=Path, metavar="DIR", help="only write a run with the first number of rows")
    arguments = parser.parse_args()
    if arguments.make is not None:
        make_run(arguments.make, arguments.rows[0])
        return
    sys.stdout.write("rows of the table | checkpoint MB | peak MB of the export\n")
    for rows in arguments.rows:
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            # TF_USE_LEGACY_KERAS must be set before TensorFlow is imported, because the import chooses Keras 2 or 3.
            environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
            made = [sys.executable, "-m", "loadtest.export_memory", "--rows", str(rows), "--make", str(run)]
            subprocess.run(made, env=environment, stderr=subprocess.DEVNULL, check=True)
            size = sum(file.stat().st_size for file in (run / "checkpoints").iterdir())
            peak = _peak_bytes(
                [sys.executable, "-m", "model_export", "export", f"--run={run}", f"--out={Path(folder) / 'models'}"]
            )
            sys.stdout.write(f"{rows:,} | {size / 1e6:.0f} | {peak / 1e6:.0f}\n")
            sys.stdout.flush()


def make_run(folder: Path, rows: int) -> None:
    """Writes a finished training run whose tables have four shards each; rows: number of rows of the table `user`."""
    from tensorflow.python.distribute.sharded_variable import ShardedVariable

    from model_export.demo.config import TrainConfig
    from model_export.demo.loop import EpochResult
    from model_export.demo.rating_model import rating_model_spec
    from model_export.demo.run import CHECKPOINTS_FOLDER, RATING_RANGE, Run
    from model_export.demo.synthetic import synthetic_ratings
    from model_export.demo.tower import RatingTower
    from model_export.distribution.sharded_tables import initial_rows
    from model_export.spec.features import ModelSpec
    from model_export.tensorflow_setup import tf

    spec = rating_model_spec(synthetic_ratings())
    user = dataclasses.replace(spec.table("user"), vocabulary_size=rows)
    spec = ModelSpec((user, *(table for table in spec.tables if table.name != "user")), spec.features)
    config = TrainConfig(epochs=1, distribution="parameter_server")
    folder.mkdir(parents=True)
    Run(
        spec=spec,
        config=config,
        dataset={"name": "synthetic", "sha256": ""},
        baselines={"global_mean": 1.0, "user_film_bias": 1.0},
        history=(EpochResult(1, 1.0, 1.0),),
        mean_rating=3.5,
        step=1,
        seconds=0.0,
    ).write(folder)
    model, tables = tf.Module(), tf.Module()
    for table in spec.tables:
        cuts = [table.vocabulary_size * shard // _SHARDS for shard in range(_SHARDS + 1)]
        shards = [tf.Variable(initial_rows(table, 1, cuts[i], cuts[i + 1])) for i in range(_SHARDS)]
        setattr(tables, table.name, ShardedVariable(shards, name=table.name))
    model.embedding = tf.Module()
    model.embedding._tpu_embedding = tables
    model.tower = RatingTower.of_spec(spec, config, mean_rating=3.5, rating_range=RATING_RANGE)
    checkpoint = tf.train.Checkpoint(model=model, epoch=tf.Variable(1, dtype=tf.int64))
    checkpoint.save(str(folder / CHECKPOINTS_FOLDER / "ckpt"))


def _peak_bytes(command: list[str]) -> int:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {process.returncode}")
    return usage.ru_maxrss * 1024


if __name__ == "__main__":
    main()
