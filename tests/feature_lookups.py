"""Looks up single features in the native core and in the reference, for tests that compare their numbers."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from service.artifact.manifest import LookupFeature
from service.native_tables import NATIVE_TABLES
from service.process.trial import lookup_of
from service.reference.lookups import look_up
from service.reference.rows import Table
from service.types import TensorSpec
from tests import oracle
from tests.stored_tables import StoredTable

Where = Literal["core", "reference"]
WHERE: tuple[Where, ...] = ("reference",) if NATIVE_TABLES is None else ("core", "reference")


def looked_up(where: Where, feature: LookupFeature, table: StoredTable, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the vectors of a feature's ids; raises InvalidRequest."""
    mapped = table.mapped
    if where == "core":
        specs = {name: TensorSpec(name, array.dtype.name, (None,)) for name, array in inputs.items()}
        return lookup_of(feature, mapped, specs)(inputs)
    scales = table.scales[:, None] if table.scales.size else None
    return look_up(feature, Table(mapped.info, mapped.weights, scales), inputs)


def combine(
    where: Where, table: StoredTable, rows: oracle.Rows, *, weights: oracle.Weights | None = None, **fields: Any
) -> np.ndarray:
    """Combines the vectors of each row's ids by the fields of a LookupFeature; raises InvalidRequest."""
    values, splits = oracle.ragged(rows)
    inputs = {"ids": values, "splits": splits}
    if weights is not None:
        inputs["weights"] = oracle.ragged(weights, "float32")[0]
    feature = LookupFeature("ids", "splits", None if weights is None else "weights", **fields)
    return looked_up(where, feature, table, inputs)


def gather(where: Where, table: StoredTable, ids: list[int], **fields: Any) -> np.ndarray:
    """Returns the vector of each id; raises InvalidRequest."""
    return looked_up(where, LookupFeature("ids", **fields), table, {"ids": np.array(ids, np.int64)})


def in_oracle(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a LookupFeature as the arguments of tests.oracle."""
    told = {
        "at_least_one": fields.get("mean_divisor") == "at_least_one",
        "max_ids": fields.get("max_ids_per_row"),
        "truncate": fields.get("on_too_many_ids") == "truncate",
        "positive_only": fields.get("on_nonpositive_weight") == "drop",
    }
    return told | {name: fields[name] for name in ("combiner", "on_bad_id", "default_row") if name in fields}
