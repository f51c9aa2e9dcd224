"""Measures starts from a version in an object store: seconds, bytes and requests, of a first start and of a second one.

  python -m loadtest.store_start --mib 2048

The store is moto's S3 server behind a proxy that counts requests. The version has the toy model's tables, and objects
of 64 MiB that its manifest lists; `model-export upload` writes it. The second start has the cache folder of the first.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.exposition import read_exposition
from tests.integration.process import ServerProcess
from tests.integration.s3_server import BUCKET, S3Server
from tests.integration.store_proxy import StoreProxy
from tests.toy_model import rewrite_manifest, write_toy_model

_OBJECT_MIB = 64
_URI = f"s3://{BUCKET}/toy"


def write_version(folder: Path, mib: int) -> None:
    """Writes a version of the toy model with objects of 64 MiB of random bytes beside its tables."""
    write_toy_model(folder)
    sizes = {}
    for number in range(mib // _OBJECT_MIB):
        name = f"assets/filler-{number:04d}"
        (folder / name).write_bytes(os.urandom(_OBJECT_MIB << 20))
        sizes[name] = _OBJECT_MIB << 20
    rewrite_manifest(folder, lambda manifest: manifest["files"].update(sizes))


def counted(proxy: StoreProxy) -> str:
    """Returns how many requests of each kind the proxy has passed since the last call."""
    kinds = Counter("listings" if one.is_listing else f"{one.method} of objects" for one in proxy.requests)
    proxy.requests.clear()
    return ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items())) or "none"


def start(proxy: StoreProxy, cache: Path) -> str:
    """Starts a server and waits for its first right answer; returns a row with seconds, bytes and requests."""
    begin_s = time.monotonic()
    settings = {"model_base_path": _URI, "store_cache_dir": cache, "first_loads_timeout_s": 0.1}
    with ServerProcess(**settings) as server:
        server.answering()
        listening_s = time.monotonic() - begin_s
        # Wait without a limit for the version: on a busy machine, moto's store is slow.
        while not server.tells({"user": [1]}, {"user": [[1, 10]]}):
            time.sleep(0.02)
        seconds = time.monotonic() - begin_s
        families = read_exposition(server.http.get("/metrics").text)
        read_bytes = families["embedding_server_store_read_bytes_total"].value(model="default")
        return f"{seconds:.1f} ({listening_s:.1f} until it listens) | {read_bytes:,.0f} | {counted(proxy)} |"


def main() -> None:
    """Measures the upload of a version and the server's starts from it; prints a table row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=2048, help="size of the version (default: %(default)s)")
    arguments = parser.parse_args()
    s3 = S3Server()
    proxy = StoreProxy(s3.port)
    os.environ.update(s3.variables(proxy.url))
    try:
        with tempfile.TemporaryDirectory() as folder:
            version = Path(folder) / "1"
            write_version(version, arguments.mib)
            size = sum(path.stat().st_size for path in version.rglob("*") if path.is_file())
            begin_s = time.monotonic()
            subprocess.run([sys.executable, "-m", "model_export", "upload", str(version), "--out", _URI], check=True)
            seconds = time.monotonic() - begin_s
            sys.stdout.write("| | seconds | bytes of objects | requests |\n|---|---|---|---|\n")
            sys.stdout.write(f"| upload | {seconds:.1f} | {size:,} | {counted(proxy)} |\n")
            for name in ("first start", "second start"):
                sys.stdout.write(f"| {name} | {start(proxy, Path(folder) / 'cache')}\n")
                sys.stdout.flush()
    finally:
        proxy.close()
        s3.kill()


if __name__ == "__main__":
    main()
