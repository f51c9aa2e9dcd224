"""Makes a trained EmbeddingEstimator an ExportSource, which the exporter can write and check."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from model_export.errors import ExportError
from model_export.estimator import checkpoints
from model_export.estimator.embedding_tables import DEFAULT_MAX_IDS_PER_ROW, lookup_spec, weight_keys
from model_export.estimator.estimator_spec import ModeKeys
from model_export.estimator.model_graph import ServingGraph, cpu_serving_graph, tpu_serving_graph
from model_export.export_model import export
from model_export.exporter.artifact import add_extra_files
from model_export.exporter.versions import existing_versions, temporary_folder
from model_export.graphs.lookup_graph import build_lookup, vocabulary_tables
from model_export.graphs.reduced_graph import ReducedGraphVariables
from model_export.graphs.signature_runner import read_saved_model
from model_export.graphs.source import LookupPlan, PredictSignature, SavedParts
from model_export.spec.features import ModelSpec
from model_export.tensorflow_setup import tf
from model_export.training.partitioning import refuse_mod_export
from service.artifact.bundle import BundleEntry, read_bundle
from service.artifact.files import publish_folder
from service.artifact.manifest import LookupDevice
from service.types import Array

# The class is imported for annotations only: estimator.py imports this module when it exports, so an import at run time
# would be circular.
if TYPE_CHECKING:
    from model_export.estimator.estimator import EmbeddingEstimator


SERVE, TPU = "serve", "tpu"
# Types of the params that provenance records.
_PLAIN = (type(None), bool, int, float, str)


class EstimatorSource:
    """The ExportSource of one checkpoint of an estimator. Concurrency: one caller at a time.

    Args:
      serving_input_receiver_fn: function without arguments that returns a ServingInputReceiver or
        TensorServingInputReceiver.
      checkpoint_path: None: the newest checkpoint of the estimator's model_dir, or else its warm-start checkpoint.
      max_ids_per_row: K in a padded lookup for features that have no max_ids_per_row of their own.

    Raises:
      ValueError: there is no receiver function or no checkpoint, or a column can not be described in a manifest.
      ExportError: partition_strategy is "mod".
    """

    def __init__(
        self,
        estimator: EmbeddingEstimator,
        serving_input_receiver_fn: Callable[[], Any],
        *,
        checkpoint_path: str | None = None,
        max_ids_per_row: int = DEFAULT_MAX_IDS_PER_ROW,
    ) -> None:
        if not callable(serving_input_receiver_fn):
            raise ValueError(f"serving_input_receiver_fn must be a function, got {serving_input_receiver_fn!r}")
        self._estimator = estimator
        self._receiver_fn = serving_input_receiver_fn
        self._checkpoint = _checkpoint(estimator, checkpoint_path)
        embedding = estimator.model.embedding
        if embedding is not None:
            refuse_mod_export(embedding.partition_strategy, model_dir=estimator.model_dir)
        self._spec = ModelSpec((), ()) if embedding is None else lookup_spec(embedding, max_ids_per_row=max_ids_per_row)
        self._tables: dict[str, Array] = {}
        # This graph and this session hold the trained model in memory, for predict().
        self._graph = tf.Graph()
        with self._graph.as_default():
            self._serving = cpu_serving_graph(estimator.model, serving_input_receiver_fn)
            self._definitions = self._serving.definitions()
            self._table_names = {name: variable.op.name for name, variable in self._serving.tables.items()}
            self._session = self._restored(self._serving)
            self._described = {name: self._predict_signature(name) for name in self._definitions}

    @property
    def spec(self) -> ModelSpec:
        """The estimator's tables and features; none without an EmbeddingConfigSpec."""
        return self._spec

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Returns the checkpoint, step, losses and optimizer of the training, for the manifest's provenance."""
        embedding = self._estimator.model.embedding
        record: dict[str, Any] = {
            "trained_by": "EmbeddingEstimator",
            "checkpoint": Path(self._checkpoint).name,
            "step": checkpoints.global_step(self._checkpoint),
            "params": {name: value for name, value in self._estimator.params.items() if isinstance(value, _PLAIN)},
            "history": checkpoints.loss_history(self._estimator.model_dir),
        }
        if embedding is not None and embedding.optimization_parameters is not None:
            record["table_optimizer"] = repr(embedding.optimization_parameters)
        return record

    @property
    def predict_names(self) -> Sequence[str]:
        """The names of the predict signatures, one for each head of model_fn."""
        return tuple(sorted(self._definitions))

    def save(self, folder: Path, plan: LookupPlan, predict: Sequence[str]) -> SavedParts:
        """Writes a SavedModel: a {serve} MetaGraph and, if plan.export_to_tpu, a {serve,tpu} one on the same variables.

        The {serve,tpu} MetaGraph holds the heads only, no lookup signatures.
        """
        v1 = tf.compat.v1
        with _quiet():
            builder = v1.saved_model.Builder(str(folder))
        with tf.Graph().as_default():
            serving = cpu_serving_graph(self._estimator.model, self._receiver_fn)
            definitions = {name: definition for name, definition in serving.definitions().items() if name in predict}
            vocabularies = vocabulary_tables(self._spec, plan.vocabulary_files)
            # Restore the checkpoint before reduced tables are added, because it lacks the variables of reduced tables.
            session = self._restored(serving)
            reduced = ReducedGraphVariables(plan.reduced)
            tables = reduced.for_lookups(serving.tables)
            for name, entry in plan.lookups.items():
                definitions[name] = build_lookup(entry, self._spec, tables, vocabularies).signature_def(name)
            with session, _quiet():
                reduced.fill(session)
                parts = _parts_of_graph(serving)
                if plan.reduced:
                    parts["saver"] = _saver_of_all(serving)
                builder.add_meta_graph_and_variables(session, [SERVE], definitions, **parts)
        if plan.export_to_tpu:
            self._add_tpu_graph(builder, predict)
        with _quiet():
            builder.save()
        return SavedParts(
            {**self._table_names, **reduced.table_keys()},
            {name: self._described[name] for name in predict},
            reduced.scale_keys(),
        )

    def save_tpu_only(self, folder: Path) -> None:
        """Writes only the {serve,tpu} MetaGraph and its variables, as TPUEstimator did with export_to_cpu=False."""
        self.save(folder, LookupPlan({}, {}, export_to_tpu=True), self.predict_names)
        # A TPU graph can not run here, not even to save its variables, so save() saved them with the {serve} graph.
        file = folder / "saved_model.pb"
        saved_model = read_saved_model(folder)
        kept = [graph for graph in saved_model.meta_graphs if TPU in graph.meta_info_def.tags]
        del saved_model.meta_graphs[:]
        saved_model.meta_graphs.extend(kept)
        file.write_bytes(saved_model.SerializeToString())

    def table_rows(self, table: str, start: int, stop: int) -> Array:
        """Reads the rows [start, stop) of a table from the checkpoint."""
        if table not in self._tables:
            self._tables[table] = _mapped(read_bundle(Path(self._checkpoint))[self._table_names[table]])
        return self._tables[table][start:stop]

    def predict(self, signature: str, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Returns the outputs of a head of model_fn, computed from the checkpoint's variables in the graph that save()
        writes.
        """
        definition = self._definitions[signature]
        feed = {definition.inputs[name].name: array for name, array in inputs.items()}
        fetches = {name: info.name for name, info in definition.outputs.items()}
        answers: Mapping[str, Array] = self._session.run(fetches, feed)
        return answers

    def _add_tpu_graph(self, builder: Any, predict: Sequence[str]) -> None:
        with tf.Graph().as_default(), _quiet():
            serving = tpu_serving_graph(self._estimator.model, self._receiver_fn, self._estimator.api_version)
            definitions = {name: definition for name, definition in serving.definitions().items() if name in predict}
            builder.add_meta_graph([SERVE, TPU], definitions, **_parts_of_graph(serving))

    def _restored(self, serving: ServingGraph) -> Any:
        v1 = tf.compat.v1
        session = v1.Session(config=self._estimator.config.session_config)
        scaffold = serving.scaffold_fn() if serving.scaffold_fn else v1.train.Scaffold()
        saver = scaffold.saver or v1.train.Saver(sharded=True)
        try:
            saver.restore(session, self._checkpoint)
        except (tf.errors.NotFoundError, ValueError) as error:
            session.close()
            raise ValueError(
                f"Could not load all requested variables from checkpoint {self._checkpoint}; model_fn must not make "
                f"variables in mode PREDICT that training does not save: {error}"
            ) from error
        session.run(v1.tables_initializer())
        return session

    def _predict_signature(self, name: str) -> PredictSignature:
        inputs = dict(self._definitions[name].inputs)
        features = tuple(
            feature.name
            for feature in self._spec.features
            if feature.ids_input in inputs and (feature.row_splits_input or feature.ids_input) in inputs
        )
        strings = [key for key, info in inputs.items() if info.dtype == tf.string.as_datatype_enum and info.name]
        for key in strings:
            fields = example_fields(self._graph.get_tensor_by_name(inputs[key].name))
            if fields is not None:
                # The signature's one input holds tf.Examples, so no feature has an input of its own.
                floats = {name: size for name, (dtype, size) in fields.dense.items() if dtype == "float32"}
                return PredictSignature((), key, floats, self._weight_fields(fields))
        return PredictSignature(features)

    def _weight_fields(self, fields: ExampleFields) -> dict[str, str]:
        embedding = self._estimator.model.embedding
        weights = {} if embedding is None else weight_keys(embedding)
        return {name: key for name, key in weights.items() if key in fields.names and key not in fields.dense}


def _checkpoint(estimator: EmbeddingEstimator, checkpoint_path: str | None) -> str:
    path = checkpoint_path or estimator.latest_checkpoint() or estimator.warm_start_checkpoint
    if path is None:
        raise ValueError(f"Couldn't find trained model at {estimator.model_dir}.")
    return path


def _parts_of_graph(serving: ServingGraph) -> dict[str, Any]:
    v1 = tf.compat.v1
    scaffold = serving.scaffold_fn() if serving.scaffold_fn else v1.train.Scaffold()
    return {
        "assets_collection": v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
        "main_op": scaffold.local_init_op or v1.train.Scaffold.default_local_init_op(),
        "saver": scaffold.saver or v1.train.Saver(sharded=True),
        "strip_default_attrs": True,
    }


def _saver_of_all(serving: ServingGraph) -> Any:
    if serving.scaffold_fn and serving.scaffold_fn().saver:
        raise ExportError("table_dtype: model_fn's Scaffold has a saver, which does not know tables of fewer bits")
    return tf.compat.v1.train.Saver(sharded=True)


def _mapped(entry: BundleEntry) -> Array:
    if not entry.is_sliced:
        return np.memmap(entry.file, np.dtype(entry.dtype), "r", entry.offset, entry.shape)
    table = np.empty(entry.shape, np.dtype(entry.slices[0].entry.dtype))
    for part in entry.slices:
        where = tuple(slice(start, start + size) for start, size in zip(part.start, part.entry.shape, strict=True))
        table[where] = _mapped(part.entry)
    return table


class _quiet(warnings.catch_warnings):
    # Silences TensorFlow's warning that the v1 builder is deprecated in favour of tf.saved_model.save, which can not
    # write v1 graphs.
    def __enter__(self) -> Any:
        entered = super().__enter__()
        warnings.simplefilter("ignore", DeprecationWarning)
        return entered


class ExampleFields(NamedTuple):
    names: tuple[str, ...]
    dense: dict[str, tuple[str, int]]


def example_fields(examples: Any) -> ExampleFields | None:
    """Returns the fields that tf.io.parse_example reads from a placeholder; None if no op parses the placeholder."""
    names: list[str] = []
    dense: dict[str, tuple[str, int]] = {}
    is_parsed = False
    for op in examples.consumers():
        if op.type != "ParseExampleV2":
            continue
        is_parsed = True
        # Inputs of ParseExampleV2: serialized, names, sparse_keys, dense_keys, ragged_keys, then the default values.
        sparse_keys, dense_keys, ragged_keys = (_strings(tensor) for tensor in op.inputs[2:5])
        names += [*sparse_keys, *dense_keys, *ragged_keys]
        for key, dtype, shape in zip(dense_keys, op.get_attr("Tdense"), op.get_attr("dense_shapes"), strict=True):
            size = tf.TensorShape(shape).num_elements()
            if size is not None:
                dense[key] = (tf.as_dtype(dtype).name, size)
    return ExampleFields(tuple(names), dense) if is_parsed else None


def _strings(tensor: Any) -> list[str]:
    value = tf.get_static_value(tensor)
    return [] if value is None else [key.decode() for key in value.tolist()]


def export_timestamped(
    estimator: EmbeddingEstimator,
    base: Path,
    serving_input_receiver_fn: Callable[[], Any],
    *,
    assets_extra: Mapping[str, str | os.PathLike[str]],
    as_text: bool,
    checkpoint_path: str | None,
    mode: str,
    clock: Callable[[], float] = time.time,
) -> str:
    """Exports an estimator, as EmbeddingEstimator.export_saved_model() says; `clock` returns seconds since 1970."""
    if serving_input_receiver_fn is None:
        raise ValueError("An input_receiver_fn must be defined.")
    if mode != ModeKeys.PREDICT:
        raise ExportError(f"experimental_mode is {mode!r}: only models that predict are exported")
    if as_text:
        raise ExportError("as_text=True: only saved_model.pb is written")
    if not estimator.export_to_cpu and not estimator.export_to_tpu:
        raise ValueError("One of export_to_cpu and export_to_tpu must be true.")
    _check_extra(assets_extra)
    source = EstimatorSource(estimator, serving_input_receiver_fn, checkpoint_path=checkpoint_path)
    # A second export in the same second gets the next version number, because version numbers must increase.
    version = max(int(clock()), *(number + 1 for number in existing_versions(base)), 1)
    if not estimator.export_to_cpu:
        return str(_export_tpu_only(source, base / str(version), assets_extra))
    return str(
        export(
            source,
            base,
            version=version,
            lookup_device=_devices(estimator, source),
            signatures=None if source.spec.tables else source.predict_names,
            export_to_tpu=estimator.export_to_tpu,
            extra_files={path: Path(file) for path, file in assets_extra.items()},
        )
    )


def _devices(estimator: EmbeddingEstimator, source: EstimatorSource) -> list[LookupDevice]:
    embedding = estimator.model.embedding
    devices: list[LookupDevice] = ["cpu"]
    if embedding is not None and embedding.tensor_core_feature_columns:
        # Padded lookups can not combine by sqrtn, so they are exported only if no feature has that combiner.
        if all(source.spec.combiner_of(feature) != "sqrtn" for feature in source.spec.features):
            devices.append("tpu_tensor_core")
    return devices


def _export_tpu_only(source: EstimatorSource, target: Path, assets_extra: Mapping[str, Any]) -> Path:
    with temporary_folder(target.parent) as temporary:
        artifact = temporary / target.name
        source.save_tpu_only(artifact)
        add_extra_files(artifact, {path: Path(file) for path, file in assets_extra.items()})
        publish_folder(artifact, target, is_new=True)
    return target


def _check_extra(assets_extra: Mapping[str, Any]) -> None:
    for path, file in assets_extra.items():
        if PurePath(path).is_absolute() or ".." in PurePath(path).parts:
            raise ValueError(f"assets_extra: {path!r} lies outside assets.extra")
        if not Path(file).is_file():
            raise ValueError(f"assets_extra: {path!r} is to be a copy of {file}, which is no file")
