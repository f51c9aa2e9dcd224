"""Inlines the function calls of a SavedModel's graph, except those of control flow, and reads the graph's constants."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from service.artifact import tensor_proto
from service.artifact.tensor_proto import decode_tensor
from service.errors import ArtifactError, ServiceError
from service.graph.library import op_definition
from service.types import Array

# Ops that only call a function, which are inlined; control flow ops (If, While, Case) are not inlined.
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
# Ops whose output is their input, as long as nothing is trained.
SAME = frozenset({"Identity", "StopGradient"})
# The attribute of a call or a function that XLA compiles.
_COMPILED = "_XlaMustCompile"


class FlatGraph:
    """A graph without function calls: its nodes by name; their inputs have the form "node:output" or "^node".

    In place of a call there is a NoOp of its name, which waits for the nodes that the function must always run.

    Args:
      library: FunctionDefLibrary, with the functions of the control flow that stays.
      aliases: output of a call, or argument of a function -> the tensor in its place.
      compiled: the calls of functions that TensorFlow compiles with XLA.
    """

    def __init__(
        self,
        nodes: dict[str, Any],
        library: Any,
        aliases: Mapping[str, str],
        calls: frozenset[str],
        compiled: frozenset[str] = frozenset(),
    ) -> None:
        self.nodes = nodes
        self.library = library
        self.functions = {function.signature.name: function for function in library.function}
        self.calls = calls
        self.compiled = compiled
        self._aliases = aliases
        for node in nodes.values():
            inputs = [i if i.startswith("^") else self.resolved(i) for i in node.input]
            del node.input[:]
            node.input.extend(inputs)
        for node in list(nodes.values()):
            self._gather_before_cast(node)

    def _gather_before_cast(self, node: Any) -> None:
        """Replaces a gather of a variable that is cast as a whole, as in Keras' mixed precision, by a cast of its rows.

        The rows are the same, and the gather reads the variable itself.
        """
        if node.op not in ("GatherV2", "Gather"):
            return
        cast = self.nodes[node_of(self.data_inputs(node.name)[0])]
        read = cast
        while read.op == "Cast" or read.op in SAME:
            read = self.nodes[node_of(self.data_inputs(read.name)[0])]
        if cast.op != "Cast" or read.op != "ReadVariableOp":
            return
        rows = _copy(node)
        rows.name = f"{node.name}/before_cast"
        rows.input[0] = self.data_inputs(cast.name)[0]
        rows.attr["Tparams"].type = cast.attr["SrcT"].type
        self.nodes[rows.name] = rows
        node.op = "Cast"
        del node.input[:]
        node.input.append(f"{rows.name}:0")
        node.attr.clear()
        for name in ("SrcT", "DstT", "Truncate"):
            if name in cast.attr:
                node.attr[name].CopyFrom(cast.attr[name])

    def resolved(self, tensor: str) -> str:
        """Returns the tensor that replaces a tensor of the original graph after function calls were inlined."""
        tensor = canonical(tensor)
        while tensor in self._aliases:
            tensor = self._aliases[tensor]
        return tensor

    def pass_on(self, name: str, tensor: str, dtype: int) -> str:
        """Adds an Identity node of this name; returns its tensor, which can be fetched even if the other one is fed."""
        node = type(self.nodes[node_of(tensor)])(name=name, op="Identity", input=[tensor])
        node.attr["T"].type = dtype
        if self.nodes.setdefault(name, node) is not node:
            raise ArtifactError(f"two nodes are called {name!r}")
        return f"{name}:0"

    def computes_alike(self, first: str, second: str) -> bool:
        """Says whether two tensors are computed from the same tensors by the same ops."""
        todo, seen = [(first, second)], set[tuple[str, str]]()
        while todo:
            pair = todo.pop()
            if pair in seen or pair[0] == pair[1]:
                continue
            seen.add(pair)
            one, other = (self.nodes[node_of(tensor)] for tensor in pair)
            inputs = [self.data_inputs(node.name) for node in (one, other)]
            outputs = [tensor.partition(":")[2] for tensor in pair]
            attributes = [{n: v for n, v in node.attr.items() if not n.startswith("_")} for node in (one, other)]
            is_same = one.op == other.op and outputs[0] == outputs[1] and attributes[0] == attributes[1]
            op = op_definition(one.op)
            # Two placeholders are fed different tensors, and two nodes draw different random numbers.
            is_pure = op is not None and not op.is_stateful and bool(inputs[0] or one.op == "Const")
            if not is_same or not is_pure or len(inputs[0]) != len(inputs[1]):
                return False
            todo += zip(*inputs, strict=True)
        return True

    def graph_def(self, original: Any) -> Any:
        graph_def = type(original)(node=self.nodes.values(), versions=original.versions)
        for node in graph_def.node:
            # The attribute may name a node of a function, and only matters if a graph is placed on several machines.
            node.attr.pop("_class", None)
        return graph_def

    def data_inputs(self, name: str) -> list[str]:
        return [i for i in self.nodes[name].input if not i.startswith("^")]

    def drop_controls(self, names: Iterable[str], follow: Callable[[str], bool]) -> None:
        for name in names:
            node = self.nodes[name]
            if any(i.startswith("^") and not follow(i) for i in node.input):
                inputs = [i for i in node.input if not i.startswith("^") or follow(i)]
                del node.input[:]
                node.input.extend(inputs)

    def ancestors(
        self, roots: Iterable[str], *, cut: frozenset[str] = frozenset(), follow: Callable[[str], bool] = bool
    ) -> set[str]:
        """Returns all nodes that the given roots (tensors or "^nodes") depend on, directly or through other nodes.

        Args:
          cut: tensors that are fed, so that the nodes before them are not needed.
          follow: says whether a control input "^node" is followed; by default all are.
        """
        return {*self.walk(roots, set(), cut=cut, follow=follow)}

    def walk(
        self,
        roots: Iterable[str],
        seen: set[str],
        *,
        cut: frozenset[str] = frozenset(),
        follow: Callable[[str], bool] = bool,
    ) -> Iterator[str]:
        """Yields the nodes that ancestors() returns and `seen` lacks, and adds each to `seen` before it is yielded.

        Nodes before those of `seen` are left out.
        """
        todo = list(roots)
        while todo:
            reference = todo.pop()
            if reference in cut or (reference.startswith("^") and not follow(reference)):
                continue
            name = node_of(reference)
            if name not in seen:
                seen.add(name)
                yield name
                todo.extend(self.nodes[name].input)

    def depending(self, is_source: Callable[[Any], bool], *, is_given: Callable[[str], bool] = bool) -> set[str]:
        """Returns the nodes for which is_source() holds, and all nodes that depend on one of these."""
        readers: dict[str, list[str]] = {}
        for name, node in self.nodes.items():
            for reference in filter(is_given, node.input):
                readers.setdefault(node_of(reference), []).append(name)
        todo = [name for name, node in self.nodes.items() if is_source(node)]
        found = set(todo)
        for name in todo:
            more = [reader for reader in readers.get(name, ()) if reader not in found]
            found.update(more)
            todo += dict.fromkeys(more)
        return found


def canonical(reference: str) -> str:
    """Returns a tensor's name in the form "node:output", with output 0 if the name has none.

    >>> canonical("x"), canonical("y:1")
    ('x:0', 'y:1')
    """
    return reference if ":" in reference else reference + ":0"


def node_of(reference: str) -> str:
    return reference.removeprefix("^").partition(":")[0]


def flatten(graph_def: Any, roots: Iterable[str]) -> FlatGraph:
    """Returns a graph of the nodes that the roots need, with function calls inlined; the GraphDef is not changed.

    Raises:
      ArtifactError: a function is generic in its types, or names collide.
    """
    top = {node.name: node for node in graph_def.node}
    functions = {function.signature.name: function for function in graph_def.library.function}
    nodes: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    calls: set[str] = set()
    compiled: set[str] = set()
    todo = [_copy(top[name]) for name in reachable(top, roots)]
    while todo:
        node = todo.pop()
        if node.name in nodes:
            raise ArtifactError(f"two nodes are called {node.name!r} once functions are taken apart")
        if node.op not in _CALLS:
            nodes[node.name] = node
            continue
        calls.add(node.name)
        function = functions[node.attr["f"].func.name]
        if any(_COMPILED in one.attr and one.attr[_COMPILED].b for one in (node, function)):
            compiled.add(node.name)
        todo.extend(_body(node, function, aliases))
        nodes[node.name] = _barrier(node, function)
    return FlatGraph(nodes, graph_def.library, aliases, frozenset(calls), frozenset(compiled))


def reachable(top: Mapping[str, Any], roots: Iterable[str]) -> set[str]:
    found: set[str] = set()
    todo = [node_of(root) for root in roots]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo.extend(node_of(reference) for reference in top[name].input)
    return found


def called_functions(node: Any) -> list[str]:
    names = [node.op]
    for value in node.attr.values():
        names.append(value.func.name)
        names.extend(function.name for function in value.list.func)
    return names


def _body(call: Any, function: Any, aliases: dict[str, str]) -> Iterator[Any]:
    prefix = call.name + "/"
    outputs = {node.name: _output_numbers(node) for node in function.node_def}

    def flat(reference: str) -> str:
        if reference.startswith("^"):
            return f"^{prefix}{reference[1:]}"
        # A node of a TensorFlow function names its inputs as "argument" or "node:output name:number". A node of a flat
        # graph names them as "node:number", where number counts all output tensors of the node.
        name, _, output = reference.partition(":")
        if name not in outputs or not output:
            return f"{prefix}{name}:0"
        kind, _, number = output.partition(":")
        return f"{prefix}{name}:{outputs[name][kind] + int(number or 0)}"

    data = [canonical(i) for i in call.input if not i.startswith("^")]
    controls = [i for i in call.input if i.startswith("^")]
    for argument, given in zip(function.signature.input_arg, data, strict=True):
        aliases[f"{prefix}{argument.name}:0"] = given
    for number, output in enumerate(function.signature.output_arg):
        aliases[f"{call.name}:{number}"] = flat(function.ret[output.name])
    for original in function.node_def:
        node = _copy(original)
        if any(value.placeholder for value in node.attr.values()):
            raise ArtifactError(f"function {function.signature.name!r} is generic in its types")
        node.name = prefix + node.name
        del node.input[:]
        # Nodes of a function that have no inputs get the control inputs of the call, so that they run after the nodes
        # for which the call waits.
        node.input.extend([flat(i) for i in original.input] or controls)
        yield node


def _output_numbers(node: Any) -> dict[str, int]:
    """Returns each output name of a node's op -> the index of its first tensor among all output tensors of the node."""
    op = op_definition(node.op)
    if op is None:
        raise ArtifactError(f"node {node.name!r} has the unknown op {node.op!r}")
    numbers, count = {}, 0
    for output in op.output_arg:
        numbers[output.name] = count
        if name := output.number_attr or output.type_list_attr:
            # A saved graph leaves out attributes that have their defaults; a read by [] would add them without a value.
            default = next(declared.default_value for declared in op.attr if declared.name == name)
            value = node.attr.get(name, default)
            count += value.i if output.number_attr else len(value.list.type)
        else:
            count += 1
    return numbers


def _barrier(call: Any, function: Any) -> Any:
    barrier = type(call)(name=call.name, op="NoOp")
    barrier.input.extend(i for i in call.input if i.startswith("^"))
    barrier.input.extend(f"^{call.name}/{name}" for name in function.control_ret.values())
    return barrier


def _copy(node: Any) -> Any:
    copy = type(node)()
    copy.CopyFrom(node)
    return copy


# The most elements of an array: numpy's own limit.
_ANY_SIZE = 1 << 60


def constant_of(node: Any) -> Array:
    """Returns the value of a Const node; strings are an object array of bytes.

    Raises ArtifactError for a dtype that numpy lacks.
    """
    try:
        return decode_tensor(node.name, node.attr["value"].tensor, _ANY_SIZE)
    except ServiceError as error:
        raise ArtifactError(f"constant {node.name!r} can not be read: {error.message}") from error


def add_strings(graph_def: Any, name: str, values: Sequence[str], *, is_scalar: bool = False) -> None:
    node = graph_def.node.add(name=name, op="Const")
    node.attr["dtype"].type = tensor_proto.STRING
    tensor = node.attr["value"].tensor
    tensor.dtype = tensor_proto.STRING
    tensor.tensor_shape.SetInParent()
    if not is_scalar:
        tensor.tensor_shape.dim.add().size = len(values)
    tensor.string_val.extend(value.encode() for value in values)


def numbers_of(flat: FlatGraph, tensor: str) -> list[float] | None:
    """Returns the numbers of a constant; None if the tensor is no constant that can be read."""
    node = flat.nodes[node_of(tensor)]
    while node.op in ("Identity", "Cast"):
        node = flat.nodes[node_of(flat.data_inputs(node.name)[0])]
    if node.op != "Const" or node.attr["dtype"].type not in tensor_proto.NUMPY_DTYPES:
        return None
    numbers: list[float] = constant_of(node).reshape(-1).tolist()
    return numbers


def reached(
    flat: FlatGraph, nodes: Iterable[str], starts: Collection[str], ends: Collection[str], stops: Collection[str] = ()
) -> set[str]:
    """Returns the nodes `starts` and those of `nodes` whose values depend on them.

    Args:
      ends: ops whose results do not depend on the values of their inputs.
      stops: nodes at which the search ends.
    """
    readers: dict[str, list[str]] = {}
    for name in nodes:
        if flat.nodes[name].op not in ends and name not in stops:
            for given in flat.data_inputs(name):
                readers.setdefault(node_of(given), []).append(name)
    found, todo = set(starts), list(starts)
    for name in todo:
        for reader in readers.get(name, ()):
            if reader not in found:
                found.add(reader)
                todo.append(reader)
    return found
