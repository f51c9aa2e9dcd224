"""Reads and writes the objects below one URI of an object store, and describes an error of the store in one line.

Source: obstore 0.12, obstore.list, obstore.get, obstore.put and obstore.exceptions; object_store reads credentials
from the environment.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import from_url

from service.errors import InvalidRequest

# A server repeats a failed request to the object store at most twice, because its mirror tries again later, and shows
# the error meanwhile.
_RETRIES: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=20)}
# A program that uploads a version does not try again later, unlike a server, so its failed requests to the store are
# repeated for longer.
_PATIENT_RETRIES: Any = {"max_retries": 8, "retry_timeout": timedelta(seconds=120)}
_MAX_TEXT = 300
# Size in bytes of the parts in which a larger file is written to the store, and largest number of parts: a store takes
# at most 10,000, so a very large file has larger parts.
_PART_BYTES = 8 << 20
_MAX_PARTS = 9000
_NUM_PARTS = 4
_CHUNK_BYTES = 1 << 20


class StoreError(OSError):
    """The error that a request to the object store failed. text: one line on the reason, without secrets."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(number, text)
        self.text = text


class ObjectExists(StoreError):
    """The error that a new object was not written, because the object store has one of this name already."""


class StoredObject(NamedTuple):
    """An object of an object store that belongs to a version.

    path: relative to the version's folder. tag: changes with the object's content; "" if the store has no tags.
    """

    path: str
    num_bytes: int
    tag: str


class ObjectStore:
    """The access to the objects below one URI of an object store. Concurrency: any thread.

    Args:
      is_patient: repeat failed requests for two minutes, instead of twice.

    Raises:
      InvalidRequest: the URI, or a variable of the environment that names the store's account, can not be used.
    """

    def __init__(self, uri: str, *, is_patient: bool = False) -> None:
        self.uri = uri.rstrip("/")
        try:
            self._store: Any = from_url(self.uri, retry_config=_PATIENT_RETRIES if is_patient else _RETRIES)
        except (BaseError, ValueError) as error:
            raise InvalidRequest(f"base_path {uri} can not be used: {_one_line(error)}") from None

    def folders(self) -> list[str]:
        """Lists the names of the folders directly below the object store's URI. Raises StoreError."""
        try:
            prefixes = obstore.list_with_delimiter(self._store)["common_prefixes"]
        except Exception as error:
            raise _store_error(error) from None
        return [prefix.rstrip("/").rpartition("/")[2] for prefix in prefixes]

    def objects(self, folder: str) -> list[StoredObject]:
        """Lists all objects below a folder of the object store, sorted by path. Raises StoreError."""
        prefix = f"{folder}/"
        found = []
        try:
            for chunk in obstore.list(self._store, prefix, chunk_size=1000):
                found += [StoredObject(_below(one["path"], prefix), one["size"], one["e_tag"] or "") for one in chunk]
        except Exception as error:
            raise _store_error(error) from None
        # An object with an empty path, which has the name of the folder itself, is left out: some tools make such an
        # empty object for each folder.
        return sorted(one for one in found if one.path)

    def read(self, folder: str, one: StoredObject, begin: int, end: int) -> bytes:
        """Reads the bytes of an object from offset begin to offset end.

        Raises:
          StoreError: the object changed since it was listed, or could not be read to its end.
        """
        options: Any = {"range": (begin, end)}
        if one.tag:
            options["if_match"] = one.tag
        try:
            data = bytes(obstore.get(self._store, f"{folder}/{one.path}", options=options).bytes())
        except Exception as error:
            raise _store_error(error) from None
        if len(data) != end - begin:
            raise StoreError(errno.EIO, f"the store sent {len(data)} bytes of {one.path} for {end - begin}")
        return data

    def write(
        self,
        folder: str,
        path: str,
        file: Path,
        *,
        is_new: bool = False,
        progress: Callable[[int], None] = lambda done: None,
    ) -> None:
        """Writes a file to the object store as one object, which readers see whole or not at all.

        Args:
          is_new: write a small file only if no object has its name; a store without this condition writes it always.
          progress: called with the number of bytes that were handed to the store's client so far.

        Raises:
          ObjectExists: is_new, and an object has the name. StoreError: the store can not be written.
          OSError: the file can not be read.
        """
        key, num_bytes = f"{folder}/{path}", file.stat().st_size
        if num_bytes > _PART_BYTES and not is_new:
            part_bytes = max(_PART_BYTES, -(-num_bytes // _MAX_PARTS))
            with file.open("rb") as opened:
                chunks = _chunks(iter(lambda: opened.read(_CHUNK_BYTES), b""), progress)
                try:
                    obstore.put(self._store, key, chunks, chunk_size=part_bytes, max_concurrency=_NUM_PARTS)
                except Exception as error:
                    raise _store_error(error) from None
            return
        data = file.read_bytes()
        try:
            try:
                obstore.put(self._store, key, data, mode="create" if is_new else "overwrite", use_multipart=False)
            except NotSupportedError:
                obstore.put(self._store, key, data, use_multipart=False)
        except AlreadyExistsError:
            raise ObjectExists(errno.EEXIST, f"{path} exists") from None
        except Exception as error:
            raise _store_error(error) from None
        progress(num_bytes)


def _chunks(chunks: Iterator[bytes], progress: Callable[[int], None]) -> Iterator[bytes]:
    done = 0
    for chunk in chunks:
        yield chunk
        done += len(chunk)
        progress(done)


def _below(path: str, prefix: str) -> str:
    return path[len(prefix) :] if path.startswith(prefix) else ""


def _store_error(error: Exception) -> StoreError:
    """Converts an error of the library obstore to a StoreError; re-raises any other error, which is a fault of this
    program.
    """
    if not isinstance(error, BaseError | FileNotFoundError | ValueError | OSError):
        raise error
    text = str(error)
    if isinstance(error, PreconditionError):
        return StoreError(errno.ESTALE, "an object changed while it was read")
    if "NoSuchBucket" in text or "ContainerNotFound" in text or "specified bucket does not exist" in text:
        return StoreError(errno.ENOENT, "there is no such bucket")
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or re.search(r"\b(401|403) ", text):
        return StoreError(errno.EACCES, f"the store denies access: {_one_line(error)}")
    if isinstance(error, FileNotFoundError):
        return StoreError(errno.ENOENT, "an object is not there any more")
    needs = "; http:// needs AWS_ALLOW_HTTP=true" if "http://" in text and "builder error" in text else ""
    return StoreError(errno.EIO, f"the store can not be read: {_one_line(error)}{needs}")


def _one_line(error: Exception) -> str:
    """Returns an error's text as one line of at most _MAX_TEXT characters, without obstore's debug part and URL
    queries, which may hold secrets.
    """
    text = str(error).partition("\nDebug source")[0]
    # A duration would make each repetition of the same error look like another one, and the log would repeat it.
    text = re.sub(r"\?\S*| in [0-9.]+(?:ns|µs|ms|s)\b", "", " ".join(text.split()))
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"
