"""Parses the TLS settings of a port from the text form of TensorFlow Serving's SSLConfig message.

tensorflow-serving-api does not have this message, so its fields are declared here.

Source: tensorflow_serving/config/ssl_config.proto, model_servers/server.cc (9d981c5).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from service.artifact.protos import Field, MessageClass, TextFormError, declared_class, fill_from_text
from service.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class SslConfig:
    """The TLS settings of a port; keys and certificates are PEM texts, not names of files.

    server_cert: the server's certificate, followed by the chain up to its authority's.
    custom_ca: certificates of the authorities that sign clients' certificates.
    client_verify: only clients with a certificate of these authorities may connect.
    """

    server_key: str = field(repr=False)
    server_cert: str
    custom_ca: str = ""
    client_verify: bool = False


def parse_ssl_config_text(text: str, source: str) -> SslConfig:
    """Parses the text of an --ssl_config_file into TLS settings.

    Args:
      source: the file's name, for error texts.

    Raises:
      InvalidRequest: the text is not the text form of an SSLConfig; the error quotes nothing of it, because it holds a
        key.
    """
    message = _message_class()()
    try:
        fill_from_text(message, text)
    except TextFormError as error:
        # The error text of the protobuf text parser is replaced, because it quotes the line with the fault, which may
        # be a line of the private key.
        place = "it" if error.line is None else f"line {error.line}"
        raise InvalidRequest(f"Invalid protobuf file: '{source}': {place} is not an SSLConfig's text") from None
    except UnicodeError:
        raise InvalidRequest(f"Invalid protobuf file: '{source}': it is not UTF-8 text") from None
    return SslConfig(message.server_key, message.server_cert, message.custom_ca, message.client_verify)


@cache
def _message_class() -> MessageClass:
    texts = [Field(name, number, "string") for number, name in enumerate(("server_key", "server_cert", "custom_ca"), 1)]
    fields = [*texts, Field("client_verify", 4, "bool")]
    return declared_class("tensorflow.serving.SSLConfig", {"SSLConfig": fields})
