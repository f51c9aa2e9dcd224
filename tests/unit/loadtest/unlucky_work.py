"""Work for a child process, one piece of which fails and another ends the process."""

from __future__ import annotations

import os
import sys

from loadtest.foreign.child_process import tell

SECONDS = {"fine": 1, "slow": 9}


def work(name: str) -> dict[str, int]:
    """Looks a name up; "fatal" ends the process without a word."""
    if name == "fatal":
        sys.stderr.write("no memory is left")
        sys.stderr.flush()
        os._exit(3)
    return {"seconds": SECONDS[name]}


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        tell(argument, lambda name=argument: work(name))
