"""SSLConfig, as the text of a file, to its four fields.

tensorflow-serving-api does not have this message, so its fields are written down here.

Source: tensorflow_serving/config/ssl_config.proto, model_servers/server.cc (9d981c5).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from service.codecs.protos import MessageClass
from service.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class SslConfig:
    """What a port needs to speak TLS; PEM texts, not files.

    server_cert: the server's certificate first, then those up to its authority's.
    custom_ca: authorities whose clients are let in.
    client_verify: only clients with a certificate of theirs are.
    """

    server_key: str = field(repr=False)
    server_cert: str
    custom_ca: str = ""
    client_verify: bool = False


def parse_ssl_config_text(text: str, source: str) -> SslConfig:
    """Reads an --ssl_config_file's text.

    Args:
      source: the file's name, for the message.

    Raises:
      InvalidRequest: it is not the text form of an SSLConfig; the message quotes nothing of it, for a key is there.
    """
    message = _message_class()()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        raise InvalidRequest(f"Invalid protobuf file: '{source}': {_place(error)} is not an SSLConfig's text") from None
    except UnicodeError:
        raise InvalidRequest(f"Invalid protobuf file: '{source}': it is not UTF-8 text") from None
    return SslConfig(message.server_key, message.server_cert, message.custom_ca, message.client_verify)


def _place(error: text_format.ParseError) -> str:
    # Its own message quotes the line, which may be the key.
    line = error.GetLine()
    return "it" if line is None else f"line {line}"


@cache
def _message_class() -> MessageClass:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="embedding_server/ssl_config.proto", package="tensorflow.serving", syntax="proto3"
    )
    config = file.message_type.add(name="SSLConfig")
    for number, name in enumerate(("server_key", "server_cert", "custom_ca"), 1):
        config.field.add(name=name, number=number, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    config.field.add(name="client_verify", number=4, type=kinds.TYPE_BOOL, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.serving.SSLConfig"))
