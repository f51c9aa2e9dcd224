"""A closed-loop load generator that numba compiles: N connections, each of which always has M requests in flight.

One core of the generator must send more than one core of any server can answer. So the loops call the C library
directly and use no Python objects; their state is in arrays, so that a run can be stopped and continued.
"""
