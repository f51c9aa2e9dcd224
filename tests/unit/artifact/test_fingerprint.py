"""Fingerprint64 is TensorFlow's, for every length that takes another path through the function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.artifact.hashes import fingerprint64

pytestmark = pytest.mark.tf


def test_equals_tensorflows_for_every_length_up_to_300(tf: Any) -> None:
    random = np.random.default_rng(0)
    texts = [random.bytes(length) for length in range(301) for _ in range(3)]
    texts += [byte * length for byte in (b"\0", b"\xff") for length in range(301)]
    theirs = tf.fingerprint(tf.constant(texts)[:, None]).numpy().view("<u8").reshape(-1)
    assert [fingerprint64(text) for text in texts] == theirs.tolist()


@pytest.mark.parametrize("num_buckets", [1, 2, 3, 1000, 2**40 + 1])
def test_its_remainder_is_the_bucket(tf: Any, num_buckets: int) -> None:
    texts = [text.encode() for text in ("", "a", "grün", "日本語", "🎬" * 20, "x" * 100, "-9223372036854775808")]
    theirs = tf.strings.to_hash_bucket_fast(tf.constant(texts), num_buckets).numpy()
    assert [fingerprint64(text) % num_buckets for text in texts] == theirs.tolist()
