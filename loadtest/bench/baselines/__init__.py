"""Servers to compare with, each a program of its own: `python -m loadtest.bench.baselines.NAME FOLDER`.

Each answers the files of FOLDER named W*.grpc.answer or W*.json.answer, whatever it is asked, and writes its port as
the first line of its output.
"""
