"""Serves constant answers, by grpcio's threaded server or from Rust: `python -m loadtest.bench.baselines KIND FOLDER`.

KIND is grpcio, grpc or json. A baseline returns the file W*.grpc.answer or W*.json.answer of FOLDER, whatever the
request's body is, and writes its port as the first line of its output.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

_NATIVE = Path(__file__).parents[2] / "native"


class _Constants(grpc.GenericRpcHandler):
    def __init__(self, folder: Path) -> None:
        self._answers = {f"/constant/{f.name.split('.')[0]}": f.read_bytes() for f in folder.glob("*.grpc.answer")}

    def service(self, details: Any) -> Any:
        answer = self._answers.get(details.method)
        return None if answer is None else grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer)


def _serve_grpcio(folder: Path) -> None:
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(8), handlers=[_Constants(folder)], options=options)
    sys.stdout.write(f"{server.add_insecure_port('127.0.0.1:0')}\n")
    sys.stdout.flush()
    server.start()
    server.wait_for_termination()


def _run_hyper(folder: str, kind: str) -> None:
    """Compiles native/examples/constant.rs if necessary, and replaces this process by it."""
    build = ["cargo", "build", "--quiet", "--release", "--locked", "--example", "constant"]
    subprocess.run(build, cwd=_NATIVE, check=True, stdout=sys.stderr)
    program = Path(os.environ.get("CARGO_TARGET_DIR", _NATIVE / "target")) / "release" / "examples" / "constant"
    os.execv(program, [str(program), folder, kind])


if __name__ == "__main__":
    if sys.argv[1] == "grpcio":
        _serve_grpcio(Path(sys.argv[2]))
    _run_hyper(sys.argv[2], sys.argv[1])
