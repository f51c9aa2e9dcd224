"""Servers with which the service is compared, each a program: `python -m loadtest.bench.baselines.NAME FOLDER`.

Each returns the files W*.grpc.answer or W*.json.answer of FOLDER as constant answers, whatever the request's body is,
and writes its port as the first line of its output.
"""
