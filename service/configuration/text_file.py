"""Reads files that hold a protobuf message in text form; several flags of TensorFlow Serving name such files."""

from __future__ import annotations

from pathlib import Path

from service.artifact.plain_file import read_plain_file
from service.errors import InvalidRequest


def read_proto_text(path: Path) -> str:
    """Returns the UTF-8 text of a file with a protobuf message; raises InvalidRequest if it can not be read."""
    try:
        return read_plain_file(path).decode()
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"Invalid protobuf file: '{path}': it is not UTF-8 text") from error
