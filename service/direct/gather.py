"""Reads ids out of a request's bytes, looks them up, writes the answer's bytes: one compiled call for all features."""

from __future__ import annotations

import numpy as np
from numba import njit, types

from service.direct.memory import (
    INTS,
    INTS_2D,
    entry_point,
    floats_2d_at,
    floats_3d_at,
    floats_at,
    ints_2d_at,
    ints_at,
    octets_at,
    short_ints_at,
)
from service.direct.scan import COLUMNS as FOUND_COLUMNS
from service.direct.scan import DTYPE, KIND, MAX_INPUTS, MISSING, SIZE, VALUES_AT, VALUES_LENGTH, VARINTS
from service.direct.varints import DONE as DONE
from service.direct.varints import UNUSUAL as UNUSUAL
from service.direct.varints import read_varints
from service.lookup import kernels

# Columns of a plan, one row per feature. *_INPUT: which input of the request, or -1 for none.
IDS_INPUT, SPLITS_INPUT, WEIGHTS_INPUT = 0, 1, 2
TABLE_AT, VOCABULARY_SIZE, DIM = 3, 4, 5
TABLE_DTYPE, SCALES_AT = 16, 17
POLICY, DEFAULT_ROW, COMBINER, AT_LEAST_ONE, POSITIVE_ONLY = 6, 7, 8, 9, 10
MAX_IDS, IS_TRUNCATED, LENGTH = 11, 12, 13
IDS_DTYPE, SPLITS_DTYPE = 14, 15
POSITION = 18
COLUMNS = 19

# Columns of an answer's pieces, one row per feature and one for the end: bytes of the template from PIECE_AT on go to
# PIECE_TO, and the feature's floats begin at FLOATS_TO.
PIECE_AT, PIECE_LENGTH, PIECE_TO, FLOATS_TO = 0, 1, 2, 3
PIECE_COLUMNS = 4

# Columns of a job: the arguments of answer.
JOB_COLUMNS = 10

_INT32, _FLOAT = 3, 1

_INT = types.int64


@njit(_INT(_INT, INTS_2D, _INT, INTS), cache=True, nogil=True)
def _read(data_at, found, k, out):  # type: ignore[no-untyped-def]
    # Writes the integers of input k into out, which has room for just as many; 0, or -1 where they are not as many.
    n = out.shape[0]
    at = data_at + found[k, VALUES_AT]
    length = found[k, VALUES_LENGTH]
    if found[k, KIND] != VARINTS:
        if found[k, DTYPE] == _INT32:
            short = short_ints_at(at, n)
            for i in range(n):
                out[i] = short[i]
        else:
            out[:] = ints_at(at, n)
        return DONE
    if read_varints(at, length, out) != DONE:
        return UNUSUAL
    if found[k, DTYPE] == _INT32:
        for i in range(n):
            # As protobuf reads an int32: what is above is dropped.
            out[i] = np.int64(np.int32(out[i]))
    return DONE


@njit(types.boolean(INTS, _INT), cache=True, nogil=True)
def _are_splits(splits, count):  # type: ignore[no-untyped-def]
    # The kernels trust row splits.
    last = splits[0]
    if last != 0:
        return False
    for split in splits[1:]:
        if split < last:
            return False
        last = split
    return last == count


@njit(_INT(*[_INT] * 10), cache=True, nogil=True)
def compiled_answer(  # type: ignore[no-untyped-def]
    data_at, found_at, plan_at, num_features, scratch_at, out_at, template_at, pieces_at, rows, counts_at
):
    """See answer, which calls it from Python."""
    found = ints_2d_at(found_at, 1 + MAX_INPUTS, FOUND_COLUMNS)
    plan = ints_2d_at(plan_at, num_features, COLUMNS)
    pieces = ints_2d_at(pieces_at, num_features + 1, PIECE_COLUMNS)
    for f in range(num_features):
        k = plan[f, IDS_INPUT]
        count = found[k, SIZE]
        ids = ints_at(scratch_at, count)
        if found[k, DTYPE] != plan[f, IDS_DTYPE] or _read(data_at, found, k, ids) != DONE:
            return UNUSUAL
        dim = plan[f, DIM]
        table = (plan[f, TABLE_DTYPE], plan[f, TABLE_AT], plan[f, SCALES_AT], plan[f, VOCABULARY_SIZE], dim)
        to = out_at + pieces[f, FLOATS_TO]
        if plan[f, SPLITS_INPUT] < 0:
            if count != rows:
                return UNUSUAL
            stopped = kernels.gather(*table, ids, plan[f, POLICY], plan[f, DEFAULT_ROW], floats_2d_at(to, rows, dim))
            if stopped > kernels.MISSING and stopped != kernels.OK:
                return UNUSUAL
            found[1 + f, MISSING] = 0 if stopped == kernels.OK else kernels.MISSING - stopped
            continue
        s = plan[f, SPLITS_INPUT]
        if found[s, SIZE] != rows + 1:
            return UNUSUAL
        splits = ints_at(scratch_at + 8 * count, rows + 1)
        if found[s, DTYPE] != plan[f, SPLITS_DTYPE] or _read(data_at, found, s, splits) != DONE:
            return UNUSUAL
        if not _are_splits(splits, count):
            return UNUSUAL
        if plan[f, LENGTH] > 0:
            stopped = kernels.sequence(
                *table,
                ids,
                splits,
                plan[f, POLICY],
                plan[f, DEFAULT_ROW],
                floats_3d_at(to, rows, plan[f, LENGTH], dim),
            )
        else:
            w = plan[f, WEIGHTS_INPUT]
            num_weights = 0
            weights_at = data_at
            if w >= 0:
                num_weights = found[w, SIZE]
                weights_at = data_at + found[w, VALUES_AT]
                if num_weights != count or found[w, DTYPE] != _FLOAT:
                    return UNUSUAL
            stopped = kernels.combine(
                *table,
                ids,
                splits,
                floats_at(weights_at, num_weights),
                plan[f, POSITIVE_ONLY] != 0,
                plan[f, COMBINER],
                plan[f, AT_LEAST_ONE] != 0,
                plan[f, MAX_IDS],
                plan[f, IS_TRUNCATED] != 0,
                plan[f, POLICY],
                plan[f, DEFAULT_ROW],
                floats_2d_at(to, rows, dim),
            )
        if stopped > kernels.MISSING and stopped != kernels.OK:
            return UNUSUAL
        found[1 + f, MISSING] = 0 if stopped == kernels.OK else kernels.MISSING - stopped
    for f in range(num_features):
        counts = ints_at(counts_at + 16 * plan[f, POSITION], 2)
        counts[0] += found[plan[f, IDS_INPUT], SIZE]
        counts[1] += found[1 + f, MISSING]
    for piece in range(num_features + 1):
        length = pieces[piece, PIECE_LENGTH]
        octets_at(out_at + pieces[piece, PIECE_TO], length)[:] = octets_at(
            template_at + pieces[piece, PIECE_AT], length
        )
    return DONE


@njit(types.boolean(_INT, _INT, _INT), cache=True, nogil=True)
def _answer_all(jobs_at, num_jobs, done_at):  # type: ignore[no-untyped-def]
    jobs = ints_2d_at(jobs_at, num_jobs, JOB_COLUMNS)
    done = ints_at(done_at, num_jobs)
    are_all_done = True
    for j in range(num_jobs):
        done[j] = compiled_answer(
            jobs[j, 0],
            jobs[j, 1],
            jobs[j, 2],
            jobs[j, 3],
            jobs[j, 4],
            jobs[j, 5],
            jobs[j, 6],
            jobs[j, 7],
            jobs[j, 8],
            jobs[j, 9],
        )
        are_all_done = are_all_done and done[j] == DONE
    return are_all_done


# Writes a whole answer; returns DONE, or UNUSUAL where the request must be looked at in another way.
#
# Args, all int64:
#   data_at: address of the request.
#   found_at: of what scan found in it.
#   plan_at, num_features: of [F, COLUMNS] int64, and F.
#   scratch_at: of room for all integers of one feature, as int64.
#   out_at: of the answer.
#   template_at: of what answers of this size have in common.
#   pieces_at: of [F + 1, PIECE_COLUMNS] int64.
#   rows: B, what every feature must have.
#   counts_at: of [features of the signature, 2] int64; ids and those of them without a row are added where all is DONE.
answer = entry_point(compiled_answer)

# Does so for many requests, one behind the other; returns whether all are DONE.
#
# Args, all int64:
#   jobs_at, num_jobs: of [J, JOB_COLUMNS] int64, and J.
#   done_at: of room for [J] int64, what answer returns for each.
answer_all = entry_point(_answer_all)
