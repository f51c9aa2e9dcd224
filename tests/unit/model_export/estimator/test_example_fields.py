"""Finds the fields that a graph parses from tf.Examples."""

from __future__ import annotations

import pytest

from model_export.estimator.export_source import ExampleFields, example_fields
from model_export.tensorflow_setup import tf

pytestmark = pytest.mark.tf


def test_fields_by_kind() -> None:
    with tf.Graph().as_default():
        examples = tf.compat.v1.placeholder(tf.string, [None])
        assert example_fields(examples) is None
        spec = {
            "ids": tf.io.VarLenFeature(tf.int64),
            "ages": tf.io.FixedLenFeature([2], tf.float32),
            "one": tf.io.FixedLenFeature([], tf.int64),
        }
        tf.io.parse_example(examples, spec)
        assert example_fields(examples) == ExampleFields(
            ("ids", "ages", "one"), {"ages": ("float32", 2), "one": ("int64", 1)}
        )
