"""Parses the bytes of protobuf messages that clients and files send."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from service.artifact.protos import MessageClass, message_class
from service.errors import MalformedPayload


def parse_message(full_name: str, data: bytes) -> MessageClass:
    """Parses bytes as a protobuf message of the given type; raises MalformedPayload if they are no such message."""
    message = message_class(full_name)()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise MalformedPayload(f"The request is not a valid {full_name} message.") from error
    return message
