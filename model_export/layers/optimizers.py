"""Checks the optimizers of TPUEmbedding tables, and converts new Keras optimizers to legacy ones for the layer.

The layer accepts four: SGD, Adagrad, Adam and FTRL, each without clipping by norm, momentum, decay or averages. TFRS
accepts them as a string, as an object of tf.tpu.experimental.embedding, or as a tf.keras.optimizers.legacy object.
"""

from __future__ import annotations

from typing import Any

from model_export.tensorflow_setup import tf

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
