"""Builds random models with TensorFlow's modules and sessions, Keras 3, tf_keras and feature columns.

Beside each model lies a second SavedModel, with the same numbers, that answers the rows and the combined vectors of
each feature by itself: what a lookup signature that `adopt` adds must answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.foreign import random_models as drawn
from loadtest.foreign.frameworks import Tower, keras3, normal, tf, tf_keras
from loadtest.foreign.kinds import Edges, ExampleEdges, Kind, Numbers, edge_keys
from loadtest.foreign.models import GATHERED, ForeignModel
from loadtest.foreign.random_models import Construction, Feature, Step, Table

_GRID = 5
_EXAMPLES, _NUMBERS = "examples", "numbers"
_SMALL = np.array([-0.0, 1e-39, -1e-39, 1.5e-38, -1.2e-38], np.float32)


def random_model(name: str) -> ForeignModel | None:
    """Returns the random model of this name, with the keys at its edges; None if the name is not of a random model."""
    made = drawn.construction_of(name)
    return None if made is None else constructed(made, words=made.words)


def constructed(made: Construction, *, words: str = "") -> ForeignModel:
    """Returns the model of a construction, with the keys at its edges."""
    build = {"keras3": _build_keras, "tf_keras": _build_keras, "columns": _build_columns, "session": _build_session}
    builder = build.get(made.framework, _build_module)
    keras = "tf_keras" if made.framework == "tf_keras" else "keras3"
    return ForeignModel(made.name, partial(builder, made), keras, _inputs(made), words)


def _is_parsed(made: Construction) -> bool:
    return made.features[0].form in ("one", "many") and not _has_sparse_inputs(made)


def _has_sparse_inputs(made: Construction) -> bool:
    return made.framework == "columns" and made.has_variant


def _inputs(made: Construction) -> dict[str, Kind]:
    found: dict[str, Kind] = {}
    for one in made.features:
        table = made.table(one)
        rows = table.rows
        keys = edge_keys(
            drawn.edges_of(one.steps, (0, -1, 1, rows - 1, rows, rows + 1, rows // 2, rows // 3)), one.dtype
        )
        if table.parts > 1 and table.strategy == "div" and not one.steps:
            # TensorFlow casts the number of an id's part to int32, and reads an arbitrary row for one that wraps; the
            # server refuses such ids.
            keys = tuple(key for key in keys if not isinstance(key, int) or key < (rows // table.parts) << 31)
        name = one.name
        if one.form == "ragged":
            found[f"{name}_values"] = Edges(keys, splits=f"{name}_splits", weights=f"{name}_weights")
        elif one.form == "sparse":
            names = {"indices": f"{name}_indices", "dense_shape": f"{name}_shape", "weights": f"{name}_weights"}
            found[f"{name}_values"] = Edges(keys, **names)
        elif _has_sparse_inputs(made):
            found[f"{name}__values"] = Edges(keys, splits=f"{name}__row_splits")
        else:
            found[name] = Edges(keys)
    if _is_parsed(made):
        forms = {one.name: (one.dtype, one.form == "one", one.weights) for one in made.features}
        return {_EXAMPLES: ExampleEdges({name: kind for name, kind in found.items() if isinstance(kind, Edges)}, forms)}
    return found | ({_NUMBERS: Numbers()} if made.numbers else {})


def _gathered_folder(folder: Path) -> str:
    return str(folder.parent / GATHERED)


def _table_numbers(table: Table, made: Construction) -> Any:
    numbers = normal(f"{made.name}/{table.name}", table.rows, table.dim)
    # Trained tables hold zeros of both signs and denormal numbers, too.
    numbers.reshape(-1)[5::17] = np.resize(_SMALL, numbers.reshape(-1)[5::17].shape)
    return numbers


def _specs(made: Construction, one: Feature) -> dict[str, Any]:
    spec, name = tf.TensorSpec, one.name
    if _is_parsed(made):
        return {_EXAMPLES: spec([None], tf.string, _EXAMPLES)}
    shapes = {"rows": [None], "column": [None, 1], "grid": [None, _GRID], "open_grid": [None, None]}
    if one.form in shapes:
        return {name: spec(shapes[one.form], one.dtype, name)}
    found = {f"{name}_values": spec([None], one.dtype)}
    if one.form == "ragged":
        found[f"{name}_splits"] = spec([None], tf.int64)
    else:
        found |= {f"{name}_indices": spec([None, 2], tf.int64), f"{name}_shape": spec([2], tf.int64)}
    if one.weights:
        found[f"{name}_weights"] = spec([None], tf.float32)
    return {key: spec(value.shape, value.dtype, key) for key, value in found.items()}


def _keyed(made: Construction, one: Feature, steps: Callable[[Any], Any], inputs: Mapping[str, Any]) -> Keyed:
    name = one.name
    if _is_parsed(made):
        given = inputs[_EXAMPLES]
        if one.form == "one":
            default = b"0" if one.dtype == "string" else 0
            parsed = tf.io.parse_example(given, {name: tf.io.FixedLenFeature([], one.dtype, default)})
            return Keyed(steps(parsed[name]))
        sparse = tf.io.parse_example(given, {name: tf.io.VarLenFeature(one.dtype)})[name]
        return Keyed(steps(sparse.values), indices=sparse.indices, dense_shape=sparse.dense_shape)
    if name in inputs:
        return Keyed(steps(inputs[name]))
    others = (inputs.get(f"{name}_{part}") for part in ("splits", "indices", "shape", "weights"))
    return Keyed(steps(inputs[f"{name}_values"]), *others)


class _Graph:
    """The functions of a random model of TensorFlow's own ops. params: table name -> its variable."""

    def __init__(self, made: Construction, params: Mapping[str, Any]) -> None:
        self.made, self.params, self.kept = made, params, list[Any]()
        self._steps = {one.name: drawn.chain(one.steps, self.kept) for one in made.features}
        widths = [_width(made, one) for one in made.features]
        self._tower = Tower(made.name, sum(widths) + made.numbers) if made.tower == "dense" else None
        if self._tower:
            self.kept.append(self._tower.variables)

    def rows(self, one: Feature, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a feature's rows, one for each id, and the rows scaled to its max_norm."""
        table, params, keyed = self._read(one, inputs)
        bounded = {"bounded": gathered(one, table, params, keyed.ids, one.max_norm)} if one.max_norm else {}
        return {"rows": gathered(one, table, params, ids_read(one, keyed.ids)), **bounded}

    def combined(self, one: Feature, inputs: Mapping[str, Any]) -> Any:
        return combined(one, *self._read(one, inputs))

    def _read(self, one: Feature, inputs: Mapping[str, Any]) -> tuple[Table, Any, Keyed]:
        table = self.made.table(one)
        params = read_table(one, table, self.params[one.table])
        return table, params, _keyed(self.made, one, self._steps[one.name], inputs)

    def outputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return _outputs(
            self.made, {one.name: self.combined(one, inputs) for one in self.made.features}, inputs, self._tower
        )


def _outputs(
    made: Construction, vectors: Mapping[str, Any], inputs: Mapping[str, Any], tower: Callable[[Any], Any] | None
) -> dict[str, Any]:
    if made.tower == "none":
        return {f"{name}_vector": vector for name, vector in vectors.items()}
    flat = [_flat(vectors[one.name], one) for one in made.features]
    if made.tower in ("dot", "cosine"):
        first, second = [tf.math.l2_normalize(one, 1) for one in flat[:2]] if made.tower == "cosine" else flat[:2]
        more = {f"{one.name}_vector": vectors[one.name] for one in made.features[2:]}
        return {"score": tf.reduce_sum(first * second, 1), **more}
    joined = tf.concat([*flat, *([inputs[_NUMBERS]] if _NUMBERS in inputs else [])], 1)
    return {"answer": tower(joined) if tower else joined}


def _width(made: Construction, one: Feature) -> int:
    dim = made.table(one).dim
    return dim * _GRID if one.form == "grid" and one.combiner == "none" else dim


def _flat(vectors: Any, one: Feature) -> Any:
    if one.combiner == "none" and one.form == "open_grid":
        vectors = tf.reduce_mean(vectors, 1)
    elif one.combiner == "none" and one.form in ("grid", "column"):
        vectors = tf.reshape(vectors, [-1, vectors.shape[1] * vectors.shape[2]])
    return tf.cast(vectors, tf.float32)


def _all_specs(made: Construction) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in made.features:
        found |= _specs(made, one)
    return found | ({_NUMBERS: tf.TensorSpec([None, made.numbers], tf.float32, _NUMBERS)} if made.numbers else {})


def _build_module(made: Construction, folder: Path) -> None:
    params = {t.name: tf.Variable(tf.cast(_table_numbers(t, made), t.dtype), name=t.name) for t in made.tables}
    graph, module = _Graph(made, params), tf.Module()
    module.params, module.kept = params, graph.kept

    def function(call: Callable[[Mapping[str, Any]], dict[str, Any]], specs: Mapping[str, Any]) -> Any:
        return tf.function(lambda **inputs: call(inputs)).get_concrete_function(**specs)

    signatures = {"serving_default": function(graph.outputs, _all_specs(made))}
    if made.tower != "none" and made.has_variant:
        first = made.features[0]
        signatures["first"] = function(lambda i: {"vector": graph.combined(first, i)}, _specs(made, first))
    tf.saved_model.save(module, str(folder), signatures=signatures)
    # Apart from each other: a graph that combines rows may drop ids that a gather of rows refuses.
    apart = {}
    for one in made.features:
        apart[one.name] = function(lambda i, one=one: {"combined": graph.combined(one, i)}, _specs(made, one))
        apart[f"{one.name}_rows"] = function(lambda i, one=one: graph.rows(one, i), _specs(made, one))
    tf.saved_model.save(module, _gathered_folder(folder), signatures=apart)


def _session_variables(made: Construction) -> dict[str, Any]:
    v1, found = tf.compat.v1, {}
    for table in made.tables:
        more: dict[str, Any] = {"dtype": tf.as_dtype(table.dtype), "use_resource": not made.has_variant}
        if table.parts > 1:
            more |= {"shape": [table.rows, table.dim], "partitioner": v1.fixed_size_partitioner(table.parts)}
        else:
            more["initializer"] = tf.cast(_table_numbers(table, made), table.dtype)
        found[table.name] = v1.get_variable(table.name, **more)
    return found


def _write_session(
    folder: Path, graph: Callable[[], tuple[dict[str, Any], dict[str, tuple[dict[str, Any], dict[str, Any]]]]]
) -> None:
    """Writes a TensorFlow 1 graph; graph() returns the model's signatures, and those of its features."""
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        v1.set_random_seed(7)
        for path, signatures in zip((str(folder), _gathered_folder(folder)), graph(), strict=True):
            if path == str(folder):
                session = v1.Session()
                session.run([v1.global_variables_initializer(), v1.tables_initializer()])
            builder = v1.saved_model.Builder(path)
            info = v1.saved_model.build_tensor_info
            definitions = {
                name: v1.saved_model.build_signature_def(
                    {key: info(tensor) for key, tensor in inputs.items()},
                    {key: info(tensor) for key, tensor in outputs.items()},
                    "tensorflow/serving/predict",
                )
                for name, (inputs, outputs) in signatures.items()
            }
            # TensorFlow refuses a second main_op in one graph.
            v1.get_collection_ref("saved_model_main_op").clear()
            builder.add_meta_graph_and_variables(session, ["serve"], definitions, main_op=v1.tables_initializer())
            builder.save()
        session.close()


def _build_session(made: Construction, folder: Path) -> None:
    def graph() -> Any:
        params = _session_variables(made)
        made_graph = _Graph(made, params)
        inputs = {
            name: tf.compat.v1.placeholder(spec.dtype, spec.shape, name) for name, spec in _all_specs(made).items()
        }
        apart = {}
        for one in made.features:
            own = {n: inputs[n] for n in _specs(made, one)}
            apart[one.name] = (own, {"combined": made_graph.combined(one, inputs)})
            apart[f"{one.name}_rows"] = (own, made_graph.rows(one, inputs))
        return {"serving_default": (inputs, made_graph.outputs(inputs))}, apart

    _write_session(folder, graph)


def _column(one: Feature, rows: int) -> Any:
    """Returns the categorical column whose steps the composer drew."""
    columns = tf.compat.v1.feature_column
    steps: tuple[Step, ...] = one.steps
    if not steps or isinstance(steps[0], drawn.Bounded):
        default = steps[0].other if steps and isinstance(steps[0], drawn.Bounded) else None
        return columns.categorical_column_with_identity(one.name, rows, default)
    last = steps[-1]
    if isinstance(last, drawn.Hashed):
        dtype = tf.int64 if isinstance(steps[0], drawn.AsText) else tf.string
        return columns.categorical_column_with_hash_bucket(one.name, last.buckets, dtype)
    assert isinstance(last, drawn.Vocabulary)
    keys = [key.decode() if isinstance(key, bytes) else key for key in last.keys]
    more = {"num_oov_buckets": last.buckets} if last.buckets else {"default_value": last.default}
    return columns.categorical_column_with_vocabulary_list(one.name, keys, tf.as_dtype(one.dtype), **more)


def _rows_of(one: Feature, table: Table) -> int:
    # The column's own number of rows: of a table that is not padded.
    last = one.steps[-1] if one.steps else None
    return last.high if isinstance(last, drawn.Bounded) else table.rows


def _build_columns(made: Construction, folder: Path) -> None:
    def graph() -> Any:
        v1, columns = tf.compat.v1, tf.compat.v1.feature_column
        embedded, vectors = {}, {}
        for one in made.features:
            table = made.table(one)
            column = _column(one, _rows_of(one, table))
            if one.weights:
                column = columns.weighted_categorical_column(column, f"{one.name}_weights")
            embedded[one.name] = columns.embedding_column(column, table.dim, one.combiner, max_norm=one.max_norm)
        if _is_parsed(made):
            given = v1.placeholder(tf.string, [None], _EXAMPLES)
            inputs = {_EXAMPLES: given}
            parsed = tf.io.parse_example(given, columns.make_parse_example_spec(list(embedded.values())))
        else:
            parsed = {one.name: v1.sparse_placeholder(one.dtype, [None, None], one.name) for one in made.features}
            inputs = dict(parsed)
        for one in made.features:
            parts = min(made.table(one).parts, _rows_of(one, made.table(one)))
            partitioner = v1.fixed_size_partitioner(parts) if parts > 1 else None
            with v1.variable_scope(one.name, partitioner=partitioner):
                vectors[one.name] = columns.input_layer(parsed, [embedded[one.name]])
        if _NUMBERS in _inputs(made):
            inputs[_NUMBERS] = v1.placeholder(tf.float32, [None, made.numbers], _NUMBERS)
        dense = (lambda joined: Tower(made.name, joined.shape[1])(joined)) if made.tower == "dense" else None
        apart = {}
        for name, vector in vectors.items():
            key = _EXAMPLES if _EXAMPLES in inputs else name
            apart[name] = ({key: inputs[key]}, {"combined": vector})
        return {"serving_default": (inputs, _outputs(made, vectors, inputs, dense))}, apart

    _write_session(folder, graph)


def _build_keras(made: Construction, folder: Path) -> None:
    is_3 = made.framework == "keras3"
    keras = keras3() if is_3 else tf_keras()
    layers, kept = _embedding_layers(made, keras), list[Any]()
    given, rows, combined_by = {}, {}, {}
    for one in made.features:
        shape = {"rows": (), "column": (1,), "grid": (_GRID,), "open_grid": (None,)}[one.form]
        key = given[one.name] = keras.Input(shape, dtype=one.dtype, name=one.name)
        for step in one.steps:
            key = _step_layer(keras, step, kept, is_3=is_3)(key)
        layer = layers[one.table]
        rows[one.name] = layer(key)
        combined_by[one.name] = _pooled(keras, one, rows[one.name])
        if one.layer == "mixed_bfloat16":
            # A lookup answers the table's rows; only what the model does with them is rounded.
            stored = keras.layers.Embedding(*layer.embeddings.shape, dtype="float32")
            rows[one.name] = stored(key)
            stored.embeddings.assign(layer.embeddings)
    numbers = keras.Input((made.numbers,), name=_NUMBERS) if made.numbers else None
    outputs = _keras_outputs(keras, made, combined_by, numbers)
    model = keras.Model({**given, **({_NUMBERS: numbers} if made.numbers else {})}, outputs)
    for one in made.features:
        if one.layer == "int8":
            layers[one.table].quantize("int8")
        elif one.layer == "lora":
            layers[one.table].enable_lora(2)
            layers[one.table].lora_embeddings_b.assign(tf.ones_like(layers[one.table].lora_embeddings_b) * 0.25)
    parts = {
        name: keras.Model({name: given[name]}, {"rows": rows[name], "combined": combined_by[name]}) for name in given
    }
    if is_3:
        model.export(str(folder), verbose=False)
        archive = keras.export.ExportArchive()
        for name, part in parts.items():
            archive.track(part)
            archive.add_endpoint(name, part.call, [{name: _specs(made, _feature(made, name))[name]}])
        archive.write_out(_gathered_folder(folder), verbose=False)
        return
    if made.has_variant:
        tf.saved_model.save(model, str(folder))
    else:
        model.export(str(folder))
    holder = tf.Module()
    holder.parts, holder.kept = parts, kept
    signatures = {
        name: tf.function(lambda inputs, part=part: part(inputs)).get_concrete_function(
            {name: _specs(made, _feature(made, name))[name]}
        )
        for name, part in parts.items()
    }
    tf.saved_model.save(holder, _gathered_folder(folder), signatures=signatures)


def _feature(made: Construction, name: str) -> Feature:
    return next(one for one in made.features if one.name == name)


def _embedding_layers(made: Construction, keras: Any) -> dict[str, Any]:
    found = {}
    for table in made.tables:
        one = next(one for one in made.features if one.table == table.name)
        kind = keras.layers.ReversibleEmbedding if one.layer == "reversible" else keras.layers.Embedding
        dtype = one.layer if one.layer == "mixed_bfloat16" else table.dtype
        found[table.name] = kind(
            table.rows,
            table.dim,
            embeddings_initializer=keras.initializers.RandomNormal(0, 1, seed=7),
            mask_zero=one.combiner == "keras_masked_mean",
            dtype=dtype if one.layer not in ("int8", "lora") else "float32",
            name=table.name,
        )
    return found


def _step_layer(keras: Any, step: Step, kept: list[Any], *, is_3: bool) -> Any:
    if isinstance(step, drawn.KerasLayer):
        return step.made(keras)
    apply = step.prepare(kept)
    if not is_3:
        layer = keras.layers.Lambda(apply)
        layer.kept = [*kept]
        return layer

    class Layer(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self._convert_input_args, self.autocast = False, False
            self.kept = kept

        def call(self, keys: Any) -> Any:
            return apply(keys)

        def compute_output_spec(self, keys: Any) -> Any:
            return keras.KerasTensor(keys.shape, drawn.dtype_after(step) or keys.dtype)

    return Layer()


def _pooled(keras: Any, one: Feature, rows: Any) -> Any:
    layers = keras.layers
    if one.combiner in ("keras_mean", "keras_masked_mean"):
        return layers.GlobalAveragePooling1D()(rows)
    if one.combiner == "keras_max":
        return layers.GlobalMaxPooling1D()(rows)
    if one.combiner == "keras_sum":
        return layers.Lambda(lambda x: _sum_of(x), output_shape=(rows.shape[-1],))(rows)
    return rows


def _sum_of(rows: Any) -> Any:
    return tf.reduce_sum(rows, 1)


def _keras_outputs(keras: Any, made: Construction, vectors: Mapping[str, Any], numbers: Any) -> Any:
    layers = keras.layers
    if made.tower == "none":
        return {f"{name}_vector": vector for name, vector in vectors.items()}
    flat = []
    for one in made.features:
        vector = vectors[one.name]
        if one.combiner == "none" and one.form != "rows":
            vector = layers.GlobalAveragePooling1D()(vector) if one.form == "open_grid" else layers.Flatten()(vector)
        flat.append(vector)
    if made.tower in ("dot", "cosine"):
        return {"score": layers.Dot(axes=1, normalize=made.tower == "cosine")(flat[:2])}
    flat += [numbers] if made.numbers else []
    joined = flat[0] if len(flat) == 1 else layers.Concatenate()(flat)
    return {"answer": layers.Dense(3, activation="relu")(joined) if made.tower == "dense" else joined}


@dataclass(frozen=True, slots=True)
class Keyed:
    """The rows that a graph computed for one input.

    ids: row numbers, [B], [B, K] or, with splits or indices, [N].
    """

    ids: Any
    splits: Any = None
    indices: Any = None
    dense_shape: Any = None
    weights: Any = None

    def sparse(self, values: Any) -> Any:
        if self.indices is not None:
            return tf.SparseTensor(self.indices, values, self.dense_shape)
        return self.ragged(values).to_sparse()

    def ragged(self, values: Any) -> Any:
        return tf.RaggedTensor.from_row_splits(values, self.splits)


def read_table(feature: Feature, table: Table, params: Any) -> Any:
    """Returns the table as the graph changes it before it gathers rows; see random_models.READS."""
    if feature.layer == "zero_row":
        return tf.concat([tf.zeros([1, table.dim], params.dtype), params], 0)
    if feature.layer == "cast_table":
        return tf.cast(params, tf.float32)
    if feature.layer == "normalized":
        return tf.math.l2_normalize(params, 1)
    if feature.layer == "sliced":
        return params[: max(1, table.rows - 1)]
    return tf.reverse(params, [0]) if feature.layer == "reversed" else params


def gathered(feature: Feature, table: Table, params: Any, ids: Any, max_norm: float | None = None) -> Any:
    """Returns the row of each id, as the model reads it from the table or from what read_table() made of it."""
    if feature.layer == "one_hot":
        return tf.linalg.matmul(tf.one_hot(ids, table.rows, dtype=params.dtype)[..., None, :], params)[..., 0, :]
    if table.parts > 1 or max_norm:
        return tf.compat.v1.nn.embedding_lookup(params, ids, partition_strategy=table.strategy, max_norm=max_norm)
    return tf.gather(params, ids)


def _after_gather(feature: Feature, rows: Any, ids: Any) -> Any:
    if feature.layer == "zeroed":
        return rows * tf.cast(tf.not_equal(ids, 0), rows.dtype)[..., None]
    return rows * tf.cast(rows.shape[-1] ** 0.5, rows.dtype) if feature.layer == "scaled" else rows


def combined(feature: Feature, table: Table, params: Any, keyed: Keyed) -> Any:
    """Returns the vectors that the model computes from an input's rows: [B, D], or [B, K, D] without a combiner."""
    kind, _, name = feature.combiner.rpartition("_")
    if "lookup_sparse" in kind or "safe" in kind:
        return _by_lookup(feature, table, params, keyed, kind, name)
    if kind in ("sparse_segment", "counted_segment"):
        segment = getattr(tf.sparse, f"segment_{name.replace('sqrtn', 'sqrt_n')}")
        count = tf.size(keyed.splits) - 1 if kind == "counted_segment" else None
        return segment(params, keyed.ids, _row_numbers(keyed.splits), num_segments=count)
    rows = gathered(feature, table, params, ids_read(feature, keyed.ids), feature.max_norm)
    rows = _after_gather(feature, rows, keyed.ids)
    if feature.combiner == "none":
        return rows
    if feature.combiner in ("sum", "mean"):
        return tf.reduce_sum(rows, 1) if name == "sum" else tf.reduce_mean(rows, 1)
    if feature.combiner.startswith("mean_not"):
        is_id = tf.not_equal(keyed.ids, 0) if feature.combiner == "mean_not_0" else keyed.ids >= 0
        counts = tf.cast(is_id, rows.dtype)[..., None]
        return tf.reduce_sum(rows * counts, 1) / tf.maximum(tf.reduce_sum(counts, 1), 1)
    if kind == "reduce":
        return getattr(tf, feature.combiner)(tf.RaggedTensor.from_row_splits(rows, keyed.splits), axis=1)
    if kind == "segment":
        return getattr(tf.math, feature.combiner)(rows, _row_numbers(keyed.splits))
    assert kind == "unsorted_segment", feature.combiner
    segments = getattr(tf.math, feature.combiner.replace("sqrtn", "sqrt_n"))
    return segments(rows, _row_numbers(keyed.splits), tf.size(keyed.splits) - 1)


def ids_read(feature: Feature, ids: Any) -> Any:
    """Returns the ids at which the model reads the table: -1 of a padded row reads row 0, whose number is left out."""
    return tf.maximum(ids, 0) if feature.combiner == "mean_not_minus_1" else ids


def _by_lookup(feature: Feature, table: Table, params: Any, keyed: Keyed, kind: str, name: str) -> Any:
    nn = tf.compat.v1.nn
    dtype = "float32" if feature.layer == "cast_table" else table.dtype
    given = keyed.ragged if kind.startswith("ragged") else keyed.sparse
    weights = None if keyed.weights is None else given(tf.cast(keyed.weights, dtype))
    options = {"combiner": name, "max_norm": feature.max_norm}
    if kind.startswith("ragged"):
        return tf.nn.embedding_lookup_sparse(params, given(keyed.ids), weights, **options)
    options["partition_strategy"] = table.strategy
    if kind.startswith("safe"):
        default = 0 if kind == "safe_default" else None
        return nn.safe_embedding_lookup_sparse(params, given(keyed.ids), weights, default_id=default, **options)
    if kind == "fast_lookup_sparse":
        options["allow_fast_lookup"] = True
    return nn.embedding_lookup_sparse(params, given(keyed.ids), weights, **options)


def _row_numbers(splits: Any) -> Any:
    return tf.repeat(tf.range(tf.size(splits) - 1), tf.cast(splits[1:] - splits[:-1], tf.int32))
