"""The Python client of embedding-server: numpy arrays in, numpy arrays out, over gRPC or HTTP.

Only a gRPC target imports grpcio, and only AsyncEmbeddingClient over HTTP imports httpx.
"""

from __future__ import annotations

from embedding_client.async_client import AsyncEmbeddingClient
from embedding_client.client import EmbeddingClient
from embedding_client.errors import (
    DeadlineExceeded,
    EmbeddingError,
    InvalidRequest,
    NotFound,
    Refused,
    ServerFault,
    TooLarge,
    Unavailable,
    Unimplemented,
)
from embedding_client.retry import RetryPolicy
from embedding_client.targets import Tls
from embedding_client.types import (
    ModelMetadata,
    Neighbors,
    Outputs,
    RaggedIds,
    SignatureDescription,
    State,
    TableDescription,
    TensorDescription,
    VersionStatus,
)

__version__ = "1.0.0"

__all__ = [
    "AsyncEmbeddingClient",
    "DeadlineExceeded",
    "EmbeddingClient",
    "EmbeddingError",
    "InvalidRequest",
    "ModelMetadata",
    "Neighbors",
    "NotFound",
    "Outputs",
    "RaggedIds",
    "Refused",
    "RetryPolicy",
    "ServerFault",
    "SignatureDescription",
    "State",
    "TableDescription",
    "TensorDescription",
    "Tls",
    "TooLarge",
    "Unavailable",
    "Unimplemented",
    "VersionStatus",
]
