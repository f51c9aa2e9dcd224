"""A program for tests of child_process: one of its names raises an error, another kills the process."""

from __future__ import annotations

import os
import sys

from loadtest.foreign.children import write_result

SECONDS = {"fine": 1, "slow": 9}


def work(name: str) -> dict[str, int]:
    """Looks up a name; "fatal" ends the process without output."""
    if name == "fatal":
        sys.stderr.write("no memory is left")
        sys.stderr.flush()
        os._exit(3)
    return {"seconds": SECONDS[name]}


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        write_result(argument, lambda name=argument: work(name))
