"""Searches for lost or half-written data by simulated power cuts; `python -m loadtest.simulate --help` has the options.

Each case runs code of the server and of model_export on a real folder in memory, while syscalls.py records what the
code asks of the disk. disk.py then draws what a disk may have kept of it at a moment, cases.py starts again from that,
and fails if something confirmed is missing or something half-written is shown. A seed replays its case exactly.
"""
