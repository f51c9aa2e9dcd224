"""Where an imported table lies: PATH[:NAME][?OPTION=VALUE&...], packed, in an archive, or plain.

>>> address = Address.parse("vectors.parquet?key=user_id&vector=embedding")
>>> address.path.name, address.name, dict(address.options)
('vectors.parquet', None, {'key': 'user_id', 'vector': 'embedding'})
>>> Address.parse("model.safetensors:encoder.emb").name
'encoder.emb'
"""

from __future__ import annotations

import gzip
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import unquote

from model_export.errors import ExportError

_OPTIONS = re.compile(r"\w+=[^?]*")


@dataclass(frozen=True, slots=True)
class Address:
    """The parsed address of a table to import.

    name: the array or variable in the file; None if the address has no name.
    scratch: folder for temporary files, on the disk that the model is written to; None: the system's default.
    """

    text: str
    path: Path
    name: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    scratch: Path | None = None

    @staticmethod
    def parse(text: str, scratch: Path | None = None) -> Address:
        """Parses the address of a table to import; decodes %26, %3D and the like in its options; raises ExportError."""
        rest, separator, query = text.rpartition("?")
        options: dict[str, str] = {}
        if separator and _OPTIONS.fullmatch(query):
            for part in query.split("&"):
                key, equals, value = part.partition("=")
                if not (key and equals) or key in options:
                    raise ExportError(f"{text}: {part!r} is no option; write ?key=COLUMN&vector=COLUMN")
                options[key] = unquote(value)
        else:
            rest = text
        # A path may contain a colon, and so may a table's name (Keras 2: "embeddings:0"). The path is the longest part
        # that exists; if none does, it ends at the last colon.
        colons = [at for at, letter in enumerate(rest) if letter == ":"][::-1]
        end = next((at for at in (len(rest), *colons) if Path(rest[:at]).exists()), colons[0] if colons else len(rest))
        name = rest[end + 1 :] if 0 < end < len(rest) else None
        return Address(text, Path(rest if name is None else rest[:end]), name, options, scratch)

    def chosen(self, names: Sequence[str], what: str) -> str:
        """Returns the table's name: from the address or, if the address has none, the only name in the file.

        Raises:
          ExportError: the file has no such name, or has several and the address names none; lists the names.
        """
        listed = f"its {what} are {', '.join(map(repr, names[:50]))}{' ...' if len(names) > 50 else ''}"
        if self.name is None:
            if len(names) == 1:
                return names[0]
            raise ExportError(f"{self.path}: say which table with {self.path.name}:NAME; {listed if names else 'none'}")
        if self.name not in names:
            raise ExportError(f"{self.path} has no {self.name!r}; {listed if names else 'it has none'}")
        return self.name


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
