"""Exports a model whose answers are easy to compute by hand: rows of tables, and a sum of two vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.foreign.frameworks import tf
from model_export.graphs.lookup_graph import build_lookup, vocabulary_tables
from model_export.graphs.reduced_graph import ReducedVariables
from model_export.graphs.source import LookupPlan, PredictSignature, SavedParts
from model_export.graphs.tpu_graph import add_tpu_meta_graph, tpu_call
from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec, VocabularySpec

SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
TWO_FEATURES = ModelSpec(
    (TableSpec("item", 9, 2),),
    (FeatureSpec("a", "item"), FeatureSpec("b", "item", is_ragged=True, max_ids_per_row=3)),
)
EVERY_POLICY = ModelSpec(
    (TableSpec("item", 9, 2), TableSpec("word", 12, 3, "sum")),
    (
        FeatureSpec("plain", "item"),
        FeatureSpec("dropped", "item", on_bad_id="drop"),
        FeatureSpec("defaulted", "item", is_ragged=True, max_ids_per_row=3, on_bad_id="default_row", default_id=4),
        FeatureSpec("clamped", "item", is_ragged=True, max_ids_per_row=3, on_bad_id="clamp", combiner="sum"),
        FeatureSpec(
            "pruned",
            "item",
            is_ragged=True,
            max_ids_per_row=4,
            on_bad_id="drop_negative",
            on_nonpositive_weight="drop",
            on_too_many_ids="truncate",
        ),
        FeatureSpec("steps", "item", is_ragged=True, max_sequence_length=3, on_bad_id="drop"),
        FeatureSpec(
            "words", "word", is_ragged=True, max_ids_per_row=3, vocabulary=VocabularySpec(("x", "y", "z"), 1, 0)
        ),
        FeatureSpec("hashed", "word", vocabulary=VocabularySpec(("x", "y", "z"), 1, num_oov_buckets=8)),
        FeatureSpec(
            "numbered",
            "word",
            is_ragged=True,
            max_ids_per_row=3,
            vocabulary=VocabularySpec((100, -7, 5), on_oov="drop"),
            on_bad_id="drop",
        ),
        FeatureSpec("known", "word", vocabulary=VocabularySpec(("x", "y"))),
        FeatureSpec("named", "word", vocabulary=VocabularySpec(("p", "q"), 1, 0), sends_rows=True),
    ),
)


def numbered_tables(spec: ModelSpec) -> dict[str, np.ndarray]:
    """Returns tables whose numbers count up from 1 in steps of 1/8, which float32 holds exactly."""
    return {
        t.name: (1 + np.arange(t.vocabulary_size * t.embedding_dim)).reshape(-1, t.embedding_dim).astype(np.float32) / 8
        for t in spec.tables
    }


class TableSource(tf.Module):  # type: ignore[misc]
    """An ExportSource of any spec; with features "a" and "b" it has two predict signatures.

    Args:
      answer: changes the result of predict(), so that it differs from the saved graph's.
      saved_tables: tables that save() writes instead of the trained ones.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tables: Mapping[str, np.ndarray] | None = None,
        *,
        answer: Callable[[np.ndarray], np.ndarray] = lambda score: score,
        saved_tables: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        super().__init__()
        self._spec_of_tables = spec
        self._trained = dict(tables or numbered_tables(spec))
        self._answer = answer
        self.tables = {name: tf.Variable(table) for name, table in (saved_tables or self._trained).items()}
        self.vocabularies: dict[str, Any] = {}

    @property
    def spec(self) -> ModelSpec:
        return self._spec_of_tables

    @property
    def provenance(self) -> Mapping[str, Any]:
        return {"history": [{"epoch": 1, "loss": 0.5}]}

    @property
    def predict_names(self) -> Sequence[str]:
        """Returns the names of two predict signatures if the spec has the features "a" and "b"."""
        return ("serving_default", "examples") if self.spec is TWO_FEATURES else ()

    def save(self, folder: Path, plan: LookupPlan, predict: Sequence[str]) -> SavedParts:
        self.vocabularies = vocabulary_tables(self.spec, plan.vocabulary_files)
        reduced = ReducedVariables(plan.reduced)
        trained, self.scales = self.tables, reduced.scales
        lookup_tables = reduced.for_lookups(trained)
        self.trained, self.tables = trained, {**trained, **reduced.tables}
        build = partial(build_lookup, spec=self.spec, tables=lookup_tables, vocabularies=self.vocabularies)
        functions = {name: build(entry).function() for name, entry in plan.lookups.items()}
        own = {"serving_default": self._from_ids(), "examples": self._from_examples()} if self.predict_names else {}
        tf.saved_model.save(self, str(folder), signatures=functions | {name: own[name] for name in predict})
        if plan.export_to_tpu:
            on_tpu = {
                name: build(entry, compiled=lambda combine: partial(tpu_call, combine)).function()
                for name, entry in plan.lookups.items()
                if entry.batch_sizes
            }
            add_tpu_meta_graph(folder, self, on_tpu)
        described = {
            "serving_default": PredictSignature(("a", "b")),
            "examples": PredictSignature(examples_input="examples", dense_fields={"bias": 1}),
        }
        return SavedParts(
            {table.name: f"tables/{table.name}{SUFFIX}" for table in self.spec.tables},
            {name: described[name] for name in predict},
            reduced.scale_keys(),
        )

    def table_rows(self, table: str, start: int, stop: int) -> np.ndarray:
        return self._trained[table][start:stop]

    def predict(self, signature: str, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Computes score = sum of the vectors of a and b, plus the bias, with numpy."""
        table = self._trained["item"].astype(np.float64)
        if signature == "serving_default":
            splits = inputs["b__row_splits"]
            bags = [inputs["b__values"][i:j] for i, j in zip(splits[:-1], splits[1:], strict=True)]
            ids, bias = inputs["a"], inputs["bias"]
        else:
            fields = [tf.train.Example.FromString(e).features.feature for e in inputs["examples"]]
            bags = [np.array(f["b"].int64_list.value, int) for f in fields]
            ids = np.array([f["a"].int64_list.value[0] for f in fields])
            bias = np.array([f["bias"].float_list.value[0] for f in fields])
        score = table[ids].sum(axis=1) + np.array([table[bag].sum() for bag in bags]) + bias
        return {"score": self._answer(score.astype(np.float32))}

    def _score(self, ids: Any, bags: Any, bias: Any) -> dict[str, Any]:
        sums = tf.reduce_sum(self.trained["item"], axis=1)
        return {"score": tf.gather(sums, ids) + tf.reduce_sum(tf.gather(sums, bags), axis=1) + bias}

    def _from_ids(self) -> Any:
        def serve(a: Any, b__values: Any, b__row_splits: Any, bias: Any) -> Any:
            return self._score(a, tf.RaggedTensor.from_row_splits(b__values, b__row_splits), bias)

        ids = tf.TensorSpec([None], tf.int64)
        return tf.function(serve, input_signature=[ids, ids, ids, tf.TensorSpec([None], tf.float32)])

    def _from_examples(self) -> Any:
        def serve(examples: Any) -> Any:
            fields = {
                "a": tf.io.FixedLenFeature([], tf.int64),
                "b": tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64),
                "bias": tf.io.FixedLenFeature([1], tf.float32),
            }
            parsed = tf.io.parse_example(examples, fields)
            return self._score(parsed["a"], parsed["b"], parsed["bias"][:, 0])

        return tf.function(serve, input_signature=[tf.TensorSpec([None], tf.string, "examples")])
