"""Benchmarks of our server, which runs as a separate process; they use only its wire.

| program | measures |
|---|---|
| `loadtest.bench` (`make bench`) | the cases of `--list`: requests/s, latency, CPU time and memory, beside baselines |
| `loadtest.bench.start` | the start with 10 GB of tables; the case `start/10GB` |
| `loadtest.bench.overload` | answers, refusals and other clients at 1.5, 3 and 10 times the capacity |
| `loadtest.bench.real_clients` | processor time of a call of other projects' clients, with and without header fields |
| `loadtest.connections` | thousands of connections: memory, and one more client |
| `loadtest.swap` | versions of gigabytes that are swapped under a steady load |
"""
