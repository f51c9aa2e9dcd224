"""The trial of a wheel reaches each kernel of the native core that reads rows; each process draws the same requests."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

from loadtest.live_server import ROOT
from loadtest.replay.__main__ import MODELS
from tests.integration.process import environment
from tests.toy_model import manifest_of
from tests.toy_sums import COMBINERS, DTYPES, SUMMATIONS


def test_a_wheel_is_tried_with_each_dtype_combiner_and_order_over_rows_of_every_group_of_columns(
    tmp_path: Path,
) -> None:
    (names,) = re.findall(r"--models (\S+)", (ROOT / ".ci" / "release").read_text())
    tried = set()
    # The demo is left out, because its export trains a model.
    for name in set(names.split(",")) - {"movielens"}:
        MODELS[name](tmp_path / name)
        manifest = manifest_of(tmp_path / name / "1")
        for signature in manifest.signatures.values():
            for feature, entry in signature.features.items():
                table = manifest.tables[manifest.features[feature].table]
                # The core reads groups of 64, 32 and 8 columns, and the rest one by one.
                if all(table.embedding_dim & group for group in (64, 32, 8, 7)):
                    tried.add((table.dtype, entry.combiner, entry.summation))
    assert tried == set(itertools.product(DTYPES, COMBINERS, SUMMATIONS))


DRAWN = """
from random import Random
from loadtest.model_samples import ServedModel, Signature
from loadtest.replay.drawing import _drawn

inputs = {name: ("DT_INT64", (-1,)) for one in "abcde" for name in (f"{one}__values", f"{one}__row_splits")}
print(_drawn(Random(1), ServedModel("m", 1, (), {}), Signature("s", "", inputs)).nested)
"""


def test_a_request_is_the_same_in_each_process() -> None:
    told = set()
    for seed in "123":
        command = [sys.executable, "-c", DRAWN]
        done = subprocess.run(
            command, cwd=ROOT, env=environment(PYTHONHASHSEED=seed), capture_output=True, text=True, check=True
        )
        told.add(done.stdout)
    assert len(told) == 1 and "e__values" in told.pop()
