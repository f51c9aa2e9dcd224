"""Adds checks to a graph, before kernels of TensorFlow (2.21) that a request's tensors could make end the process.

RaggedTensorToTensor trusts partitions that lead behind its values. With row splits of [0, 5] and two values, the kernel
reads what lies behind the values in memory; with a last split of 2**40 it asks for as much memory. A SavedModel that
Keras has saved takes a ragged input as one tensor of values and one of row splits, so both come from requests. The
kernel of RaggedGather does check row splits, so the checked node waits for one that gathers no row.

A SavedModel takes a sparse input as three tensors, one of them its shape. SparseTensorDenseMatMul, SparseConcat and
SparseBincount end the process if one of its sizes is negative, or if it has more than 2**63 elements. RaggedBincount
does if the largest id that it counts is as large. The kernel of SparseReshape does check a shape.

Source: tensorflow/core/kernels/{ragged_tensor_to_tensor_op,ragged_gather_op,sparse_tensor_dense_matmul_op,
sparse_concat_op,bincount_op,reshape_util}.cc.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from service.graph.flat_graph import node_of

# Inputs of RaggedTensorToTensor: shape, values, default value, then the partitions.
_VALUES, _FIRST_PARTITION = 1, 3
# Inputs of SparseTensorDenseMatMul, SparseBincount and RaggedBincount.
_A_SHAPE = _DENSE_SHAPE = _SIZE = 2
# Most rows of SparseBincount and columns of RaggedBincount: with the other size of the result, there are fewer than
# 2**63 elements, and no memory for so many.
_MOST_ROWS, _MOST_COLUMNS = 2**31, 2**36
_INT32, _INT64 = 3, 9


def add_checks(graph_def: Any) -> None:
    """Adds the checks to a GraphDef and its functions.

    Row splits must be sorted, and the last must be at most the number of values; row ids must be as many as the values.
    SparseConcat joins only what has a valid shape. For products and counts, a negative size counts as 0, and a size
    that no memory has room for as the largest one.
    """
    _Body(graph_def.node, is_function=False).check()
    for function in graph_def.library.function:
        _Body(function.node_def, is_function=True).check()


class _Body(NamedTuple):
    """The nodes of a graph, or of a function, where outputs have names in place of numbers."""

    nodes: Any
    is_function: bool

    def check(self) -> None:
        checks = {
            "RaggedTensorToTensor": self._check_partitions,
            "SparseTensorDenseMatMul": lambda node, names: self._bound(node, names, _A_SHAPE, "Maximum", 0),
            "SparseConcat": self._check_shapes,
            "SparseBincount": self._check_sparse_counts,
            "RaggedBincount": self._check_ragged_counts,
        }
        found = [node for node in self.nodes if node.op in checks]
        names = {node.name for node in self.nodes} if found else set()
        for node in found:
            checks[node.op](node, names)

    def _check_shapes(self, node: Any, names: Collection[str]) -> None:
        number = node.attr["N"].i
        for one in range(number):
            indices, shape = node.input[one], node.input[2 * number + one]
            made = self._add(node, names, f"shape_{one}_is_valid", "SparseReshape", [indices, shape, shape])
            node.input[2 * number + one] = self._output(made, "output_shape", 1)

    def _check_sparse_counts(self, node: Any, names: Collection[str]) -> None:
        self._bound(node, names, _DENSE_SHAPE, "Maximum", 0)
        self._bound(node, names, _DENSE_SHAPE, "Minimum", _MOST_ROWS)

    def _check_ragged_counts(self, node: Any, names: Collection[str]) -> None:
        if node.attr["Tidx"].type == _INT64:
            self._bound(node, names, _SIZE, "Minimum", _MOST_COLUMNS)

    def _bound(self, node: Any, names: Collection[str], place: int, op: str, bound: int) -> None:
        """Replaces an int64 input by the larger (op Maximum) or smaller (Minimum) of it and a bound."""
        tensor = node.input[place]
        made = self._add(
            node, names, f"{op}_{bound}", op, [tensor, self._constant(node, names, str(bound), bound, tensor)]
        )
        made.attr["T"].type = _INT64
        node.input[place] = self._output(made, "z")

    def _check_partitions(self, node: Any, names: Collection[str]) -> None:
        kinds = [kind.decode() for kind in node.attr["row_partition_types"].list.s]
        values = node.input[_VALUES]
        last = _FIRST_PARTITION + len(kinds) - 1
        if kinds[-1] == "VALUE_ROWIDS":
            node.input[last] = self._as_many(node, names, node.input[last], values)
        elif kinds[-1] == "ROW_SPLITS":
            first = last
            while first > _FIRST_PARTITION and kinds[first - 1 - _FIRST_PARTITION] == "ROW_SPLITS":
                first -= 1
            splits = [self._vector(node, names, node.input[number], str(number)) for number in range(first, last + 1)]
            zero = self._checked(node, names, splits, values)
            for number, one in enumerate(splits, first):
                node.input[number] = self._sum(node, names, one, zero, str(number))

    def _vector(self, node: Any, names: Collection[str], tensor: str, number: str) -> str:
        made = self._add(node, names, f"row_splits_{number}_are_a_vector", "EnsureShape", [tensor])
        made.attr["T"].type = node.attr["Tindex"].type
        made.attr["shape"].shape.dim.add().size = -1
        return self._output(made, "output")

    def _checked(self, node: Any, names: Collection[str], splits: list[str], values: str) -> str:
        """Returns a tensor [0] that is computed only if the row splits divide the values."""
        none = self._constant(node, names, "no_row", [], values)
        made = self._add(node, names, "row_splits_fit_the_values", "RaggedGather", [*splits, values, none])
        made.attr["Tvalues"].type = node.attr["T"].type
        made.attr["Tindices"].type = _INT32
        made.attr["Tsplits"].type = node.attr["Tindex"].type
        made.attr["PARAMS_RAGGED_RANK"].i = made.attr["OUTPUT_RAGGED_RANK"].i = len(splits)
        return self._output(made, "output_nested_splits")

    def _sum(self, node: Any, names: Collection[str], splits: str, zero: str, number: str) -> str:
        # A sum waits for the check. TensorFlow removes a control input from a node without effects.
        made = self._add(node, names, f"checked_row_splits_{number}", "AddV2", [splits, zero])
        made.attr["T"].type = node.attr["Tindex"].type
        return self._output(made, "z")

    def _as_many(self, node: Any, names: Collection[str], row_ids: str, values: str) -> str:
        """Returns the row ids, as a tensor that is computed only if they are as many as the values."""
        shape = self._add(node, names, "shape_of_values", "Shape", [values])
        shape.attr["T"].type = node.attr["T"].type
        shape.attr["out_type"].type = _INT32
        bounds = [self._constant(node, names, name, [value], values) for name, value in (("first", 0), ("one", 1))]
        number = self._add(node, names, "number_of_values", "Slice", [self._output(shape, "output"), *bounds])
        number.attr["T"].type = number.attr["Index"].type = _INT32
        size = self._output(number, "output")
        made = self._add(node, names, "a_row_id_for_each_value", "Reshape", [row_ids, size])
        made.attr["T"].type = node.attr["Tindex"].type
        made.attr["Tshape"].type = _INT32
        return self._output(made, "output")

    def _constant(self, node: Any, names: Collection[str], name: str, numbers: list[int] | int, beside: str) -> str:
        """Returns an int32 vector, or an int64 scalar."""
        # A control input places a constant in the loop (of TensorFlow 1) that the values lie in. Without loops it has
        # none: a node that another one waits for is run, also where its output is fed.
        is_looping = any(one.op == "Enter" for one in self.nodes)
        made = self._add(node, names, name, "Const", [f"^{node_of(beside)}"] if is_looping else [])
        value = made.attr["value"].tensor
        if isinstance(numbers, int):
            value.dtype = _INT64
            value.int64_val.append(numbers)
        else:
            value.dtype = _INT32
            value.int_val.extend(numbers)
            value.tensor_shape.dim.add().size = len(numbers)
        made.attr["dtype"].type = value.dtype
        return self._output(made, "output")

    def _add(self, node: Any, names: Collection[str], name: str, op: str, inputs: list[str]) -> Any:
        full = f"{node.name}/{name}"
        while full in names:
            full += "_"
        return self.nodes.add(name=full, op=op, input=inputs, device=node.device)

    def _output(self, node: Any, name: str, number: int = 0) -> str:
        if self.is_function:
            return f"{node.name}:{name}:0"
        return f"{node.name}:{number}" if number else node.name
