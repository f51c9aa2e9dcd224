"""Chooses the tf.distribute strategy for a training: TPUStrategy if there is a TPU, else TensorFlow's default."""

from __future__ import annotations

import logging
import socket
from typing import Any

from model_export.errors import ExportError
from model_export.tensorflow_setup import tf

_logger = logging.getLogger(__name__)

_METADATA_SERVER = ("metadata.google.internal", 80)
_WORKER_PORT = 8470
_CONNECT_TIMEOUT_S = 3.0
# The first bytes that an HTTP/2 client sends: preface and empty SETTINGS frame. A server replies with its own SETTINGS
# frame (RFC 9113, 3.4).
_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def tpu_strategy(tpu: str | None = None) -> Any:
    """Returns a tf.distribute.TPUStrategy, or the default strategy if no TPU is attached.

    Create layers and optimizers in the strategy's scope(). Without a TPU the scope changes nothing, and tables are
    plain variables on the CPU, with the same checkpoints as on a TPU. One log line names the choice. The metadata
    server and the environment are read only if `tpu` names a TPU, and only after its address accepted a connection
    within 3 s, because TensorFlow's own resolver waits without a limit.

    Args:
      tpu: None: a TPU attached to this machine, if any. "local" requires such a TPU; a name (often in the variable
        TPU_NAME) or "grpc://host:port" requires that one.

    Raises:
      ExportError: `tpu` names a TPU that can not be used.
    """
    if tpu is None and not _is_attached():
        strategy = tf.distribute.get_strategy()
        device = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
        _logger.warning("no TPU is attached: training with the default strategy on the %s", device)
        return strategy
    name = tpu or "local"
    try:
        if name == "local":
            if not _is_attached():
                raise ExportError("no TPU is attached to this machine")
        else:
            _check_reachable(name)
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(name)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        strategy = tf.distribute.TPUStrategy(resolver)
    except (ExportError, OSError, RuntimeError, ValueError, tf.errors.OpError) as error:
        raise ExportError(f"TPU {name!r} can not be used: {error}") from error
    _logger.warning("training on TPU %r with %d cores", name, strategy.num_replicas_in_sync)
    return strategy


def _is_attached() -> bool:
    # TensorFlow lists the machine's TPU chips as physical devices even before it starts the TPU's runtime.
    return any(device.device_type in ("TPU", "TPU_SYSTEM") for device in tf.config.list_physical_devices())


def _check_reachable(name: str) -> None:
    host, port = _METADATA_SERVER
    if name.startswith("grpc://"):
        host, _, given = name.removeprefix("grpc://").partition(":")
        port = int(given or _WORKER_PORT)
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S) as connection:
            if name.startswith("grpc://"):
                # If the program at this port does not speak gRPC, TensorFlow would wait for its reply forever.
                connection.sendall(_HTTP2_HELLO)
                if not connection.recv(1):
                    raise OSError("it does not speak gRPC")
    except OSError as error:
        raise ExportError(f"no answer of {host}:{port} within {_CONNECT_TIMEOUT_S:.0f} s ({error})") from error
