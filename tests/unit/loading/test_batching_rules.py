"""Decides which versions are batched, and with the parameters of which file."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.errors import ArtifactError, InvalidRequest
from service.loading.loader import DEFAULT, PER_MODEL_FILE, BatchingRules, read_rules
from service.wire.config_protos import BatchingParameters


@pytest.mark.parametrize("text", [None, "max_batch_size { value: 2 }"])
def test_per_model_only_what_has_a_file_is_batched_and_by_it_alone(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / PER_MODEL_FILE).write_text(text)
    rules = BatchingRules(BatchingParameters(max_batch_size=1), is_per_model=True)
    assert rules.parameters_of(tmp_path) == (None if text is None else BatchingParameters(max_batch_size=2))


def test_a_file_of_a_model_counts_only_by_its_flag(tmp_path: Path) -> None:
    (tmp_path / PER_MODEL_FILE).write_text("not looked at")
    common = BatchingParameters(max_batch_size=1)
    assert BatchingRules(common, is_per_model=False).parameters_of(tmp_path) == common


def test_a_model_whose_file_is_broken_does_not_load(tmp_path: Path) -> None:
    (tmp_path / PER_MODEL_FILE).write_text("allowed_batch_sizes: 2")
    with pytest.raises(ArtifactError, match=r"batching_params.pbtxt: Last entry in allowed_batch_sizes must match"):
        BatchingRules(DEFAULT, is_per_model=True).parameters_of(tmp_path)


def test_the_servers_file(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("max_batch_size { value: 2 }")
    assert read_rules(str(file), False) == BatchingRules(BatchingParameters(max_batch_size=2), False)
    assert read_rules("", True) == BatchingRules(DEFAULT, True)


@pytest.mark.parametrize(("data", "text"), [(None, "cannot read .*: No such file"), (b"\xff", "not UTF-8")])
def test_a_servers_file_that_can_not_be_used_is_refused(tmp_path: Path, data: bytes | None, text: str) -> None:
    file = tmp_path / "f"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(InvalidRequest, match=text):
        read_rules(str(file), False)
