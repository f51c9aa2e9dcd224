"""The corpus on disk: the models, a description of the recording, and a file of requests for each form."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtest.replay.exchanges import Stored
from loadtest.replay.requests import Request


@dataclass(frozen=True, slots=True)
class About:
    """The server, the seed and the flags of a recording.

    server: the commit or folder of the server. flags: flags of the server besides those that all servers have.
    """

    server: str
    seed: int
    requests: int
    flags: tuple[str, ...]


class Corpus:
    """A folder of recorded requests and answers; it lies outside git."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.models = folder / "models"

    def forms(self) -> list[str]:
        """Returns the names of the recorded forms."""
        return sorted(file.name.removesuffix(".jsonl.gz") for file in self._folder.glob("*.jsonl.gz"))

    def about(self) -> About:
        """Reads the description of the recording."""
        found = json.loads((self._folder / "about.json").read_text())
        return About(**found | {"flags": tuple(found["flags"])})

    def write_about(self, about: About) -> None:
        """Writes the description of the recording."""
        (self._folder / "about.json").write_text(json.dumps(asdict(about), indent=1))

    @contextmanager
    def writer(self, form: str) -> Iterator[_Writer]:
        """Opens the file of a form for writing; an existing file is replaced."""
        with gzip.open(self._folder / f"{form}.jsonl.gz", "wt", compresslevel=5) as file:
            yield _Writer(file)

    def read(self, form: str) -> Iterator[tuple[Request, list[Stored]]]:
        """Yields the requests of a form with their answers, several if the recorded server's answers vary."""
        with gzip.open(self._folder / f"{form}.jsonl.gz", "rt") as file:
            for line in file:
                entry = json.loads(line)
                answers = entry.pop("answers")
                body = base64.b64decode(entry.pop("body"))
                headers = tuple((name, value) for name, value in entry.pop("headers"))
                yield Request(**entry, headers=headers, body=body), answers


class _Writer:
    """Writer of the lines of one form."""

    def __init__(self, file: object) -> None:
        self._file = file

    def write(self, request: Request, answers: Sequence[Stored]) -> None:
        """Writes a request and its answers."""
        entry = asdict(request) | {"body": base64.b64encode(request.body).decode(), "answers": list(answers)}
        self._file.write(json.dumps(entry) + "\n")
