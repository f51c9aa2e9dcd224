"""Finds the rows of a table by keys of its vocabularies, and the keys of rows; errors are in the client's terms."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from service.artifact.row_labels import RowLabels
from service.errors import IdOutOfRange, InputMismatch
from service.tables.vocabulary import OpenedVocabulary, StringVocabulary
from service.types import Array


class TableKeys:
    """The vocabularies of one table, by feature, as engine.neighbors declares. Concurrency: any thread."""

    def __init__(self, table: str, vocabularies: Mapping[str, OpenedVocabulary]) -> None:
        self._table = table
        self._vocabularies = vocabularies

    def ids_of(self, keys: Array, feature: str) -> Array:
        """Returns [N] int64 ids of [N] keys; an unknown key is an error, whatever a lookup reads for it.

        Args:
          feature: the feature whose vocabulary has the keys; "" if the table has only one vocabulary.

        Raises:
          InputMismatch: the feature has no vocabulary, or keys of another dtype.
          IdOutOfRange: a key is not in the vocabulary.
        """
        chosen = self._named(feature) or self._only()
        if chosen is None:
            if self._vocabularies:
                features = ", ".join(sorted(self._vocabularies))
                raise InputMismatch(
                    f'table "{self._table}" has several vocabularies: name one by "feature", of {features}.'
                )
            raise InputMismatch(f'table "{self._table}" has no vocabulary: send ids.')
        if (chosen.key_dtype == "string") != (keys.dtype == object):
            raise InputMismatch(f'table "{self._table}": its keys are {chosen.key_dtype}.')
        if not chosen.has_keys:
            return chosen.ids_of(keys, "keys")
        # For an unknown key, a lookup may read an OOV bucket or a default row. Neither is the key's own row, so
        # ids_of() refuses every unknown key.
        ids = chosen.known_ids(keys)
        for place in np.flatnonzero(ids < 0)[:1].tolist():
            key = keys[place]
            shown = key.decode(errors="replace") if isinstance(key, bytes) else key
            raise IdOutOfRange(f'table "{self._table}": key {shown!r} at position {place} is not in its vocabulary.')
        return ids

    def keys_of(self, ids: Array, feature: str) -> Array | None:
        """Returns the keys (bytes or int) of ids of any shape; None for an id without a key.

        Returns None if no feature is named and the table has not exactly one vocabulary with keys.

        Raises:
          InputMismatch: the feature has no vocabulary.
        """
        chosen = self._named(feature) or self._only()
        return None if chosen is None or not chosen.has_keys else chosen.keys_of(ids)

    @property
    def labels(self) -> RowLabels | None:
        """The keys as labels of their rows, if the table has one vocabulary, of strings; else None."""
        chosen = self._only()
        if not isinstance(chosen, StringVocabulary) or not chosen.has_keys:
            return None
        index = chosen.index
        return RowLabels(index.data, index.keys, index.first_id)

    def _named(self, feature: str) -> OpenedVocabulary | None:
        if not feature:
            return None
        if feature not in self._vocabularies:
            known = ", ".join(sorted(self._vocabularies)) or "none"
            raise InputMismatch(f'table "{self._table}" has no feature "{feature}" with keys. Features: {known}.')
        return self._vocabularies[feature]

    def _only(self) -> OpenedVocabulary | None:
        distinct = {id(vocabulary): vocabulary for vocabulary in self._vocabularies.values()}
        return next(iter(distinct.values())) if len(distinct) == 1 else None
