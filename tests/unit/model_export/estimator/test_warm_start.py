"""Variables start with the values of another model, until their own model has a checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_export.estimator.checkpoints import WarmStartSettings, warm_start_settings
from tests.unit.model_export.estimator.small_model import TABLE_NAME, estimator_of, input_fn, one_epoch

pytestmark = pytest.mark.tf


def test_a_path_is_a_checkpoint_its_folder_or_a_saved_model(tmp_path: Path) -> None:
    assert warm_start_settings(None) is None
    assert warm_start_settings(str(tmp_path)) == WarmStartSettings(str(tmp_path))
    given = WarmStartSettings("x", None)
    assert warm_start_settings(given) is given
    (tmp_path / "variables").mkdir()
    (tmp_path / "variables" / "variables.index").touch()
    assert warm_start_settings(tmp_path) == WarmStartSettings(str(tmp_path / "variables" / "variables"))
    with pytest.raises(ValueError, match="must be a string or a WarmStartSettings, instead got <class 'int'>"):
        warm_start_settings(3)
    with pytest.raises(ValueError, match="`ckpt_to_initialize_from` MUST be set"):
        WarmStartSettings("")


def test_tables_and_weights_start_from_another_model_until_there_is_a_checkpoint(tmp_path: Path) -> None:
    first = estimator_of(tmp_path / "first").train(input_fn, steps=3)
    renamed = WarmStartSettings(first.model_dir, var_name_to_prev_var_name={"weight": "weight"})
    second = estimator_of(tmp_path / "second", warm_start_from=renamed)
    assert second.evaluate(one_epoch)["loss"] == first.evaluate(one_epoch)["loss"]
    (batch,) = second.predict(one_epoch, yield_single_examples=False)
    (expected,) = first.predict(one_epoch, yield_single_examples=False)
    np.testing.assert_array_equal(batch["vectors"], expected["vectors"])
    second.train(input_fn, steps=1)
    assert second.get_variable_value("global_step") == 1
    # Both estimators have the same rows after three steps and get the same batch. SGD has no state, so a first step of
    # `second` equals a fourth step of `first`.
    first.train(input_fn, steps=1)
    np.testing.assert_array_equal(second.get_variable_value(TABLE_NAME), first.get_variable_value(TABLE_NAME))
    again = estimator_of(tmp_path / "second", warm_start_from=str(tmp_path / "nothing here"))
    assert again.train(input_fn, steps=1).get_variable_value("global_step") == 2
