"""The fields of a protobuf file are counted before it is parsed, so that a small file does not take all memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.artifact import protos
from service.artifact.protos import MAX_FIELDS, check_num_fields, message_class, num_fields
from service.artifact.signature_def import read_meta_graph
from service.errors import ArtifactError
from tests.toy_model import proto_field, saved_model, toy_signatures

SAVED_MODEL = "tensorflow.SavedModel"


def counted(message: object) -> int:
    """Counts the fields of a parsed message, with those of all messages in it, by protobuf's own reflection."""
    total = 0
    for field, value in message.ListFields():  # type: ignore[attr-defined]
        values = value if field.is_repeated else [value]
        if field.message_type is None:
            total += 1 if field.is_packed else len(values)
        elif field.message_type.GetOptions().map_entry:
            kind = field.message_type.fields_by_name["value"].message_type
            # An entry of a map is a message with two fields.
            total += sum(3 + (counted(value[key]) if kind is not None else 0) for key in value)
        else:
            total += sum(1 + counted(each) for each in values)
    return total


def test_all_fields_of_all_messages_are_counted() -> None:
    data = saved_model(toy_signatures())
    message = message_class(SAVED_MODEL).FromString(data)
    assert num_fields(data, SAVED_MODEL, MAX_FIELDS) == counted(message) > 100


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b"", 0),
        (proto_field(2, b"") * 7, 7),
        (proto_field(2, proto_field(5, proto_field(1, b"key"))), 3),
        # The type SavedModel has no field 99: its bytes are not looked into.
        (proto_field(99, proto_field(2, b"")), 1),
        # Messages that are cut off, and no messages: parsing them fails.
        (b"\x12", 1),
        (b"\x12\xff", 1),
        (b"\xff" * 30, 2),
        (b"\x12\x7f" + b"\x12\0" * 3, 4),
        (b"\x0d\0\0\0\0\x09\0\0\0\0\0\0\0\0\x08\x01", 3),
    ],
)
def test_any_bytes_have_a_number_of_fields(data: bytes, count: int) -> None:
    assert num_fields(data, SAVED_MODEL, MAX_FIELDS) == count
    assert num_fields(data, SAVED_MODEL, 0) == min(count, 1)


def test_a_saved_model_of_millions_of_empty_messages_is_refused_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "saved_model.pb"
    path.write_bytes(proto_field(2, b"") * 1000 + saved_model(toy_signatures()))
    assert read_meta_graph(path).signature_def
    # With the real limit, the test would take seconds.
    monkeypatch.setattr(protos, "MAX_FIELDS", 1000)
    with pytest.raises(ArtifactError, match=r"saved_model\.pb has .* bytes with more than 1000 protobuf fields"):
        read_meta_graph(path)
    path.write_bytes(saved_model(toy_signatures()))
    assert read_meta_graph(path).signature_def


def test_a_file_of_a_few_large_values_is_read() -> None:
    data = proto_field(2, proto_field(2, proto_field(1, proto_field(1, b"x" * (2 * MAX_FIELDS)))))
    check_num_fields("a file", data, SAVED_MODEL)
