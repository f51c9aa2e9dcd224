"""Finds the fields that a graph parses from serialized tf.Examples, which a client feeds to a placeholder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from model_export.tensorflow_setup import tf


@dataclass(frozen=True, slots=True)
class ExampleFields:
    """Fields of a tf.Example. dense: name -> (dtype, fixed number of values); other fields have any length."""

    names: tuple[str, ...] = ()
    dense: dict[str, tuple[str, int]] = field(default_factory=dict)


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
