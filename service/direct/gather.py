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
    words_at,
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
# Which rows must have an id that counts: a request that lacks one takes the general path.
NEEDS_IDS = 19
COLUMNS = 20
NO_ROW, LAST_ROW, ALL_ROWS = 0, 1, 2

# An answer's shape is one array: the address of its template, how many pieces, blocks and marks there are, and those.
SHAPE_HEAD = 4
# A piece: so many bytes of the template go there.
PIECE_AT, PIECE_LENGTH, PIECE_TO = 0, 1, 2
PIECE_COLUMNS = 3
# A block: so many rows of a feature, from the first one on, begin there, with so many floats from one to the next.
# Those of one feature stand together, and features in the order of the plan.
BLOCK_FEATURE, BLOCK_FIRST, BLOCK_ROWS, BLOCK_TO, BLOCK_WIDTH = 0, 1, 2, 3, 4
BLOCK_COLUMNS = 5
# A mark: four bytes there are the request's own number, the highest first.

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


@njit(types.boolean(INTS, _INT), cache=True, nogil=True)
def _have_ids(splits, needed):  # type: ignore[no-untyped-def]
    last = splits.shape[0] - 1
    for row in range(0 if needed == ALL_ROWS else last - 1, last):
        if splits[row] == splits[row + 1]:
            return False
    return True


@njit(_INT(INTS, INTS, _INT, _INT, INTS, INTS, _INT), cache=True, nogil=True)
def _look_up(feature, block, weights_at, num_weights, ids, splits, out_at):  # type: ignore[no-untyped-def]
    # Writes a block of a feature, which is a row of a plan; returns what the kernels do.
    first, rows, width = block[BLOCK_FIRST], block[BLOCK_ROWS], block[BLOCK_WIDTH]
    to = out_at + block[BLOCK_TO]
    dim, policy, default_row = feature[DIM], feature[POLICY], feature[DEFAULT_ROW]
    table = (feature[TABLE_DTYPE], feature[TABLE_AT], feature[SCALES_AT], feature[VOCABULARY_SIZE], dim)
    if feature[SPLITS_INPUT] < 0:
        return kernels.gather(*table, ids[first:], policy, default_row, floats_2d_at(to, rows, width))
    some = splits[first : first + rows + 1]
    length = feature[LENGTH]
    if length > 0:
        return kernels.sequence(*table, ids, some, policy, default_row, floats_3d_at(to, rows, length, dim))
    return kernels.combine(
        *table,
        ids,
        some,
        floats_at(weights_at, num_weights),
        feature[POSITIVE_ONLY] != 0,
        feature[COMBINER],
        feature[AT_LEAST_ONE] != 0,
        feature[MAX_IDS],
        feature[IS_TRUNCATED] != 0,
        policy,
        default_row,
        floats_2d_at(to, rows, width),
    )


@njit(_INT(*[_INT] * 10), cache=True, nogil=True)
def compiled_answer(  # type: ignore[no-untyped-def]
    data_at, found_at, plan_at, num_features, scratch_at, out_at, shape_at, rows, mark, counts_at
):
    """See answer, which calls it from Python."""
    found = ints_2d_at(found_at, 1 + MAX_INPUTS, FOUND_COLUMNS)
    plan = ints_2d_at(plan_at, num_features, COLUMNS)
    template_at, num_pieces, num_blocks, num_marks = ints_at(shape_at, SHAPE_HEAD)
    pieces_at = shape_at + 8 * SHAPE_HEAD
    blocks_at = pieces_at + 8 * PIECE_COLUMNS * num_pieces
    blocks = ints_2d_at(blocks_at, num_blocks, BLOCK_COLUMNS)
    b = 0
    for f in range(num_features):
        k = plan[f, IDS_INPUT]
        count = found[k, SIZE]
        ids = ints_at(scratch_at, count)
        if found[k, DTYPE] != plan[f, IDS_DTYPE] or _read(data_at, found, k, ids) != DONE:
            return UNUSUAL
        s = plan[f, SPLITS_INPUT]
        w = plan[f, WEIGHTS_INPUT]
        num_weights = 0
        weights_at = data_at
        splits = ids
        if s < 0:
            if count != rows:
                return UNUSUAL
        else:
            if found[s, SIZE] != rows + 1:
                return UNUSUAL
            splits = ints_at(scratch_at + 8 * count, rows + 1)
            if found[s, DTYPE] != plan[f, SPLITS_DTYPE] or _read(data_at, found, s, splits) != DONE:
                return UNUSUAL
            if not _are_splits(splits, count):
                return UNUSUAL
            if plan[f, NEEDS_IDS] != NO_ROW and not _have_ids(splits, plan[f, NEEDS_IDS]):
                return UNUSUAL
            if w >= 0 and plan[f, LENGTH] <= 0:
                num_weights = found[w, SIZE]
                weights_at = data_at + found[w, VALUES_AT]
                if num_weights != count or found[w, DTYPE] != _FLOAT:
                    return UNUSUAL
        missing = 0
        while b < num_blocks and blocks[b, BLOCK_FEATURE] == f:
            stopped = _look_up(plan[f], blocks[b], weights_at, num_weights, ids, splits, out_at)
            if stopped > kernels.MISSING and stopped != kernels.OK:
                return UNUSUAL
            if stopped != kernels.OK:
                missing += kernels.MISSING - stopped
            b += 1
        if missing and plan[f, NEEDS_IDS] != NO_ROW and plan[f, POLICY] in (kernels.DROP, kernels.DROP_NEGATIVE):
            # The ids of a row may all be dropped.
            return UNUSUAL
        found[1 + f, MISSING] = missing
    for f in range(num_features):
        counts = ints_at(counts_at + 16 * plan[f, POSITION], 2)
        counts[0] += found[plan[f, IDS_INPUT], SIZE]
        counts[1] += found[1 + f, MISSING]
    pieces = ints_2d_at(pieces_at, num_pieces, PIECE_COLUMNS)
    for piece in range(num_pieces):
        length = pieces[piece, PIECE_LENGTH]
        octets_at(out_at + pieces[piece, PIECE_TO], length)[:] = octets_at(
            template_at + pieces[piece, PIECE_AT], length
        )
    if num_marks:
        number = np.uint32(mark)
        swapped = (number >> 24) | ((number >> 8) & 0xFF00) | ((number & 0xFF00) << 8) | ((number & 0xFF) << 24)
        marks = ints_at(blocks_at + 8 * BLOCK_COLUMNS * num_blocks, num_marks)
        for at in marks:
            words_at(out_at + at, 1)[0] = np.uint32(swapped)
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
#   shape_at: of its shape, see SHAPE_HEAD.
#   rows: B, what every feature must have.
#   mark: what is written at the shape's marks.
#   counts_at: of [features of the signature, 2] int64; ids and those of them without a row are added where all is DONE.
answer = entry_point(compiled_answer)

# Does so for many requests, one behind the other; returns whether all are DONE.
#
# Args, all int64:
#   jobs_at, num_jobs: of [J, JOB_COLUMNS] int64, and J.
#   done_at: of room for [J] int64, what answer returns for each.
answer_all = entry_point(_answer_all)
