"""Checks which values an input_fn may return."""

from __future__ import annotations

from typing import Any

import pytest

from model_export.estimator.session_training import features_and_labels
from model_export.tensorflow_setup import tf

pytestmark = pytest.mark.tf


@pytest.mark.parametrize("kind", ["dataset", "tensors"])
@pytest.mark.parametrize("has_labels", [True, False])
def test_datasets_and_tensors_with_and_without_labels(kind: str, has_labels: bool) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        given: Any = ({"a": tf.constant([3])}, tf.constant([4])) if has_labels else {"a": tf.constant([3])}
        if kind == "dataset":
            given = tf.data.Dataset.from_tensors(given)
        features, labels, hooks = features_and_labels(given)
        assert len(hooks) == (kind == "dataset")
        for hook in hooks:
            hook.after_create_session(session, None)
        fetched = session.run((features, labels) if has_labels else (features,))
        assert fetched[0]["a"].tolist() == [3]
        assert (labels is None) != has_labels and (not has_labels or fetched[1].tolist() == [4])


def test_another_number_of_elements_is_refused() -> None:
    with pytest.raises(ValueError, match="as a len 2 tuple, got 3 elements"):
        features_and_labels((1, 2, 3))
