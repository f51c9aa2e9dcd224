"""Describes lookup signatures with their tables: which features each output holds, and how the ids are looked up.

The native core looks ids up; service.core.description tells it what is described here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from service.artifact.manifest import LookupFeature, SignatureEntry
from service.artifact.signature_rules import LookupRules, OutputRule
from service.tables.remote_table import RemoteTable
from service.tables.table import MappedTable
from service.types import TableCounts
from service.versions.counts import FeatureIds

# Policies for bad ids (outside the table) by which such an id reads another id's row.
_READ_INSTEAD = ("default_row", "clamp", "wrap")


@dataclass(frozen=True, slots=True)
class FeaturePlan:
    """A feature of a signature with the table that its ids are looked up in. Concurrency: any thread.

    dtype: dtype of the answer, float32 or the table's stored dtype. ids_rank: rank of its ids input; None: any but 0.
    """

    feature: LookupFeature
    table: MappedTable | RemoteTable
    dtype: str = "float32"
    ids_rank: int | None = 1

    def read_counts(self, ids: int, missing: int) -> TableCounts:
        read = ids if self.feature.on_bad_id in _READ_INSTEAD else ids - missing
        return TableCounts(ids, missing, 0, max(read, 0) * self.table.row_bytes)

    def feature_ids(self, ids: int, missing: int) -> FeatureIds:
        return FeatureIds(ids, missing, missing if self.feature.on_bad_id in _READ_INSTEAD else 0)


class SignaturePlan(NamedTuple):
    """The features and outputs of a lookup signature, by name. Concurrency: any thread.

    max_rows: largest number of rows that a request may have; None: there is no limit.
    """

    features: Mapping[str, FeaturePlan]
    outputs: Mapping[str, OutputRule]
    max_rows: int | None = None


def signature_plan(
    entry: SignatureEntry,
    feature_tables: Mapping[str, str],
    tables: Mapping[str, MappedTable | RemoteTable],
    rules: LookupRules,
) -> SignaturePlan:
    dtypes = {part: rule.dtype for rule in rules.outputs.values() for part in rule.parts}
    features = {
        name: FeaturePlan(lookup, tables[feature_tables[name]], dtypes.get(name, "float32"), rules.ids_ranks[name])
        for name, lookup in entry.features.items()
    }
    return SignaturePlan(features, rules.outputs, entry.batch_sizes[-1] if entry.batch_sizes else None)
