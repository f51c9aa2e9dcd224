"""TPUEmbedding of tensorflow_recommenders, extended: it accepts new Keras optimizers, and reports errors earlier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from model_export.layers.optimizers import embedding_optimizer
from model_export.tensorflow_setup import tf, tfrs


class TPUEmbedding(tfrs.layers.embedding.TPUEmbedding):  # type: ignore[misc]
    """Keras layer that looks up and combines embeddings, on a TPU's embedding cores or elsewhere in plain variables.

    Adds to the layer of tensorflow_recommenders: new Keras optimizers, if a TPU can compute the same
    (`embedding_optimizer`); errors that name the invalid table; and the property `table_optimizers`.

    Args:
      feature_config: nest (dict, list, tuple or one) of tf.tpu.experimental.embedding.FeatureConfig. Inputs have the
        same nest.
      optimizer: trains the tables without an optimizer of their own; None leaves slots out, for export.
      pipeline_execution_with_tensor_core: on a TPU, overlap lookups with the dense part, one step late. No effect on a
        CPU.
      batch_size: deprecated in TFRS; no effect on a CPU.
      embedding_feature, sparse_core_embedding_config: choice and settings of the TPU hardware; as in TFRS.

    A call with (features, weights=None, serving_config=None) returns a nest of vectors: [B, D] float32 per feature,
    [B, L, D] for a sequence. weights match sparse and ragged features in type and shape.

    Raises:
      ValueError: a TPU lacks an optimizer, or two tables have the same name.

    Source: tensorflow_recommenders 0.7.7, layers/embedding/tpu_embedding_layer.py.
    """

    def __init__(
        self,
        feature_config: Any,
        optimizer: Any,
        pipeline_execution_with_tensor_core: bool = False,
        batch_size: int | None = None,
        *,
        embedding_feature: Any = None,
        sparse_core_embedding_config: Any = None,
    ) -> None:
        configs = list({id(f.table): f.table for f in tf.nest.flatten(feature_config)}.values())
        twice = sorted(name for name, count in Counter(t.name for t in configs if t.name).items() if count > 1)
        if twice:
            raise ValueError(f"different tables are named {twice}; features that share a table share its TableConfig")
        # Each optimizer object is converted once, so that tables with the same optimizer share its iteration count.
        given = {id(o): o for o in (optimizer, *(table.optimizer for table in configs))}
        taken = {key: _taken(value, optimizer, configs) for key, value in given.items()}
        with _table_optimizers_replaced(configs, taken):
            super().__init__(
                feature_config,
                taken[id(optimizer)],
                pipeline_execution_with_tensor_core,
                batch_size,
                embedding_feature,
                sparse_core_embedding_config,
            )
        # The dict is hidden in a function, because Keras tracks plain attributes and would save the optimizers in every
        # checkpoint.
        names = [table.name or f"table_{position}" for position, table in enumerate(configs)]
        by_table = {
            name: taken[id(optimizer if table.optimizer is None else table.optimizer)]
            for name, table in zip(names, configs, strict=True)
        }
        self._get_table_optimizers: Callable[[], Mapping[str, Any]] = lambda: by_table

    @property
    def table_optimizers(self) -> Mapping[str, Any]:
        """The optimizer of each table of this layer, by table name, as embedding_optimizer() converted it."""
        return self._get_table_optimizers()


def _taken(optimizer: Any, default: Any, configs: list[Any]) -> Any:
    try:
        return embedding_optimizer(optimizer)
    except ValueError as error:
        where = "the layer" if optimizer is default else next(t.name for t in configs if t.optimizer is optimizer)
        raise ValueError(f"optimizer of {where}: {error}") from error


@contextmanager
def _table_optimizers_replaced(configs: list[Any], taken: Mapping[int, Any]) -> Iterator[None]:
    # TFRS must get the user's own TableConfig objects, because embedding_tables and serving_config use them as keys. So
    # these objects have other optimizers only while the constructor of TFRS copies them.
    before = [table.optimizer for table in configs]
    try:
        for table in configs:
            table.optimizer = taken[id(table.optimizer)]
        yield
    finally:
        for table, optimizer in zip(configs, before, strict=True):
            table.optimizer = optimizer
