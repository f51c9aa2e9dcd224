"""Which optimizers may train the tables of a TPUEmbedding layer, and the new Keras ones in a form the layer takes.

A TPU knows four: SGD, Adagrad, Adam and FTRL, each without clipping by norm, momentum, decay or averages. TFRS takes
them as a string, as an object of tf.tpu.experimental.embedding, or as a tf.keras.optimizers.legacy object.
"""

from __future__ import annotations

from typing import Any

from model_export.tensorflow_setup import tf

embedding = tf.tpu.experimental.embedding

_NAMES = ("sgd", "adagrad", "adam", "ftrl")
_ON_TPU = (embedding.SGD, embedding.Adagrad, embedding.Adam, embedding.FTRL)
_LEGACY = ("SGD", "Adagrad", "Adam", "Ftrl")
# New Keras class -> fields that the legacy class of the same name has too, and fields that must keep their value.
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
    """Returns an optimizer as TFRS's layer takes it.

    None, a name, a tf.tpu.experimental.embedding object and a legacy Keras optimizer come back themselves. A new Keras
    SGD, Adagrad or Adam comes back as a legacy one with the same settings, schedule included, which updates tables and
    slots alike (Adagrad adds its epsilon outside the square root: 4e-7 of a step at the default). It is a new object
    with an iteration count of its own: train the tables with it, not with the one passed in.

    Raises:
      ValueError: a TPU has no such optimizer, or not with such a setting; the message says what to use. New Keras Ftrl
        is among them, because it sets rows to zero that no example has touched.

    Source: TensorFlow 2.21, tf_keras/src/optimizers and optimizers/legacy; TFRS 0.7.7 for what it takes.
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
    # TFRS checks the other settings itself, but would drop these two without a word.
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
    rate = optimizer._learning_rate  # the public property gives a schedule's present value
    if not isinstance(rate, tf.keras.optimizers.schedules.LearningRateSchedule):
        rate = float(rate)
    legacy = getattr(tf.keras.optimizers.legacy, name)
    return legacy(learning_rate=rate, name=optimizer.name, **{field: config[field] for field in same})
