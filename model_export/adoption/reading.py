"""Reads a lookup in the graph of a signature: from a table's gathered rows back to the inputs, and on to the vectors.

Each tensor between the inputs and the vectors gets a kind (key_graph.py). A tensor has no kind if an op on its way is
not in the table of forms: then the description ends before that op, and NotRead says why. What a reading proves: ids
are a function of one key each, which key_evaluation.py knows exactly; which vectors are added up depends on the layout
of the request, on the weights and on conditions on keys, all computed by known ops; and the constants that take part
are known, so that trial requests can lie on both sides of each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from model_export.adoption.key_evaluation import Evaluation
from model_export.adoption.key_graph import FORMS, NO_PART, Form, Known, NotHere, NotRead, Within
from model_export.adoption.roles import Roles
from model_export.answers.opened_graph import Read, SignatureGraph
from service.graph.flat_graph import node_of
from service.types import Array

# Largest number of elements of a constant that takes part in the layout of a lookup, or in the arithmetic of weights.
_MOST_NUMBERS = 16
_RESOURCES = ("HashTableV2",)


@dataclass(frozen=True, slots=True)
class Value:
    """The kind of one tensor, and for keys their places.

    kind: a letter of key_graph.py. order: for keys, which key each element belongs to; two tensors of keys of equal
    order and shape hold values of the same key at the same place. A constant that fills the shape of keys is layout
    with the order and shape of these keys.
    """

    kind: str
    order: str = ""
    shape: str = ""


@dataclass(slots=True)
class Reading:
    """The kinds of the tensors of one lookup.

    constant: returns the value of a tensor that depends on no input and on no variable.
    conditions: tensors of truth values of keys that decide which ids count.
    parts: tensors of part numbers of keys, with the number of parts: the graph refuses all other part numbers.
    fills: tensors whose second input is the id that stands for an empty row.
    sizes, weights, norms: the constants in the arithmetic of the layout, of the weights and of the vectors' norms.
    has_norms: whether norms of vectors take part. decisions: the nodes that decide by sizes.
    """

    graph: SignatureGraph
    read: Read
    roles: Roles
    constant: Callable[[str], Array]
    conditions: set[str] = field(default_factory=set)
    parts: dict[str, int] = field(default_factory=dict)
    fills: set[str] = field(default_factory=set)
    sizes: set[int] = field(default_factory=set)
    weights: set[float] = field(default_factory=set)
    norms: set[float] = field(default_factory=set)
    has_norms: bool = False
    decisions: set[str] = field(default_factory=set)
    _keyed: set[str] = field(default_factory=set)
    _distinct: set[str] = field(default_factory=set)
    _values: dict[str, Value] = field(default_factory=dict)
    _kinds: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        role_of = {self.roles.ids: "K", self.roles.row_splits: "L", self.roles.weights: "W"}
        for node, name in self.graph.placeholders.items():
            if name in role_of:
                self._kinds[node] = role_of[name]
        # The values of a sparse input are keys; its indices and dense shape, made of the row splits, are layout.
        for names in self.graph.sparse.values():
            if node_of(names.values) in self._kinds:
                self._kinds[node_of(names.indices)] = self._kinds[node_of(names.dense_shape)] = "L"

    @property
    def source(self) -> str:
        """The tensor that is fed the keys."""
        return next(f"{node}:0" for node, kind in self._kinds.items() if kind == "K")

    def is_constant(self, tensor: str) -> bool:
        return self.value(tensor).kind == "C"

    def vectors(self, tensor: str) -> None:
        """Reads the lookup whose vectors a tensor holds; raises NotRead if the tensor holds something else."""
        for gather in self.read.gathers:
            if self.value(gather.ids).kind != "K":
                raise NotRead("rows are read by ids that are no function of the input's ids")
        before = self.graph.flat.ancestors([tensor])
        if any(node_of(rows) not in before for rows in self.read.rows):
            raise NotHere("only some parts of the table are read")
        if self.value(tensor).kind != "V":
            raise NotHere(f"{self.graph.flat.nodes[node_of(tensor)].op} computes no vectors")
        # A check of row splits needs no place in a description, whichever inputs it reads.
        for name in filter(None, (self.roles.ids, self.roles.weights)):
            if check := self.graph.check_of(name):
                raise NotRead(f"{check} may refuse a request, by a condition that is not known")

    def filled_ids(self) -> list[int]:
        """Returns the ids that the graph puts into empty rows, which are constants of the graph."""
        defaults = [self.graph.flat.data_inputs(node_of(tensor))[3] for tensor in sorted(self.fills)]
        found = [row for tensor in defaults for row in self.constant(tensor).reshape(-1).tolist()]
        return [row for row in found if isinstance(row, int)]

    def part_of(self, tensor: str) -> int:
        """Returns the output of the DynamicPartition whose elements a tensor holds; raises NotRead if there is none."""
        node = self.graph.flat.nodes[node_of(tensor)]
        if node.op == "DynamicPartition":
            return int(tensor.partition(":")[2])
        if (form := FORMS.get(node.op)) is None or form.rule not in ("same", "arranged", "distinct"):
            raise NotRead(f"{node.op} lies between the parts of ids and the parts of a table")
        return self.part_of(self.graph.flat.data_inputs(node.name)[0])

    def casts_of_parts(self) -> frozenset[str]:
        """Returns the nodes of Cast that make the part numbers of a table in parts."""
        found = set()
        for tensor in self.parts:
            node = self.graph.flat.nodes[node_of(tensor)]
            while (form := FORMS.get(node.op)) is not None and form.rule in ("same", "arranged"):
                node = self.graph.flat.nodes[node_of(self.graph.flat.data_inputs(node.name)[0])]
            if node.op == "Cast":
                found.add(node.name)
        return frozenset(found)

    def value(self, tensor: str) -> Value:
        """Returns what is known of a tensor; raises NotRead if an op before it is not known."""
        if tensor not in self._values:
            self._values[tensor] = self._found(tensor)
        return self._values[tensor]

    def _found(self, tensor: str) -> Value:
        if tensor in self.read.rows:
            return Value("V")
        name = node_of(tensor)
        node = self.graph.flat.nodes[name]
        if node.op in ("Placeholder", "PlaceholderWithDefault"):
            if name not in self._kinds:
                raise NotRead("another input takes part in the lookup")
            return Value("K", "input", "input") if self._kinds[name] == "K" else Value(self._kinds[name])
        if node.op == "Const" or node.op in _RESOURCES or node.op == "LookupTableSizeV2":
            return Value("C")
        form = FORMS.get(node.op)
        if form is None:
            raise NotRead(f"{node.op} is not an op of a known lookup")
        inputs = self.graph.flat.data_inputs(name)
        values = [self.value(given) for given in inputs]
        if all(value.kind == "C" for value in values):
            return Value("C")
        if self.graph.ops.takes_places(name):
            raise NotRead(f"{node.op} takes the places of ids among the distinct ids as numbers")
        found = self._applied(tensor, node, form, inputs, values)
        if found.kind in ("L", "W") and not self.graph.ops.shows_in_layout(name, self._keyed):
            raise NotRead(f"{node.op} may change {_KIND_NAMES[found.kind]} at numbers that no constant names")
        if found.kind in ("K", "V"):
            self._keyed.add(name)
            if not self.graph.ops.cuts_few(name, self._keyed):
                raise NotRead(f"{node.op} cuts {_KIND_NAMES[found.kind]} off at a constant")
        elif self.graph.ops.counts_distinct(name) or any(node_of(given) in self._distinct for given in inputs):
            self._distinct.add(name)
        if form.rule == "mapped" and node.op != "Cast" and any(node_of(given) in self._distinct for given in inputs):
            raise NotRead(f"{node.op} takes the number of distinct ids")
        self._collect(node, form, found, inputs, values)
        if self.graph.ops.decides(name, lambda given: self.value(given).kind == "L"):
            self.decisions.add(name)
            if not self.graph.ops.are_few(self.decisions):
                raise NotRead(f"{node.op} compares sizes after too many other ops have")
        return found

    def _applied(self, tensor: str, node: Any, form: Form, inputs: list[str], values: list[Value]) -> Value:
        kinds = {value.kind for value in values}
        if form.rule == "stitched":
            return self._stitched(inputs, values)
        if form.rule == "mapped":
            return self._mapped(node, form, inputs, values)
        if node.op == "Fill" and values[1].kind == "C" and (like := self._shaped_like(inputs[0])) is not None:
            return Value("L", like.order, like.shape)
        if kinds <= {"C", "L"}:
            return Value("L")
        if form.rule == "parted":
            return self._parted(tensor, node, inputs, values)
        data = [values[inputs.index(given)] for given in form.data_of(inputs)]
        others = [v for i, v in enumerate(values) if inputs[i] not in form.data_of(inputs)]
        main = data[0]
        if len(data) != 1 or main.kind not in form.on:
            raise NotRead(f"{node.op} is applied to {_KIND_NAMES[max(kinds, key='CLKWVQN'.index)]}")
        if form.rule == "filled" and values[3].kind != "C":
            raise NotRead("an empty row gets an id that is no constant")
        if any(other.kind not in ("C", "L") for other in others):
            raise NotRead(f"{node.op} moves elements by what is no layout")
        if form.rule in ("sized", "positions"):
            if form.rule == "positions" and main.kind == "K":
                self.conditions.add(inputs[0])
            return Value("L")
        if form.rule == "distinct":
            return Value("K", f"{tensor}<{main.order}", "flat") if tensor.endswith(":0") else Value("L")
        if form.rule in ("filled", "sparse"):
            if not tensor.endswith(":1"):
                return Value("L")
            if form.rule == "filled" and main.kind == "K":
                self.fills.add(tensor)
            return Value(main.kind, f"{node.name}<{main.order}" if form.rule == "filled" else main.order, "flat")
        if form.rule == "reduced":
            return Value("N" if main.kind == "Q" else main.kind)
        if main.kind != "K" or form.rule in ("same", "constant"):
            return Value("L") if form.rule == "constant" and main.kind != "K" else main
        if form.rule == "arranged":
            return Value("K", main.order, self._shape(node, inputs, main))
        # Attributes, such as the masks of StridedSlice, choose other elements by the same inputs.
        where = [inputs[i] for i in range(len(inputs)) if i not in form.data]
        where += [f"{name}={number.i}" for name, number in sorted(node.attr.items()) if number.i]
        return Value("K", f"{node.op}({','.join(where)})<{main.order}", main.shape)

    def _shaped_like(self, sizes: str) -> Value | None:
        """Returns the keys whose Shape a tensor is; None if it is something else."""
        node = self.graph.flat.nodes[node_of(sizes)]
        like = self.value(self.graph.flat.data_inputs(node.name)[0]) if node.op == "Shape" else None
        return like if like is not None and like.kind == "K" else None

    def _shape(self, node: Any, inputs: list[str], main: Value) -> str:
        """Names the arrangement of keys after a Reshape, ExpandDims or Squeeze: equal names, equal shapes."""
        if node.op == "Reshape":
            like = self._shaped_like(inputs[1])
            if like is not None and like.order == main.order:
                return like.shape
            if self.is_constant(inputs[1]) and self.constant(inputs[1]).reshape(-1).tolist() == [-1]:
                rank = self.graph.spec.inputs[self.roles.ids].shape
                return "input" if main.shape == "input" and rank is not None and len(rank) == 1 else "flat"
            return f"{main.shape}/{inputs[1]}"
        if node.op == "ExpandDims":
            axis = self.constant(inputs[1]).reshape(-1).tolist() if self.is_constant(inputs[1]) else inputs[1]
            return f"{main.shape}/+{axis}"
        axes = list(node.attr["squeeze_dims"].list.i)
        return main.shape.removesuffix(f"/+{axes}") if main.shape.endswith(f"/+{axes}") else f"{main.shape}/-{axes}"

    def _mapped(self, node: Any, form: Form, inputs: list[str], values: list[Value]) -> Value:
        kinds = {value.kind for value in values}
        if kinds <= {"C", "L"}:
            return Value("L")
        if "K" in kinds and kinds & {"L", "W"} and kinds <= {"K", "L", "W"} and node.op in ("LogicalAnd", "LogicalOr"):
            # A condition on the weight or the place beside one on the key: both decide which ids count.
            self.conditions.update(given for given, value in zip(inputs, values, strict=True) if value.kind == "K")
            return Value("W" if "W" in kinds else "L")
        main = max(values, key=lambda value: "CLWNKVQ".index(value.kind))
        if main.kind not in form.on:
            raise NotRead(f"{node.op} is applied to {_KIND_NAMES[main.kind]}")
        if main.kind == "K":
            return self._mapped_keys(node, inputs, values)
        if main.kind == "W" and kinds <= {"C", "L", "W"}:
            return Value("W")
        if main.kind == "N" and kinds <= {"C", "N", "L"}:
            return Value("N")
        if main.kind == "V":
            return self._scaled(node, inputs, values)
        raise NotRead(f"{node.op} combines {' and '.join(sorted(_KIND_NAMES[kind] for kind in kinds - {'C'}))}")

    def _mapped_keys(self, node: Any, inputs: list[str], values: list[Value]) -> Value:
        keys = {value for value in values if value.kind == "K"}
        # A constant that fills the shape of the keys acts on each of them like the constant alone.
        filled = {Value("L", key.order, key.shape) for key in keys}
        if other := next((value for value in values if value.kind not in ("C", "K") and value not in filled), None):
            raise NotRead(f"{node.op} combines ids with {_KIND_NAMES[other.kind]}")
        for given, value in zip(inputs, values, strict=True):
            is_handle = self.graph.flat.nodes[node_of(given)].op in _RESOURCES
            if value.kind == "C" and not is_handle and (size := self.constant(given).size) != 1:
                raise NotRead(f"{node.op} combines ids with {size} constants")
        if len(keys) != 1:
            raise NotRead(f"{node.op} combines the id of one place with that of another")
        return keys.pop()

    def _scaled(self, node: Any, inputs: list[str], values: list[Value]) -> Value:
        vectors = [i for i, value in enumerate(values) if value.kind == "V"]
        factors = {value.kind for value in values} - {"V"}
        if not factors <= {"C", "L", "W", "N"}:
            raise NotRead(f"{node.op} combines vectors with {_KIND_NAMES[max(factors, key='CLWNKVQ'.index)]}")
        if node.op == "Square" or (node.op == "Mul" and len(vectors) == 2 and inputs[0] == inputs[1]):
            self.has_norms = True
            return Value("Q")
        if node.op == "Mul" and len(vectors) == 1:
            return Value("V")
        if node.op in ("RealDiv", "DivNoNan") and vectors == [0]:
            return Value("V")
        if node.op in ("Select", "SelectV2") and 0 not in vectors and (len(vectors) == 1 or values[0].kind == "N"):
            return Value("V")
        raise NotRead(f"{node.op} changes vectors")

    def _parted(self, tensor: str, node: Any, inputs: list[str], values: list[Value]) -> Value:
        numbers = values[1]
        count = int(node.attr["num_partitions"].i)
        if numbers.kind != "K":
            raise NotRead("ids are distributed by what is no function of them")
        self.parts[inputs[1]] = count
        if values[0].kind in ("C", "L"):
            return Value("L")
        if values[0].kind != "K":
            raise NotRead(f"{_KIND_NAMES[values[0].kind]} are distributed to parts of a table")
        if (values[0].order, values[0].shape) != (numbers.order, numbers.shape):
            raise NotRead("ids are distributed by the part numbers of other ids")
        return Value("K", f"{node.name}:{tensor.partition(':')[2]}<{values[0].order}", "flat")

    def _stitched(self, inputs: list[str], values: list[Value]) -> Value:
        half = len(inputs) // 2
        if {value.kind for value in values[:half]} <= {"C", "L"} and {value.kind for value in values[half:]} == {"V"}:
            return Value("V")
        raise NotRead("DynamicStitch puts something else than vectors together")

    def _collect(self, node: Any, form: Form, found: Value, inputs: list[str], values: list[Value]) -> None:
        """Notes the constants of an op that computes layout, weights or norms: trials lie beside each of them."""
        targets: Mapping[str, set[Any]] = {"L": self.sizes, "W": self.weights, "N": self.norms}
        kinds = {value.kind for value in values} - {"C"}
        # A weight that is compared, a norm that is compared: their conditions are of the same kind as they are.
        kind = found.kind if found.kind in targets else max(kinds, key="LWKNVQ".index)
        data = form.data_of(inputs)
        for given, value in zip(inputs, values, strict=True):
            # The places at which an op takes elements of any kind are layout.
            target = "L" if form.rule == "moved" and given not in data else kind
            if value.kind != "C" or target not in targets or self.graph.flat.nodes[node_of(given)].op in _RESOURCES:
                continue
            numbers = self.constant(given)
            if numbers.dtype.kind not in ("iu" if target == "L" else "iuf"):
                continue
            if numbers.size > _MOST_NUMBERS:
                raise NotRead(f"{node.op} takes {numbers.size} constants")
            targets[target].update(numbers.reshape(-1).tolist())


_KIND_NAMES = {
    "C": "constants",
    "L": "the layout",
    "K": "ids",
    "W": "weights",
    "V": "vectors",
    "Q": "squares of vectors",
    "N": "norms of vectors",
}


Look = Callable[[Evaluation], tuple[Known, ...]]


def look_at_rows(reading: Reading, conditions: Sequence[str], vocabulary_size: int) -> Look:
    """Returns a function that finds the row of an interval's ids, and the values of the conditions by which ids count.

    Raises:
      NotRead: the graph reads only a part of the table, or distributes ids to parts in an unknown way.
    """
    find = _of_parts if reading.parts or len(reading.read.gathers) > 1 else _of_whole
    find_row = find(reading, vocabulary_size)
    return lambda evaluation: (find_row(evaluation), *map(evaluation.truth_of, conditions))


def _of_whole(reading: Reading, size: int) -> Callable[[Evaluation], Known]:
    (gather,) = reading.read.gathers
    if gather.first_row:
        raise NotRead("only a part of the table is read")

    def find(evaluation: Evaluation) -> Known:
        row = evaluation.of(gather.ids)
        evaluation.is_within(row, size)
        return row

    return find


def _of_parts(reading: Reading, size: int) -> Callable[[Evaluation], Known]:
    if len(reading.parts) != 1:
        raise NotRead("ids are not distributed to the parts of a table by one DynamicPartition")
    ((numbers, count),) = reading.parts.items()
    owner = {reading.part_of(gather.ids): gather for gather in reading.read.gathers}
    if sorted(owner) != list(range(count)):
        raise NotRead("the parts of a table are not read by one part of the ids each")
    firsts = [owner[part].first_row for part in range(count)]
    sizes = [after - first for first, after in zip(firsts, [*firsts[1:], size], strict=True)]
    if min(sizes) < 0:
        raise NotRead("the parts of a table are read in another order than they have")

    def find(evaluation: Evaluation) -> Known:
        if not evaluation.is_within(evaluation.of(numbers), count):
            return NO_PART
        part = evaluation.fixed(numbers)
        within = evaluation.of(owner[part].ids)
        if evaluation.is_within(within, sizes[part]):
            return evaluation.shifted(within, firsts[part])
        return Within(size, size, "DynamicPartition")

    return find
