"""Lists the flags of tensorflow_model_server that this server lacks: it ignores or refuses each, and says why.

A command line of tensorflow_model_server works unchanged. Each of these flags either has no effect, which a warning
says, or is refused, because the server would do something else than the flag asks for.

Source: tensorflow_serving/model_servers/main.cc, server.h (9d981c5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ForeignFlag:
    """A flag of tensorflow_model_server that this server does not have.

    kind: type of the flag's value: bool, int, float or str.
    why: what this server does instead.
    is_refused: the flag stops the start; else it has no effect.
    idle: the value that asks for what the server does anyway, without a warning; None: 0, false or "".
    """

    kind: type
    why: str
    is_refused: bool = False
    idle: Any = None

    def asks_for_nothing(self, value: Any) -> bool:
        """Says whether this value of tensorflow_model_server's flag asks only for what this server always does."""
        return bool(value == (self.kind() if self.idle is None else self.idle))


_NO_TFLITE = "only SavedModels are served"
_NO_XLA = "a graph runs as TensorFlow compiles it by default"

# Name of a flag of tensorflow_model_server -> how this server treats it. Flags that are settings of this server are not
# here.
FOREIGN_FLAGS: Mapping[str, ForeignFlag] = {
    "enable_grpc_healthcheck_service": ForeignFlag(bool, "the health service is always there", idle=True),
    "enable_profiler": ForeignFlag(bool, "there is no profiler service"),
    "enable_signature_method_name_check": ForeignFlag(bool, "a signature's method name is not checked"),
    "flush_filesystem_caches": ForeignFlag(
        bool, "tables are read through the file system's cache while they are served"
    ),
    "mixed_precision": ForeignFlag(str, "a graph runs in the precision it was exported in"),
    "num_tflite_interpreters_per_pool": ForeignFlag(int, _NO_TFLITE),
    "num_tflite_pools": ForeignFlag(int, _NO_TFLITE),
    "num_unload_threads": ForeignFlag(int, "an unload that waits for its requests delays no other model"),
    "per_process_gpu_memory_fraction": ForeignFlag(float, "graphs run on the CPU"),
    "platform_config_file": ForeignFlag(str, "the only platform is tensorflow", is_refused=True),
    "prefer_tflite_model": ForeignFlag(bool, _NO_TFLITE),
    "remove_unused_fields_from_bundle_metagraph": ForeignFlag(bool, "a MetaGraph is not kept in memory"),
    "rest_api_num_threads": ForeignFlag(int, "--threads sets the threads for both wires"),
    "skip_initialize_tpu": ForeignFlag(bool, "no TPU is used", idle=True),
    "tensorflow_session_config_file": ForeignFlag(
        str, "the session's threads are set by --tensorflow_intra_op_parallelism and --tensorflow_inter_op_parallelism"
    ),
    "thread_pool_factory_config_file": ForeignFlag(str, "TensorFlow's own thread pools are used"),
    "use_alts_credentials": ForeignFlag(bool, "ALTS is not supported", is_refused=True),
    "xla_cpu_compilation_enabled": ForeignFlag(bool, _NO_XLA),
    "xla_gpu_compilation_enabled": ForeignFlag(bool, _NO_XLA),
}
