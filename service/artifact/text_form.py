"""Reads and writes the text form of protobuf messages, and declares messages that tensorflow-serving-api lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf import message_factory, text_format

from service.artifact.protos import MessageClass, message_class, new_pool


class TextFormError(Exception):
    """The error that a text is no valid text form of a protobuf message; the error's message may quote the text.

    line: the number of the line at fault, if it is known.
    """

    def __init__(self, text: str, line: int | None) -> None:
        super().__init__(text)
        self.line = line


class Field(NamedTuple):
    """The declaration of one protobuf field: declared_class() makes a message class from such declarations.

    kind: "string", "bool" or "int64", or the full name of a message, such as "google.protobuf.Int64Value".
    """

    name: str
    number: int
    kind: str
    is_repeated: bool = False


def fill_from_text(message: Any, text: str) -> None:
    """Sets the fields of a protobuf message from its text form; raises TextFormError, UnicodeError."""
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        raise TextFormError(str(error), error.GetLine()) from error


def text_of(full_name: str, data: bytes) -> str:
    return text_format.MessageToString(message_class(full_name).FromString(data))


def declared_class(full_name: str, messages: Mapping[str, Sequence[Field]]) -> MessageClass:
    """Declares protobuf messages in the package tensorflow.serving, and returns the class of one of them.

    Args:
      messages: message name without its package -> the message's fields.
    """
    # descriptor_pb2 is imported here and not at the top: this takes 7 ms of the start, and most servers read no
    # file whose message declared_class() declares.
    from google.protobuf import descriptor_pb2

    kinds = descriptor_pb2.FieldDescriptorProto
    package, _, name = full_name.rpartition(".")
    file = descriptor_pb2.FileDescriptorProto(
        name=f"embedding_server/{name}.proto",
        package=package,
        syntax="proto3",
        dependency=["google/protobuf/wrappers.proto"],
    )
    for message, fields in messages.items():
        declared = file.message_type.add(name=message)
        for field in fields:
            is_message = "." in field.kind
            declared.field.add(
                name=field.name,
                number=field.number,
                label=kinds.LABEL_REPEATED if field.is_repeated else kinds.LABEL_OPTIONAL,
                type=kinds.TYPE_MESSAGE if is_message else getattr(kinds, f"TYPE_{field.kind.upper()}"),
                type_name=f".{field.kind}" if is_message else None,
            )
    pool = new_pool([file.SerializeToString()])
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(full_name))


def extended_class(full_name: str, message: str, fields: Sequence[Field]) -> MessageClass:
    """Returns a copy of a protobuf message class in which a message of the same proto file has more fields.

    Args:
      full_name: the class's message. message: the name of the message that gets the fields.
    """
    from google.protobuf import descriptor_pb2

    kinds = descriptor_pb2.FieldDescriptorProto
    package, _, name = full_name.rpartition(".")
    file = descriptor_pb2.FileDescriptorProto()
    message_class(full_name).DESCRIPTOR.file.CopyToProto(file)
    # The copied messages need a package of their own, because a descriptor pool accepts each full name only once.
    file.name, file.package = f"embedding_server/extended_{name}.proto", "embedding_server"
    own = tuple(f".{package}.{declared.name}" for declared in file.message_type)
    for declared in file.message_type:
        for field in declared.field:
            if field.type_name in own or field.type_name.startswith(tuple(f"{each}." for each in own)):
                field.type_name = f".embedding_server{field.type_name.removeprefix(f'.{package}')}"
        if declared.name == message:
            for more in fields:
                label = kinds.LABEL_REPEATED if more.is_repeated else kinds.LABEL_OPTIONAL
                kind = getattr(kinds, f"TYPE_{more.kind.upper()}")
                declared.field.add(name=more.name, number=more.number, label=label, type=kind)
    pool = new_pool([file.SerializeToString()])
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"embedding_server.{name}"))
