"""Runs the command `embedding-server` as `python -m service`."""

from __future__ import annotations

from service.process.cli import run as main

if __name__ == "__main__":
    main()
