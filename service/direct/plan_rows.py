"""A lookup's features as rows of a plan for direct.gather, for requests that name a certain set of inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from service.core.types import Array, SignatureSpec
from service.direct.scan import MAX_INPUTS
from service.direct.signature import plan_row
from service.lookup.plan import FeaturePlan


class PlannedFeatures(NamedTuple):
    """What a request looks up.

    plan: [F, COLUMNS of direct.gather] int64.
    row_inputs: of each feature, the row of what was found that counts rows, and how many entries it has more than that.
    outputs: of each feature, its name and the shape of one row.
    """

    plan: Array
    row_inputs: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[str, tuple[int, ...]], ...]

    def rows(self, sizes: tuple[int, ...] | memoryview) -> int:
        """Returns how many rows each feature has, -1 where they differ; sizes: SIZE of each row of what was found."""
        rows = -1
        for position, extra in self.row_inputs:
            size = sizes[position] - extra
            if rows not in (-1, size):
                return -1
            rows = size
        return rows


def plan_features(
    spec: SignatureSpec, features: Mapping[str, FeaturePlan], positions: Mapping[str, int]
) -> PlannedFeatures | None:
    """Returns what a request that holds certain inputs looks up; None where that takes the general path.

    Args:
      features: by output, in the order of the answer.
      positions: of each input's row in what a scan found.
    """
    if not spec.required <= positions.keys():
        return None
    used: set[str] = set()
    plan, row_inputs, outputs = [], [], []
    for output, feature in features.items():
        lookup = feature.feature
        inputs = [name for name in (lookup.ids, lookup.row_splits, lookup.weights) if name in positions]
        if not inputs:
            continue
        if lookup.ids not in positions or (lookup.row_splits or lookup.ids) not in positions:
            return None
        if spec.inputs[lookup.ids].takes_keys:
            # Its integers are keys of a vocabulary, not rows.
            return None
        used.update(name for name in inputs if name is not None)
        plan.append(plan_row(feature, spec, positions))
        row_inputs.append((positions[lookup.row_splits], 1) if lookup.row_splits else (positions[lookup.ids], 0))
        dim = feature.table.weights.shape[1]
        length = lookup.max_sequence_length
        outputs.append((output, (dim,) if length is None else (length, dim)))
    if not 0 < len(plan) <= MAX_INPUTS or used != positions.keys():
        return None
    return PlannedFeatures(np.array(plan, np.int64), tuple(row_inputs), tuple(outputs))


def row_limit(features: Mapping[str, FeaturePlan]) -> int | None:
    """Returns how many rows a request may have, None where there is no limit."""
    return min((feature.max_rows for feature in features.values() if feature.max_rows is not None), default=None)
