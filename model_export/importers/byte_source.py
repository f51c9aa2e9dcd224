"""Opens a file to import for reading in order: as it is, or unpacked from gzip or from a zip archive."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from model_export.errors import ExportError
from model_export.importers.address import Address


@dataclass(frozen=True, slots=True)
class ByteSource:
    """The bytes of a file to import. member: the file in the zip archive `path`; None: `path` is no archive.

    >>> ByteSource(Path("glove.zip"), "glove.50d.txt").name
    'glove.zip:glove.50d.txt'
    """

    path: Path
    member: str | None = None

    @staticmethod
    def of(address: Address) -> ByteSource:
        """Returns the source of an address's bytes.

        Raises:
          ExportError: the archive can not be read, or has several files and the address names none of them.
        """
        if address.path.suffix != ".zip" or not address.path.is_file():
            return ByteSource(address.path)
        try:
            with zipfile.ZipFile(address.path) as archive:
                files = [info.filename for info in archive.infolist() if not info.is_dir()]
        except zipfile.BadZipFile as error:
            raise ExportError(f"{address.path} is no zip archive, or is cut short: {error}") from error
        # macOS adds a file of metadata for each file of an archive.
        files = sorted(name for name in files if not name.startswith("__MACOSX/"))
        return ByteSource(address.path, address.chosen(files, "files"))

    @property
    def name(self) -> str:
        return str(self.path) if self.member is None else f"{self.path}:{self.member}"

    @property
    def unpacked_name(self) -> str:
        """The name of the unpacked file, whose ending tells its format."""
        return self.path.name.removesuffix(".gz") if self.member is None else self.member

    @property
    def is_packed(self) -> bool:
        """Whether the file is compressed or in an archive, so that it can only be read in order."""
        return self.member is not None or self.path.suffix == ".gz"

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Opens the unpacked bytes; raises ExportError, also while the caller reads, if the compression is damaged."""
        try:
            if self.member is not None:
                with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as member:
                    yield cast(BinaryIO, member)
            elif self.is_packed:
                with gzip.open(self.path, "rb") as unpacked:
                    yield cast(BinaryIO, unpacked)
            else:
                with self.path.open("rb") as file:
                    yield file
        except (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile) as error:
            raise ExportError(f"{self.name} is damaged or cut short: {error}") from error
