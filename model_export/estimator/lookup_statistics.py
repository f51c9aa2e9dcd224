"""Counts the ids that a training looks up, for EmbeddingConfigSpec.profile_data_directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from model_export.estimator.lookups import ids_and_splits, looked_up_ids, lookup_spec
from model_export.spec.embedding_config_spec import EmbeddingConfigSpec
from model_export.statistics.collector import LookupStatistics
from model_export.tensorflow_setup import tf


def statistics_hooks(spec: EmbeddingConfigSpec | None, features: Mapping[str, Any]) -> list[Any]:
    """Returns the hook that counts a training's ids; an empty list if the spec asks for no statistics.

    Args:
      features: the features that input_fn returned, in the current graph.
    """
    if spec is None or spec.profile_data_directory is None:
        return []
    model = lookup_spec(spec)
    statistics = LookupStatistics.for_model(
        Path(spec.profile_data_directory), model, partition_strategy=spec.partition_strategy
    )
    rows = {feature.name: model.table_of(feature.name).vocabulary_size for feature in model.features}
    return [_Observe(statistics, looked_up_ids(spec, features), rows)]


class _Observe(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    def __init__(self, statistics: LookupStatistics, ids: Mapping[str, Any], rows: Mapping[str, int]) -> None:
        self._statistics, self._ids, self._rows = statistics, dict(ids), rows
        self._global_step = tf.compat.v1.train.get_global_step()
        self._step = 0

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._step = int(session.run(self._global_step))

    def before_run(self, run_context: Any) -> Any:
        return tf.compat.v1.train.SessionRunArgs(self._ids if self._statistics.wants(self._step) else {})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        seen = {name: self._rows_read(name, ids) for name, ids in (run_values.results or {}).items()}
        self._statistics.observe(self._step, seen)
        self._step += 1

    def end(self, session: Any) -> None:
        self._statistics.save()

    def _rows_read(self, name: str, ids: Any) -> tuple[Any, Any]:
        values, splits = ids_and_splits(ids)
        # Only ids of rows of the table are counted. An unknown key has the id -1, whose lookup reads no row.
        is_row = (values >= 0) & (values < self._rows[name])
        if splits is None:
            return values[is_row], None
        return values[is_row], np.concatenate([[0], np.cumsum(is_row)])[splits]
