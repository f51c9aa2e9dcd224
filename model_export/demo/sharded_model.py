"""The rating model for training in several processes, with the variable names of the model for one process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from model_export.demo.config import TrainConfig
from model_export.demo.layer_model import feature_config
from model_export.demo.tower import RatingTower
from model_export.distribution.sharded_tables import DistinctRows, ShardedTable
from model_export.spec.features import ModelSpec
from model_export.tensorflow_setup import tf


class ShardedRatingModel:
    """Tables and tower of the rating model; make it within the scope of a strategy.

    Args:
      splitting: context manager; the strategy splits the variables that are created within it.

    Attributes:
      saved: the tf.Module that a checkpoint holds.
    """

    def __init__(
        self,
        spec: ModelSpec,
        config: TrainConfig,
        *,
        mean_rating: float,
        rating_range: tuple[float, float],
        splitting: AbstractContextManager[None],
    ) -> None:
        self._spec = spec
        self._config = feature_config(spec, config.seed)
        with splitting:
            self.sharded = {
                table.name: ShardedTable(table, config.seed + index) for index, table in enumerate(spec.tables)
            }
        self.tower = RatingTower.of_spec(spec, config, mean_rating=mean_rating, rating_range=rating_range)
        self.saved = tf.Module()
        self.saved.embedding = _Tables({name: table.table for name, table in self.sharded.items()})
        self.saved.tower = self.tower

    def rows(self, features: Mapping[str, Any]) -> tuple[DistinctRows, dict[str, Any]]:
        """Finds the distinct rows of a batch, and reads their vectors: table -> [U, D]."""
        distinct = DistinctRows.of(self._spec, features)
        return distinct, {name: self.sharded[name].gather(rows) for name, rows in distinct.rows.items()}

    def vectors(self, distinct: DistinctRows, rows: Mapping[str, Any]) -> dict[str, Any]:
        """Combines the table rows that rows() read for a batch; returns [B, D] vectors by feature name."""
        return distinct.look_up(rows, self._config)


class _Tables(tf.Module):  # type: ignore[misc]
    # The attributes of this module have the names that a checkpoint of the TPUEmbedding layer gives to its tables.
    def __init__(self, tables: Mapping[str, Any]) -> None:
        super().__init__()
        self._tpu_embedding = tf.Module()
        for name, table in tables.items():
            setattr(self._tpu_embedding, name, table)
