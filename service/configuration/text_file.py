"""Reads files that hold a protobuf message in text form; several flags of TensorFlow Serving name such files."""

from __future__ import annotations

from pathlib import Path

from service.artifact.plain_file import read_plain_file
from service.errors import InvalidRequest


def read_proto_text(path: Path) -> str:
    """Returns the text of a UTF-8 file; raises InvalidRequest if the file can not be read."""
    try:
        return read_plain_file(path).decode()
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"Invalid protobuf file: '{path}': it is not UTF-8 text") from error
