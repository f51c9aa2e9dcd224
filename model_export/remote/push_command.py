"""`model-export push`."""

from __future__ import annotations

import argparse
import sys

from tqdm import tqdm

from model_export.errors import ExportError
from model_export.remote.push import push
from service.remote.address import StoreAddress


def push_tables(arguments: argparse.Namespace) -> None:
    if arguments.keep < 1 or arguments.max_mb_per_s < 0:
        raise ExportError("--keep must be 1 or more, and --max_mb_per_s 0 or more")
    try:
        address = StoreAddress.parse(arguments.to)
    except ValueError as error:
        raise ExportError(f"--to: {error}") from error
    with tqdm(unit="B", unit_scale=True, mininterval=0.5, leave=False, disable=None, file=sys.stderr) as bar:
        # The name of the last step is stored in `shown`, because tqdm stores no description if its bar is off, as it is
        # without a terminal.
        shown = ""

        def show(step: str, done: int, total: int) -> None:
            nonlocal shown
            if shown != step:
                shown = step
                bar.reset(total=total)
                bar.set_description(step)
            bar.update(min(done, total) - bar.n)

        found = push(
            arguments.artifact,
            address,
            model=arguments.model,
            tables=arguments.table,
            keep=arguments.keep,
            max_mb_per_s=arguments.max_mb_per_s,
            progress=show,
        )
    for one in found:
        sys.stdout.write(
            f"{one.table}: {one.blocks:,} blocks, {one.written:,} of them written now, all compared; the pointer names "
            f"{one.fingerprint}; {one.removed:,} old keys removed\n"
        )
