"""String vocabularies: what a client calls a thing, to the row of its table."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from service.core.errors import ArtifactError, IdOutOfRange
from service.core.manifest import Manifest, VocabularyEntry
from service.core.types import Array


class Vocabulary:
    """Maps strings to row ids. Concurrency: any thread."""

    __slots__ = ("_ids", "_oov_id")

    def __init__(self, ids: dict[bytes, int], oov_id: int | None) -> None:
        self._ids = ids
        self._oov_id = oov_id

    def ids_of(self, strings: Array, input_name: str) -> Array:
        """Returns int64 ids, of the same shape, of object strings (bytes or str).

        Raises:
          IdOutOfRange: a string is not in the vocabulary and it has no OOV row.
        """
        out = np.empty(strings.size, np.int64)
        for i, string in enumerate(strings.reshape(-1).tolist()):
            key = string.encode() if isinstance(string, str) else bytes(string)
            found = self._ids.get(key, self._oov_id)
            if found is None:
                raise IdOutOfRange(
                    f'input "{input_name}": {key.decode(errors="replace")!r} at position {i} is not in its vocabulary '
                    f"of {len(self._ids)} strings."
                )
            out[i] = found
        return out.reshape(strings.shape)


def open_vocabularies(artifact: Path, manifest: Manifest) -> dict[str, Vocabulary]:
    """Reads the vocabulary files of an artifact; raises ArtifactError naming the file."""
    return {name: _read(artifact / entry.file, entry) for name, entry in manifest.vocabularies.items()}


def _read(path: Path, entry: VocabularyEntry) -> Vocabulary:
    try:
        # Only the newline, or CR LF, ends a line, as in TensorFlow's TextFileInitializer; strings may hold the rest.
        lines = [line.removesuffix(b"\r") for line in path.read_bytes().removesuffix(b"\n").split(b"\n")]
    except (OSError, ValueError) as error:  # ValueError: no file can have that name
        raise ArtifactError(f"cannot read vocabulary {str(path)!r}: {error}") from error
    if len(lines) != entry.size:
        raise ArtifactError(f"vocabulary {path} has {len(lines)} lines, its manifest says {entry.size}")
    ids = {line: entry.first_id + i for i, line in enumerate(lines)}
    if len(ids) != len(lines):
        raise ArtifactError(f"vocabulary {path} holds a string twice")
    return Vocabulary(ids, entry.oov_id)
