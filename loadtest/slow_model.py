"""Writes a SavedModel that takes long to compute 2 x, because it also runs dense layers whose result it discards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_WIDTH = 256


def write_slow_model(folder: Path, layers: int) -> None:
    """Writes a version folder of the slow model; each layer costs about 17 million multiplications."""
    import tensorflow

    tf: Any = tensorflow

    class Slow(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.kernel = tf.Variable(tf.eye(_WIDTH) * 0.5)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])  # type: ignore[untyped-decorator]
        def answer(self, x: Any) -> dict[str, Any]:
            state = tf.fill([_WIDTH, _WIDTH], tf.reduce_sum(x))
            for _ in range(layers):
                state = tf.matmul(state, self.kernel)
            # min(abs(sum), 0) is always 0, which TensorFlow's optimizer does not recognize, so it does not remove the
            # layers.
            return {"y": 2.0 * x + tf.minimum(tf.abs(tf.reduce_sum(state)), 0.0)}

    module = Slow()
    tf.saved_model.save(module, str(folder), signatures=module.answer)
