"""A closed-loop load generator: N connections, each with M requests always on their way, compiled by numba.

One core of it must ask for more than any one core of a server can answer. The loops therefore call the C library
themselves and hold no Python object; what they know lies in arrays, so that a run can be stopped and gone on with.
"""
