"""Writes a stock SavedModel with lookups around an existing checkpoint, without loading the variables."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from model_export.graphs.lookup_graph import build_lookup, vocabulary_tables
from model_export.graphs.reduced_graph import GraphTable, unwritten_variable
from model_export.graphs.signature_runner import SERVE
from model_export.importers.table_copy import CopiedTable
from model_export.spec.features import ModelSpec
from model_export.tensorflow_setup import tf
from service.artifact.manifest import SignatureEntry
from service.types import packed_dim, saved_dtype, stored_columns


def write_saved_model(
    folder: Path,
    variables: Path,
    spec: ModelSpec,
    tables: Sequence[CopiedTable],
    lookups: Mapping[str, SignatureEntry],
    vocabularies: Mapping[str, Path],
) -> None:
    """Writes a SavedModel with one MetaGraph, {serve}.

    Args:
      variables: folder of the checkpoint `variables`, which this function moves into `folder`.
      vocabularies: feature -> file of its keys, which becomes an asset.
    """
    v1 = tf.compat.v1
    with warnings.catch_warnings(), tf.Graph().as_default():
        # Silences TensorFlow's advice to use tf.saved_model.save, which would need every table in memory.
        warnings.simplefilter("ignore", DeprecationWarning)
        builder = _builder(folder)
        os.rename(variables, folder / "variables")
        parts = {table.name: _graph_table(table) for table in tables}
        keys = vocabulary_tables(spec, vocabularies)
        definitions = {
            name: build_lookup(entry, spec, parts, keys).signature_def(name) for name, entry in lookups.items()
        }
        builder.add_meta_graph(
            list(SERVE),
            definitions,
            assets_collection=v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
            main_op=v1.train.Scaffold.default_local_init_op(),
            saver=v1.train.Saver(sharded=True),
            strip_default_attrs=True,
        )
        builder.save()


def _graph_table(table: CopiedTable) -> Any:
    rows, dim = table.vocabulary_size, table.embedding_dim
    dtype = tf.as_dtype(saved_dtype(table.dtype))
    numbers = unwritten_variable(table.key, dtype, (rows, stored_columns(table.dtype, dim)))
    if table.dtype == "float32":
        return numbers
    scales = None if table.scale_key is None else unwritten_variable(table.scale_key, tf.float32, (rows, 1))
    return GraphTable(numbers, scales, packed_dim(table.dtype, dim))


def _builder(folder: Path) -> Any:
    builder = tf.compat.v1.saved_model.Builder(str(folder))
    # The SavedModel builder is told that its variables are saved: the checkpoint is in the folder already, and saving
    # would need a session with all tables in memory.
    builder._has_saved_variables = True
    return builder
