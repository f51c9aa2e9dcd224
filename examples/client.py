"""Requests embeddings from a running server with the Python client, over gRPC and HTTP, blocking and asynchronous.

python examples/client.py --server=127.0.0.1:8500 --rest=http://127.0.0.1:8501 --model_name=movielens
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from embedding_client import AsyncEmbeddingClient, EmbeddingClient, EmbeddingError, Outputs

# Two rows: a plain feature has one id per row, a ragged feature has a list of ids per row. The ids of a feature with a
# vocabulary are strings.
FEATURES = {"user_id": [1, 2], "genres": [["Comedy", "Drama"], []]}


def main() -> int:
    """Looks up embeddings and prints them; if a request fails, prints the server's error and returns 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="127.0.0.1:8500", help="gRPC")
    parser.add_argument("--rest", default="http://127.0.0.1:8501", help="HTTP")
    parser.add_argument("--model_name", default="movielens")
    parser.add_argument("--features", type=json.loads, default=FEATURES, help="JSON")
    parser.add_argument("--table", default="film", help="show its first rows")
    options = parser.parse_args()
    try:
        show_blocking(options)
        asyncio.run(show_async(options))
    except EmbeddingError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def show_blocking(options: argparse.Namespace) -> None:
    """Looks up embeddings with one blocking client per wire. A program should keep its client and its connections."""
    with EmbeddingClient(options.server, model=options.model_name, timeout_s=5, http_target=options.rest) as client:
        print_line("versions", [(status.version, status.state.name) for status in client.status()])
        print_line("signatures", sorted(client.metadata().signatures))
        show("gRPC", client.lookup(options.features))
        print_line(f"rows of {options.table}", client.rows(options.table, [0, 1]).shape)
        print_line("rows nearest to row 1", client.neighbors(options.table, ids=[1], k=3, metric="cosine").ids.tolist())
    with EmbeddingClient(options.rest, model=options.model_name, timeout_s=5) as client:
        show("HTTP", client.lookup(options.features))
        try:
            client.lookup({"no_such_feature": [1]})
        except EmbeddingError as error:
            print_line("as expected", error.code)


async def show_async(options: argparse.Namespace) -> None:
    """Sends many lookups at the same time over one connection, with the asyncio client."""
    async with AsyncEmbeddingClient(options.server, model=options.model_name, timeout_s=5) as client:
        answers = await asyncio.gather(*(client.lookup(options.features) for _ in range(10)))
    print_line("lookups at once", len(answers))


def show(wire: str, embeddings: Outputs) -> None:
    """Prints the version that answered, and one line for each output."""
    print_line(f"version over {wire}", embeddings.version)
    for name, array in sorted(embeddings.items()):
        print_line(f"{name} over {wire}", f"{array.dtype} {array.shape} {array[0][:3].tolist()} ...")


def print_line(what: str, value: object) -> None:
    """Writes a name and a value to standard output."""
    sys.stdout.write(f"{what}: {value}\n")


if __name__ == "__main__":
    sys.exit(main())
