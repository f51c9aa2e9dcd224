"""Declares the command-line flags of `model-export upload`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from model_export.stores.uri import StoreUri, out_place


def add_upload(commands: Any) -> None:
    parser = commands.add_parser(
        "upload",
        help="copy a version into an object store, saved_model.pb last; to go on after an interruption, repeat it",
    )
    parser.add_argument("artifact", type=Path, metavar="DIR", help="version folder, e.g. models/movielens/1")
    parser.add_argument(
        "--out", type=_uri, required=True, metavar="URI", help="s3://, gs:// or az:// place of the model's versions"
    )
    parser.add_argument("--version", type=int, help="version number in the store (default: the number that DIR names)")


def _uri(text: str) -> StoreUri:
    place = out_place(text)
    if not isinstance(place, StoreUri):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not s3://BUCKET/PLACE, gs://BUCKET/PLACE or az://CONTAINER/PLACE"
        )
    return place
