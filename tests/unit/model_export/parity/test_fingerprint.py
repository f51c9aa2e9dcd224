"""fingerprint64() gives TensorFlow's fingerprint for keys of every length."""

from __future__ import annotations

import numpy as np
import pytest

from model_export.parity.fingerprint import fingerprint64

pytestmark = pytest.mark.tf


def test_keys_of_every_length_fall_into_tensorflows_buckets() -> None:
    from model_export.tensorflow_setup import tf

    rng = np.random.default_rng(0)
    keys = [rng.bytes(size) for size in range(260)]
    buckets = 2**62 - 57  # so many that two different fingerprints hardly fall into one bucket
    theirs = tf.strings.to_hash_bucket_fast(keys, buckets).numpy()
    assert [fingerprint64(key) % buckets for key in keys] == theirs.tolist()
