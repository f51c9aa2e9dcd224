"""A lookup's features as rows of a plan for direct.gather, for requests that name a certain set of inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from service.core.manifest import LookupFeature
from service.core.types import Array, SignatureSpec
from service.direct import gather
from service.direct.scan import INT32, INT64, MAX_INPUTS
from service.lookup.plan import POLICIES, FeaturePlan, combiner_number

_NUMBERS = {"int32": INT32, "int64": INT64}
_TABLE_COLUMNS = (gather.TABLE_DTYPE, gather.TABLE_AT, gather.SCALES_AT, gather.VOCABULARY_SIZE, gather.DIM)


class PlannedFeatures(NamedTuple):
    """What a request looks up.

    plan: [F, COLUMNS of direct.gather] int64.
    row_inputs: of each feature, the row of what was found that counts rows, and how many entries it has more than that.
    outputs: of each feature, its name and the shape of one row.
    row_bytes: of one row of all of them.
    """

    plan: Array
    row_inputs: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    row_bytes: int

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
      features: by a name each, such as its output's; in the order of the answer where each is an output.
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
        if not feature.is_plain:
            return None
        used.update(name for name in inputs if name is not None)
        plan.append(_plan_row(feature, spec, positions))
        row_inputs.append((positions[lookup.row_splits], 1) if lookup.row_splits else (positions[lookup.ids], 0))
        dim = feature.table.info.embedding_dim
        length = lookup.max_sequence_length
        outputs.append((output, (dim,) if length is None else (length, dim)))
    if not 0 < len(plan) <= MAX_INPUTS or used != positions.keys():
        return None
    row_bytes = sum(4 * math.prod(shape) for _, shape in outputs)
    return PlannedFeatures(np.array(plan, np.int64), tuple(row_inputs), tuple(outputs), row_bytes)


def _rows_that_need_ids(lookup: LookupFeature) -> int:
    if lookup.on_empty_row != "zeros":
        return gather.ALL_ROWS
    return gather.LAST_ROW if lookup.trailing_empty_rows == "cut" else gather.NO_ROW


def _plan_row(feature: FeaturePlan, spec: SignatureSpec, positions: Mapping[str, int]) -> list[int]:
    lookup = feature.feature
    row = [-1] * gather.COLUMNS
    row[gather.IDS_INPUT] = positions[lookup.ids]
    row[gather.IDS_DTYPE] = _NUMBERS.get(spec.inputs[lookup.ids].dtype, -1)
    if lookup.row_splits is not None:
        row[gather.SPLITS_INPUT] = positions[lookup.row_splits]
        row[gather.SPLITS_DTYPE] = _NUMBERS[spec.inputs[lookup.row_splits].dtype]
    if lookup.weights is not None and lookup.weights in positions:
        row[gather.WEIGHTS_INPUT] = positions[lookup.weights]
    for column, value in zip(_TABLE_COLUMNS, feature.table.place, strict=True):
        row[column] = value
    row[gather.POLICY] = POLICIES[lookup.on_bad_id]
    row[gather.DEFAULT_ROW] = lookup.default_row
    row[gather.COMBINER] = combiner_number(lookup)
    row[gather.AT_LEAST_ONE] = lookup.mean_divisor == "at_least_one"
    row[gather.POSITIVE_ONLY] = lookup.on_nonpositive_weight == "drop"
    row[gather.MAX_IDS] = lookup.max_ids_per_row or 0
    row[gather.IS_TRUNCATED] = lookup.on_too_many_ids == "truncate"
    row[gather.LENGTH] = lookup.max_sequence_length or 0
    row[gather.POSITION] = feature.position
    row[gather.NEEDS_IDS] = _rows_that_need_ids(lookup)
    return row
