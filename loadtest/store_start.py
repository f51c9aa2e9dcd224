"""Measures starts from a version in an object store: seconds, bytes and requests, of a first start and of a second one.

  python -m loadtest.store_start --mib 2048
  python -m loadtest.store_start --mib 256 --object_mib 256

The store is moto's S3 server behind a proxy that counts requests. The version has the toy model's tables, and objects
of 64 MiB that its manifest lists; `model-export upload` writes it. The second start has the cache folder of the first.
Two more starts have a cache folder of their own: the first of them is killed when half of the bytes are fetched.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.integration.process import ServerProcess
from tests.integration.s3_server import BUCKET, S3Server
from tests.integration.store_proxy import StoreProxy
from tests.toy_model import rewrite_manifest, write_toy_model

_URI = f"s3://{BUCKET}/toy"


def write_version(folder: Path, mib: int, object_mib: int) -> None:
    """Writes a version of the toy model with objects of random bytes beside its tables."""
    write_toy_model(folder)
    sizes = {}
    for number in range(mib // object_mib):
        name = f"assets/filler-{number:04d}"
        (folder / name).write_bytes(os.urandom(object_mib << 20))
        sizes[name] = object_mib << 20
    rewrite_manifest(folder, lambda manifest: manifest["files"].update(sizes))


def counted(proxy: StoreProxy) -> tuple[int, str]:
    """Returns the bytes of objects that the proxy has sent since the last call, and its requests of each kind."""
    # Answers to a server that was killed may be recorded during this call, so only the copied requests are removed.
    requests = proxy.requests.copy()
    del proxy.requests[: len(requests)]
    kinds = Counter("listings" if one.is_listing else f"{one.method} of objects" for one in requests)
    num_bytes = sum(one.answer_bytes for one in requests if one.method == "GET" and not one.is_listing)
    return num_bytes, ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items())) or "none"


def start(proxy: StoreProxy, cache: Path, kill_at_bytes: int = 0) -> str:
    """Starts a server and waits for its first right answer; returns a row with seconds, bytes and requests.

    Args:
      kill_at_bytes: kill the server when it has fetched so many bytes; 0: never.
    """
    begin_s = time.monotonic()
    settings = {"model_base_path": _URI, "store_cache_dir": cache, "first_loads_timeout_s": 0.1}
    with ServerProcess(**settings) as server:
        server.answering()
        listening_s = time.monotonic() - begin_s
        if kill_at_bytes:
            while _done_bytes(server) < kill_at_bytes:
                time.sleep(0.02)
            server.signal(signal.SIGKILL)
            server.exit_code()
        else:
            # There is no limit of time, because moto's store is slow on a busy machine.
            while not server.tells({"user": [1]}, {"user": [[1, 10]]}):
                time.sleep(0.02)
        seconds = time.monotonic() - begin_s
    num_bytes, requests = counted(proxy)
    return f"{seconds:.1f} ({listening_s:.1f} until it listens) | {num_bytes:,} | {requests} |"


def _done_bytes(server: ServerProcess) -> int:
    (store,) = server.http.get("/v1/statusz").json()["stores"]
    return sum(one["done_bytes"] for one in store["versions"])


def main() -> None:
    """Measures the upload of a version and the server's starts from it; prints a table row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=2048, help="size of the version (default: %(default)s)")
    parser.add_argument("--object_mib", type=int, default=64, help="size of an object (default: %(default)s)")
    arguments = parser.parse_args()
    s3 = S3Server()
    proxy = StoreProxy(s3.port)
    os.environ.update(s3.variables(proxy.url))
    try:
        with tempfile.TemporaryDirectory() as folder:
            version = Path(folder) / "1"
            write_version(version, arguments.mib, arguments.object_mib)
            size = sum(path.stat().st_size for path in version.rglob("*") if path.is_file())
            begin_s = time.monotonic()
            subprocess.run([sys.executable, "-m", "model_export", "upload", str(version), "--out", _URI], check=True)
            seconds = time.monotonic() - begin_s
            sys.stdout.write("| | seconds | bytes of objects | requests |\n|---|---|---|---|\n")
            sys.stdout.write(f"| upload | {seconds:.1f} | {size:,} | {counted(proxy)[1]} |\n")
            for name in ("first start", "second start"):
                sys.stdout.write(f"| {name} | {start(proxy, Path(folder) / 'cache')}\n")
                sys.stdout.flush()
            for name, at_bytes in (("start that is killed at 50 %", size // 2), ("start after it", 0)):
                sys.stdout.write(f"| {name} | {start(proxy, Path(folder) / 'killed', at_bytes)}\n")
                sys.stdout.flush()
    finally:
        proxy.close()
        s3.kill()


if __name__ == "__main__":
    main()
