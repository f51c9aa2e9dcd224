"""Exports the rating model: an ExportSource of a training run, and a tf.Module of its tables and tower.

A plain module with a dict `tables` gives the variables readable names (`tables/film`) in the SavedModel; a Keras model
would number the variables, and add its optimizer slots.

The tables are streamed: tf.saved_model.save needs each variable in memory, and copies it once more. A streamed table
uses no memory: TensorFlow saves one number in the table's place, and add_rows() replaces this number by the rows.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from model_export.errors import ExportError
from model_export.exporter.bundle_writer import BundleWriter
from model_export.graphs.lookup_graph import build_lookup, rows_of_keys, vocabulary_tables
from model_export.graphs.reduced_graph import ReducedVariables
from model_export.graphs.source import (
    EXAMPLES_INPUT,
    PREDICT,
    PREDICT_EXAMPLES,
    RATING_OUTPUT,
    VARIABLES_PREFIX,
    LookupPlan,
    PredictSignature,
    SavedParts,
)
from model_export.graphs.tpu_graph import add_tpu_meta_graph, tpu_call
from model_export.spec.features import FeatureSpec, ModelSpec, cut_spec
from model_export.tensorflow_setup import tf
from movielens.checkpoint_rows import CheckpointRows
from movielens.loop import restore_weights
from movielens.model import TABLE_KEY, RatingTower, feature_config
from movielens.ratings import SYNTHETIC
from movielens.run import CHECKPOINTS_FOLDER, RATING_RANGE, Run
from movielens.sharded_tables import DistinctRows
from service.artifact.bundle import read_bundle
from service.artifact.manifest import NOTICE
from service.types import Array

_VALUE_KEY = "VARIABLE_VALUE"


def streamed_table(name: str, shape: tuple[int, int]) -> Any:
    """Makes a [V, D] float32 variable without memory, for functions that will be traced but not run."""
    from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

    variable = UninitializedVariable(trainable=False, shape=shape, dtype=tf.float32, name=name)
    variable._serialize_to_tensors = lambda: {_VALUE_KEY: tf.zeros([])}
    return variable


def add_rows(folder: Path, tables: Mapping[str, Iterable[Array]]) -> None:
    """Writes the rows of streamed tables into the checkpoint of a SavedModel, piece by piece.

    Args:
      folder: the SavedModel, which tf.saved_model.save wrote.
      tables: key in the checkpoint -> the rows in order, [n, D] float32 pieces.
    """
    old = folder / VARIABLES_PREFIX
    new = folder / "variables.partial" / old.name
    with BundleWriter(new) as writer:
        writer.copy(old, lambda key: key not in tables)
        for key, pieces in tables.items():
            writer.add(key, "float32", pieces)
    shutil.rmtree(old.parent)
    new.parent.rename(old.parent)


_SYNTHETIC = "this model was trained on SYNTHETIC ratings: it is a toy, and its films do not exist"
_VARIABLE_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


class RatingSource:
    """The ExportSource of a finished training run, which reads tables from the checkpoint's shards as they are needed.

    Concurrency: one caller at a time.

    Args:
      prefix: path of the checkpoint without ".index".
      most_rows: exports only the first rows of each table, at most this number; None: all rows.
    """

    def __init__(self, run: Run, tower: RatingTower, prefix: Path, most_rows: int | None = None) -> None:
        self._run, self._tower, self._prefix = run, tower, prefix
        self._spec = run.spec if most_rows is None else cut_spec(run.spec, most_rows)
        variables = read_bundle(prefix)
        self._rows = {
            table.name: CheckpointRows(table.name, variables[TABLE_KEY.format(table.name)], most_rows)
            for table in run.spec.tables
        }

    @staticmethod
    def of_run(folder: Path) -> RatingSource:
        """Opens the newest checkpoint of a training run; raises ExportError if there is none or the run was cut off."""
        run = Run.read(folder)
        saved = tf.Module()
        saved.tower = RatingTower.of_spec(run.spec, run.config, mean_rating=run.mean_rating, rating_range=RATING_RANGE)
        epoch, prefix = restore_weights(folder / CHECKPOINTS_FOLDER, saved)
        if epoch != len(run.history):
            raise ExportError(f"{folder} was interrupted in epoch {len(run.history)}; resume the training first")
        return RatingSource(run, saved.tower, prefix)

    def first_rows(self, number: int) -> RatingSource:
        """Returns the ExportSource of the same model, with at most `number` rows of each table."""
        return RatingSource(self._run, self._tower, self._prefix, number)

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        return {"film": self._run.film_titles} if self._run.film_titles else {}

    @property
    def provenance(self) -> Mapping[str, Any]:
        run = self._run
        return {
            **({NOTICE: _SYNTHETIC} if run.dataset["name"] == SYNTHETIC else {}),
            "dataset": dict(run.dataset),
            "train_config": run.config.to_json(),
            "epochs": len(run.history),
            "step": run.step,
            "train_seconds": round(run.seconds, 1),
            "held_out_rmse": run.held_out_rmse,
            "baseline_rmse": dict(run.baselines),
            "history": [
                {"epoch": e.epoch, "loss": e.train_loss, "held_out_rmse": e.held_out_rmse} for e in run.history
            ],
        }

    @property
    def predict_names(self) -> Sequence[str]:
        return (PREDICT, PREDICT_EXAMPLES)

    def save(self, folder: Path, plan: LookupPlan, predict: Sequence[str]) -> SavedParts:
        """Writes the rating model's SavedModel; its {serve,tpu} MetaGraph, if planned, holds the padded lookups."""
        module = _ServingModule(self.spec, self._tower, plan, predict)
        tf.saved_model.save(module, str(folder), signatures=module.functions(plan, predict))
        if plan.export_to_tpu:
            add_tpu_meta_graph(folder, module, module.tpu_functions(plan))
        rows = {f"tables/{name}{_VARIABLE_SUFFIX}": self._rows[name].chunks() for name in module.streamed}
        rows |= {f"trained/{name}{_VARIABLE_SUFFIX}": self._rows[name].chunks() for name in module.trained}
        add_rows(folder, rows)
        features = tuple(feature.name for feature in self.spec.features)
        described = {PREDICT: PredictSignature(features), PREDICT_EXAMPLES: PredictSignature((), EXAMPLES_INPUT)}
        return SavedParts(
            {table.name: f"tables/{table.name}{_VARIABLE_SUFFIX}" for table in self.spec.tables},
            {name: described[name] for name in predict},
            module.reduced.scale_keys(),
        )

    def table_rows(self, table: str, start: int, stop: int) -> Array:
        return self._rows[table].read(start, stop)

    def predict(self, signature: str, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        given = _ids_of_examples(self.spec, inputs[EXAMPLES_INPUT]) if signature == PREDICT_EXAMPLES else inputs
        distinct = DistinctRows.of(self.spec, {f.name: _feature_ids(f, given) for f in self.spec.features})
        vectors = {name: tf.constant(self._rows[name].gather(ids.numpy())) for name, ids in distinct.rows.items()}
        return {RATING_OUTPUT: self._tower.clipped(distinct.look_up(vectors, feature_config(self.spec))).numpy()}


class _ServingModule(tf.Module):  # type: ignore[misc]
    def __init__(self, spec: ModelSpec, tower: RatingTower, plan: LookupPlan, predict: Sequence[str]) -> None:
        super().__init__()
        self.reduced = ReducedVariables(plan.reduced)
        trained = {
            table.name: streamed_table(table.name, (table.vocabulary_size, table.embedding_dim))
            for table in spec.tables
        }
        # Names of the tables whose trained rows are in `tables`. For each other table, `tables` has the rows in fewer
        # bits.
        self.streamed = [name for name in trained if name not in plan.reduced]
        self.tables = {**trained, **self.reduced.tables}
        self.scales = self.reduced.scales
        # Predictions read the trained tables, even if lookups read tables that are stored in fewer bits.
        self.trained = {name: trained[name] for name in plan.reduced} if predict else {}
        self.tower = tower
        self.vocabularies = vocabulary_tables(spec, plan.vocabulary_files)
        self._spec = spec
        # The dict keyed by TableConfig is no attribute of the module, because it can not be saved: a closure holds it.
        config = feature_config(spec)
        by_config = {feature.table: trained[feature.table.name] for feature in config.values()}

        def vectors(ids: Mapping[str, Any]) -> Any:
            return tf.tpu.experimental.embedding.serving_embedding_lookup(ids, None, by_config, config)

        self._vectors = vectors

    def functions(self, plan: LookupPlan, predict: Sequence[str]) -> dict[str, Any]:
        functions = {
            name: build_lookup(entry, self._spec, self.reduced.for_lookups(self.tables), self.vocabularies).function()
            for name, entry in plan.lookups.items()
        }
        specs = {}
        for feature in self._spec.features:
            for name in filter(None, (feature.ids_input, feature.row_splits_input)):
                specs[name] = tf.TensorSpec([None], tf.int64, name)
        examples = tf.TensorSpec([None], tf.string, EXAMPLES_INPUT)
        own = {
            PREDICT: tf.function(self._predict, input_signature=[specs], autograph=False),
            PREDICT_EXAMPLES: tf.function(self._predict_examples, input_signature=[examples], autograph=False),
        }
        return functions | {name: own[name] for name in predict}

    def tpu_functions(self, plan: LookupPlan) -> dict[str, Any]:
        padded = {name: entry for name, entry in plan.lookups.items() if entry.batch_sizes}
        if not padded:
            raise ExportError("export_to_tpu needs lookup_device='tpu_tensor_core': it is what runs on the TPU")
        return {
            name: build_lookup(
                entry,
                self._spec,
                self.reduced.for_lookups(self.tables),
                self.vocabularies,
                compiled=lambda combine: partial(tpu_call, combine),
            ).function()
            for name, entry in padded.items()
        }

    def _predict(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        ids = {f.name: _feature_ids(f, inputs) for f in self._spec.features}
        return {RATING_OUTPUT: self.tower.clipped(self._vectors(ids))}

    def _predict_examples(self, examples: Any) -> dict[str, Any]:
        parsed = tf.io.parse_example(examples, {f.name: _example_field(f) for f in self._spec.features})
        ids = {f.name: self._rows(f, parsed[f.name]) for f in self._spec.features}
        return {RATING_OUTPUT: self.tower.clipped(self._vectors(ids))}

    def _rows(self, feature: FeatureSpec, ids: Any) -> Any:
        if feature.vocabulary is None:
            return ids
        table = self.vocabularies[feature.name]
        if feature.is_ragged:
            return ids.with_values(rows_of_keys(feature, ids.values, table))
        return rows_of_keys(feature, ids, table)


def _feature_ids(feature: FeatureSpec, inputs: Mapping[str, Any]) -> Any:
    if feature.row_splits_input is None:
        return tf.convert_to_tensor(inputs[feature.ids_input])
    splits = inputs[feature.row_splits_input]
    return tf.RaggedTensor.from_row_splits(inputs[feature.ids_input], splits, validate=True)


def _example_field(feature: FeatureSpec) -> Any:
    # For a field that a tf.Example lacks, the graph uses an unknown id (row 0), an unknown string, or an empty row.
    dtype = tf.int64 if feature.vocabulary is None else tf.string
    if feature.is_ragged:
        return tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int64)
    return tf.io.FixedLenFeature([], dtype, default_value="" if dtype == tf.string else 0)


def _ids_of_examples(spec: ModelSpec, examples: Array) -> dict[str, Array]:
    # Parse the tf.Examples in Python, so that the parity check compares the graph's parsing with an independent one.
    messages = [tf.train.Example.FromString(example) for example in examples]
    inputs: dict[str, Array] = {}
    for feature in spec.features:
        rows = [_ids_of_example(feature, message) for message in messages]
        inputs[feature.ids_input] = np.array([row_id for row in rows for row_id in row], np.int64)
        if feature.row_splits_input is not None:
            inputs[feature.row_splits_input] = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return inputs


def _ids_of_example(feature: FeatureSpec, example: Any) -> list[int]:
    field = example.features.feature[feature.name]
    if feature.vocabulary is None:
        found = list(field.int64_list.value)
    else:
        row_of = {key: feature.vocabulary.first_id + i for i, key in enumerate(feature.vocabulary.keys)}
        found = [row_of.get(key.decode(), feature.vocabulary.oov_id or 0) for key in field.bytes_list.value]
    return found or ([] if feature.is_ragged else [0])
