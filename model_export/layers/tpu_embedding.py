"""The TPUEmbedding layer and its strategy, and the conversion of new Keras optimizers to the legacy ones of the layer.

The layer accepts four: SGD, Adagrad, Adam and FTRL, each without clipping by norm, momentum, decay or averages. TFRS
accepts them as a string, as an object of tf.tpu.experimental.embedding, or as a tf.keras.optimizers.legacy object.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from model_export.errors import ExportError
from model_export.tensorflow_setup import tf, tfrs

embedding = tf.tpu.experimental.embedding

_NAMES = ("sgd", "adagrad", "adam", "ftrl")
_ON_TPU = (embedding.SGD, embedding.Adagrad, embedding.Adam, embedding.FTRL)
_LEGACY = ("SGD", "Adagrad", "Adam", "Ftrl")
# Maps the name of a new Keras optimizer to two groups of settings: those copied to the legacy optimizer of this name,
# and those that are refused unless they have the given value.
_NEW: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "SGD": ((), {"momentum": 0.0, "nesterov": False}),
    "Adagrad": (("initial_accumulator_value", "epsilon"), {}),
    "Adam": (("beta_1", "beta_2", "epsilon"), {"amsgrad": False}),
}
_NOT_ON_TPU = {
    "weight_decay": None,
    "clipnorm": None,
    "clipvalue": None,
    "global_clipnorm": None,
    "use_ema": False,
}
_ADVICE = (
    "use tf.keras.optimizers.legacy.SGD, Adagrad, Adam or Ftrl, or one of these names: 'sgd', 'adagrad', 'adam', 'ftrl'"
)


def embedding_optimizer(optimizer: Any) -> Any:
    """Returns an optimizer that TFRS's layer accepts; converts a new Keras optimizer to the legacy one.

    None, a name, a tf.tpu.experimental.embedding object and a legacy Keras optimizer are returned unchanged. A new
    Keras SGD, Adagrad or Adam becomes a legacy optimizer with the same settings and schedule, which updates tables and
    slots in the same way (except that Adagrad adds its epsilon outside the square root: 4e-7 of a step at the default).
    The result is a new object with its own iteration count: train the tables with it, not with the optimizer passed in.

    Raises:
      ValueError: a TPU lacks the optimizer or one of its settings; the message says what to use. The new Keras Ftrl is
        refused too, because it sets rows to zero that no example has touched.

    Source: TensorFlow 2.21, tf_keras/src/optimizers and optimizers/legacy; TFRS 0.7.7 for the accepted optimizers.
    """
    if optimizer is None or isinstance(optimizer, _ON_TPU):
        return optimizer
    if isinstance(optimizer, str):
        if optimizer not in _NAMES:
            raise ValueError(f"optimizer is {optimizer!r}, expected one of {_NAMES}")
        return optimizer
    name = type(optimizer).__name__
    if isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer):
        return _checked_legacy(optimizer, name)
    if isinstance(optimizer, tf.keras.optimizers.Optimizer):
        return _converted(optimizer, name)
    if type(optimizer).__module__.startswith("keras."):
        raise ValueError(f"optimizer {name} is of Keras 3, the layer is of Keras 2; {_ADVICE}")
    raise ValueError(f"optimizer {name} can not train the tables of a TPUEmbedding layer; {_ADVICE}")


def _checked_legacy(optimizer: Any, name: str) -> Any:
    if name not in _LEGACY:
        raise ValueError(f"a TPU has no optimizer {name} for tables; {_ADVICE}")
    # TFRS refuses other unsupported settings itself, but would silently ignore global_clipnorm and decay.
    if optimizer.global_clipnorm is not None:
        raise ValueError(
            f"{name}: global_clipnorm is not supported for tables on a TPU; use a separate dense optimizer"
        )
    if optimizer.get_config().get("decay"):
        raise ValueError(f"{name}: decay is not supported for tables on a TPU; use a learning rate schedule")
    return optimizer


def _converted(optimizer: Any, name: str) -> Any:
    if name == "Ftrl":
        raise ValueError(
            "the new Keras Ftrl sets rows to zero that no example has touched, a TPU does not; use "
            "tf.keras.optimizers.legacy.Ftrl"
        )
    if name not in _NEW:
        raise ValueError(f"a TPU has no optimizer {name} for tables; {_ADVICE}")
    same, fixed = _NEW[name]
    config = optimizer.get_config()
    for field, wanted in {**_NOT_ON_TPU, **fixed}.items():
        if (config.get(field) or wanted) != wanted:
            raise ValueError(
                f"{name}: {field}={config[field]!r} is not supported for tables on a TPU; leave it out, or use two "
                "optimizers"
            )
    # optimizer.learning_rate is not used, because it returns the present value of a schedule instead of the schedule.
    rate = optimizer._learning_rate
    if not isinstance(rate, tf.keras.optimizers.schedules.LearningRateSchedule):
        rate = float(rate)
    legacy = getattr(tf.keras.optimizers.legacy, name)
    return legacy(learning_rate=rate, name=optimizer.name, **{field: config[field] for field in same})


_logger = logging.getLogger(__name__)

_METADATA_SERVER = ("metadata.google.internal", 80)
_WORKER_PORT = 8470
_CONNECT_TIMEOUT_S = 3.0
# The first bytes that an HTTP/2 client sends: preface and empty SETTINGS frame. A server replies with its own SETTINGS
# frame (RFC 9113, 3.4).
_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def tpu_strategy(tpu: str | None = None) -> Any:
    """Returns a tf.distribute.TPUStrategy, or the default strategy if no TPU is attached.

    Create layers and optimizers in the strategy's scope(). Without a TPU the scope changes nothing, and tables are
    plain variables on the CPU, with the same checkpoints as on a TPU. One log line names the choice. The metadata
    server and the environment are read only if `tpu` names a TPU, and only after its address accepted a connection
    within 3 s, because TensorFlow's own resolver waits without a limit.

    Args:
      tpu: None: a TPU attached to this machine, if any. "local" requires such a TPU; a name (often in the variable
        TPU_NAME) or "grpc://host:port" requires that one.

    Raises:
      ExportError: `tpu` names a TPU that can not be used.
    """
    if tpu is None and not _is_attached():
        strategy = tf.distribute.get_strategy()
        device = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
        _logger.warning("no TPU is attached: training with the default strategy on the %s", device)
        return strategy
    name = tpu or "local"
    try:
        if name == "local":
            if not _is_attached():
                raise ExportError("no TPU is attached to this machine")
        else:
            _check_reachable(name)
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(name)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        strategy = tf.distribute.TPUStrategy(resolver)
    except (ExportError, OSError, RuntimeError, ValueError, tf.errors.OpError) as error:
        raise ExportError(f"TPU {name!r} can not be used: {error}") from error
    _logger.warning("training on TPU %r with %d cores", name, strategy.num_replicas_in_sync)
    return strategy


def _is_attached() -> bool:
    # TensorFlow lists the machine's TPU chips as physical devices even before it starts the TPU's runtime.
    return any(device.device_type in ("TPU", "TPU_SYSTEM") for device in tf.config.list_physical_devices())


def _check_reachable(name: str) -> None:
    host, port = _METADATA_SERVER
    if name.startswith("grpc://"):
        host, _, given = name.removeprefix("grpc://").partition(":")
        port = int(given or _WORKER_PORT)
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S) as connection:
            if name.startswith("grpc://"):
                # If the program at this port does not speak gRPC, TensorFlow would wait for its reply forever.
                connection.sendall(_HTTP2_HELLO)
                if not connection.recv(1):
                    raise OSError("it does not speak gRPC")
    except OSError as error:
        raise ExportError(f"no answer of {host}:{port} within {_CONNECT_TIMEOUT_S:.0f} s ({error})") from error


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
