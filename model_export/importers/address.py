"""Parses the address of a table to import: PATH[:NAME][?OPTION=VALUE&...].

>>> address = Address.parse("vectors.parquet?key=user_id&vector=embedding")
>>> address.path.name, address.name, dict(address.options)
('vectors.parquet', None, {'key': 'user_id', 'vector': 'embedding'})
>>> Address.parse("model.safetensors:encoder.emb").name
'encoder.emb'
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
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
