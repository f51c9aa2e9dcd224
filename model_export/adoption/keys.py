"""Finds the vocabulary or hash by which a graph maps keys to rows, from its lookup tables and from trial keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from model_export.adoption.opened_graph import Read, SignatureGraph
from model_export.adoption.probing import Probe
from model_export.adoption.roles import Roles, width_of
from model_export.parity.fingerprint import fingerprint64
from service.artifact.manifest import KeyDtype, OovPolicy, VocabularyEntry
from service.types import Array

# Trial keys that a vocabulary probably lacks. Their capitals, spaces, signs and digits reveal a graph that normalizes
# keys.
_STRANGERS = (
    *(
        "no such key",
        "No Such KEY",
        " leading",
        "trailing ",
        "two  spaces",
        "tab\tand\nline",
        "a,b;c|d",
        "~",
        "0",
        "007",
    ),
    *("Ω unknown", "ÄÖÜ", "äöü", "x" * 300),
    *(f"stranger {n}" for n in range(60)),
)
_INTEGER_STRANGERS = tuple(10**9 + 7 * n for n in range(30)) + tuple(-5 - n for n in range(30))
# The largest number of keys that a graph is asked for one by one, after it failed on all keys in one request, or
# returned another number of ids for them. More keys are given up.
_MOST_SINGLY = 2000
_HASHES = ("StringToHashBucketFast",)


@dataclass(frozen=True, slots=True)
class FoundKeys:
    """A vocabulary found in a graph: the key lines[i] means row entry.first_id + i. The caller sets entry.file."""

    entry: VocabularyEntry
    lines: tuple[bytes, ...]


def find_keys(probe: Probe, graph: SignatureGraph, read: Read, roles: Roles) -> FoundKeys | None:
    """Returns the vocabulary or hash by which a graph maps an input's keys to row ids; None if the graph has neither.

    The returned entry says that an unknown key without a row is an error; feature_search then tries whether the graph
    drops it.
    """
    tensor = graph.spec.inputs[roles.ids]
    if tensor.dtype not in ("string", "int64"):
        return None
    search = _Search(probe, graph, read, roles)
    if len(read.gathers) > 1:
        return None
    exported = probe.exported_tables(graph, read.gathers[0].ids)
    if len(exported) > 1 or (exported and exported[0].dtype.kind != ("O" if tensor.dtype == "string" else "i")):
        return None
    known = exported[0].reshape(-1) if exported else np.empty(0, object)
    return search.vocabulary(known) if known.size else search.hashed()


class _Search:
    def __init__(self, probe: Probe, graph: SignatureGraph, read: Read, roles: Roles) -> None:
        self._probe, self._graph, self._read, self._roles = probe, graph, read, roles
        tensor = graph.spec.inputs[roles.ids]
        self._width = 1 if roles.row_splits else width_of(tensor)
        self._size = probe.tables[read.key].info.vocabulary_size
        self._key_dtype: KeyDtype = "string" if tensor.dtype == "string" else "int64"

    def vocabulary(self, known: Array) -> FoundKeys | None:
        rows = self._rows(known)
        if rows is None:
            return None
        order = np.argsort(rows)
        first = int(rows[order[0]])
        if not np.array_equal(rows[order], np.arange(first, first + known.size)):
            return None
        lines = tuple(_line(key) for key in known[order].tolist())
        if len(set(lines)) != len(lines) or any(b"\n" in line or line.endswith(b"\r") for line in lines):
            return None
        rest = self._strangers(set(lines))
        if rest is None:
            return None
        first_oov, buckets, on_oov = rest
        entry = VocabularyEntry(
            file="?",
            size=len(lines),
            first_id=first,
            oov_id=first_oov if buckets == 1 else None,
            num_oov_buckets=buckets if buckets > 1 else 0,
            first_oov_id=first_oov if buckets > 1 and first_oov != first + len(lines) else None,
            on_oov=on_oov,
            key_dtype=self._key_dtype,
        )
        return self._with_empty_key(entry, lines)

    def hashed(self) -> FoundKeys | None:
        rest = self._strangers(set()) if self._buckets() else None
        if rest is None or rest[1] < 1:
            return None
        entry = VocabularyEntry(
            file="", size=0, first_id=rest[0] or 0, num_oov_buckets=rest[1], key_dtype=self._key_dtype
        )
        return self._with_empty_key(entry, ())

    def _with_empty_key(self, entry: VocabularyEntry, lines: tuple[bytes, ...]) -> FoundKeys | None:
        if self._key_dtype != "string" or b"" in lines:
            return FoundKeys(entry, lines)
        rows = self._rows(np.array([b""], object))
        if rows is None:
            is_as_others = entry.on_oov == "error" and not entry.num_oov_buckets and entry.oov_id is None
            return FoundKeys(entry, lines) if is_as_others else None
        if entry.num_oov_buckets:
            usual: int | None = entry.first_bucket + fingerprint64(b"") % entry.num_oov_buckets
        else:
            usual = entry.oov_id
        row = int(rows[0])
        if row == usual or (usual is None and not 0 <= row < self._size):
            return FoundKeys(entry, lines)
        return FoundKeys(replace(entry, empty_key_id=row), lines) if 0 <= row < self._size else None

    def _strangers(self, lines: set[bytes]) -> tuple[int | None, int, OovPolicy] | None:
        """Finds the rows of unknown keys: first row, number of rows, and on_oov; None if no rule explains them."""
        keys = [key for key in self._unknown(lines) if _line(key) not in lines]
        rows = self._rows(np.array(keys, object if self._key_dtype == "string" else np.int64))
        if rows is None or not ((rows >= 0) & (rows < self._size)).any():
            return None, 0, "error"
        if not ((rows >= 0) & (rows < self._size)).all():
            return None
        for buckets in self._buckets():
            hashes = np.array([fingerprint64(_line(key)) % buckets for key in keys])
            firsts = set((rows - hashes).tolist())
            if len(firsts) == 1 and (first := firsts.pop()) >= 0 and first + buckets <= self._size:
                return first, buckets, "error"
        return (int(rows[0]), 1, "error") if len(set(rows.tolist())) == 1 else None

    def _unknown(self, lines: set[bytes]) -> Sequence[bytes | int]:
        if self._key_dtype == "int64":
            return _INTEGER_STRANGERS
        some = sorted(lines)[:20]
        variants = {change(key) for key in some for change in (bytes.upper, bytes.lower, bytes.title)}
        variants |= {change % key for key in some for change in (b" %s", b"%s ", b"%s,")}
        return [*(text.encode() for text in _STRANGERS), *sorted(variants - lines - {b""})]

    def _buckets(self) -> list[int]:
        nodes = (self._graph.flat.nodes[n] for n in self._graph.flat.ancestors([self._read.gathers[0].ids]))
        return sorted({int(node.attr["num_buckets"].i) for node in nodes if node.op in _HASHES})

    def _rows(self, keys: Array) -> Array | None:
        """Returns the [N] ids that the graph computes from N keys; None if it fails or gives another number of ids."""
        found = self._ask(keys.tolist())
        if found is None and 1 < len(keys) <= _MOST_SINGLY:
            # A graph that looks up each distinct id once may compute fewer ids than keys were sent, so each key is sent
            # alone.
            singly = [self._ask([key]) for key in keys.tolist()]
            found = None if any(ids is None for ids in singly) else np.concatenate([i for i in singly if i is not None])
        return found

    def _ask(self, keys: list[Any]) -> Array | None:
        padded = keys + keys[:1] * (-len(keys) % self._width)
        rows = [padded[at : at + self._width] for at in range(0, len(padded), self._width)]
        ids = self._probe.ids(self._graph, self._read, self._roles.request(self._graph.spec, rows))
        return ids.reshape(-1)[: len(keys)].astype(np.int64) if ids is not None and ids.size == len(padded) else None


def _line(key: bytes | int) -> bytes:
    return key if isinstance(key, bytes) else str(key).encode()
