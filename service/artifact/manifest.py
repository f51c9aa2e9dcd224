"""Reads and writes the lookup manifest (`assets.extra/lookup_manifest.json`) of a SavedModel's tables and lookups.

The manifest describes; it holds no weights and no code. Tables say where their bytes lie in `variables/`, features say
which table and vocabulary they use, signatures say how each feature travels and is combined. TensorFlow Serving ignores
the file, so the artifact stays a stock SavedModel.

The manifest's format has a version number of its own: a reader accepts formats up to FORMAT_VERSION and refuses newer
ones.

>>> LookupFeature.from_json({"ids": "g__values", "row_splits": "g__row_splits", "combiner": "mean"}).on_bad_id
'error'
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

from service.artifact.files import read_plain_file
from service.errors import ArtifactError
from service.types import SCALED_DTYPES

T = TypeVar("T")

_JSON_TYPES: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "str": (str,),
    "int | None": (int, type(None)),
    "str | None": (str, type(None)),
    "float | None": (float, int, type(None)),
}


def build(cls: type[T], data: Any, where: str) -> T:
    """Builds a dataclass from the fields of a JSON object; raises ArtifactError naming the field at fault."""
    if not isinstance(data, dict):
        raise ArtifactError(f"manifest: {where} is not an object")
    fields = {f.name: f for f in dataclasses.fields(cast(Any, cls))}
    unknown = sorted(set(data) - set(fields))
    missing = sorted(n for n, f in fields.items() if f.default is dataclasses.MISSING and n not in data)
    if unknown or missing:
        raise ArtifactError(f"manifest: {where} has unknown fields {unknown} and lacks {missing}")
    for name, value in data.items():
        wanted = _JSON_TYPES.get(str(fields[name].type))
        if wanted and (not isinstance(value, wanted) or isinstance(value, bool)):
            raise ArtifactError(f"manifest: {where}.{name} is {value!r}, expected {fields[name].type}")
        if isinstance(value, int) and value < 0:
            raise ArtifactError(f"manifest: {where}.{name} is negative")
    return cls(**data)


def json_object(data: Mapping[str, Any], name: str, *, required: bool = True) -> Mapping[str, Any]:
    value = data.get(name, None if required else {})
    if not isinstance(value, dict):
        raise ArtifactError(f"manifest: {name} is {'missing' if value is None else 'not an object'}")
    return cast(Mapping[str, Any], value)


def entries(
    data: Mapping[str, Any], name: str, build_one: Callable[[Any, str], T], *, required: bool = True
) -> dict[str, T]:
    """Builds each entry of a manifest's field that maps names to entries; raises ArtifactError."""
    return {key: build_one(value, f"{name}.{key}") for key, value in json_object(data, name, required=required).items()}


@dataclasses.dataclass(frozen=True, slots=True)
class LabelEntry:
    """The files with the labels of a table's rows, which people see in place of row ids (format 5).

    file: UTF-8 text; line i is the label of row i, and an empty line is no label. starts: [V + 1] int64, little-endian:
    the place where each line begins, and the size of the text.
    """

    file: str
    starts: str


FORMAT_VERSION = 5
MANIFEST_PATH = "assets.extra/lookup_manifest.json"
# Largest manifest that is read: JSON of empty lists takes some twenty times its size when it is parsed.
MAX_MANIFEST_BYTES = 32 << 20
# Key in the provenance of a model that another program exported; its value is the name of its folder.
ADOPTED_FROM = "adopted_from"
# Key in the provenance of a model; its value is what every operator of the model should know, such as that it is a toy.
NOTICE = "notice"

Combiner = Literal["sum", "mean", "sqrtn"]
LookupDevice = Literal["cpu", "tpu_tensor_core"]
BadIdPolicy = Literal["error", "drop", "drop_negative", "default_row", "clamp", "wrap"]
MeanDivisor = Literal["sum_weights", "at_least_one"]
TooManyPolicy = Literal["error", "truncate"]
WeightPolicy = Literal["keep", "drop"]
KeyDtype = Literal["string", "int64"]
OovPolicy = Literal["error", "drop"]
EmptyRowPolicy = Literal["zeros", "nan", "default_row"]
TrailingRowPolicy = Literal["keep", "cut"]
GraphRun = Literal["cut", "whole"]
Summation = Literal["in_order", "blocks_of_8", "four_lanes", "segment_mean"]
# Orders of additions of ops that take no weights.
UNWEIGHTED: tuple[Summation, ...] = ("blocks_of_8", "segment_mean")


@dataclass(frozen=True, slots=True)
class TableScale:
    """The place of an int8 or int4 table's scales in a file: [V] or [V, 1] float32, one per row; see TableEntry."""

    variable: str
    file: str
    offset: int
    nbytes: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class TableEntry:
    """The manifest's entry of one [V, D] table: dtype, and the place of the table's bytes in a file.

    variable: key in the index beside file, which is variables/variables.index unless the table was written apart.
    dtype: "float32", "float16", "bfloat16", "int8" or "int4"; answers are float32. A row of int4 is
      ceil(D / 2) bytes, saved as uint8: column 2 i is the low half of byte i, in two's complement.
    file: data shard, relative to the artifact; the table is nbytes at offset, row-major, little-endian.
    crc32c: masked checksum of those bytes, as the index holds it.
    scale: place of the rows' scales; int8 and int4 tables have it, and no other table.
    """

    variable: str
    vocabulary_size: int
    embedding_dim: int
    dtype: str
    file: str
    offset: int
    nbytes: int
    crc32c: int
    scale: TableScale | None = None


@dataclass(frozen=True, slots=True)
class VocabularyEntry:
    """The vocabulary file of a feature: the key in line i (UTF-8) stands for row first_id + i of the table.

    key_dtype: "string", or "int64" where each line is a decimal number.
    num_oov_buckets: n > 0 sends any other key to row first_id + size + fingerprint(key) % n, the fingerprint being
      FarmHash's Fingerprint64 of the key's bytes (of its decimal digits for int64).
    oov_id: row of any other key, where there are no buckets.
    on_oov: policy for any other key, without buckets and oov_id: "error", or "drop" as if the key were not sent.
    first_oov_id: row of bucket 0 where the buckets do not follow the last line; fingerprint(key) % n is added to it.
    empty_key_id: row of the empty string where the model gives it one (Keras' mask_token ""); None: it is a key like
      any other.

    Hashed keys have no file: file is "", size is 0, and each key goes to its bucket, from row first_id on.
    """

    file: str
    size: int
    first_id: int = 0
    oov_id: int | None = None
    num_oov_buckets: int = 0
    on_oov: OovPolicy = "error"
    key_dtype: KeyDtype = "string"
    first_oov_id: int | None = None
    empty_key_id: int | None = None

    @property
    def first_bucket(self) -> int:
        return self.first_id + self.size if self.first_oov_id is None else self.first_oov_id

    @property
    def unknown_key_rows(self) -> range:
        """The rows that lookups read for unknown keys; none if all keys are hashed, as no key is then unknown."""
        if self.file and self.num_oov_buckets:
            return range(self.first_bucket, self.first_bucket + self.num_oov_buckets)
        return range(0) if not self.file or self.oov_id is None else range(self.oov_id, self.oov_id + 1)

    @property
    def last_id(self) -> int:
        behind_buckets = self.first_bucket + self.num_oov_buckets if self.num_oov_buckets else 0
        return max(self.first_id + self.size, behind_buckets, (self.oov_id or 0) + 1, (self.empty_key_id or 0) + 1) - 1


@dataclass(frozen=True, slots=True)
class FeatureEntry:
    """The manifest's entry of a feature, for all signatures: the table that it reads, and the vocabulary of its keys.

    Features may share a table.
    """

    table: str
    vocabulary: str | None = None


@dataclass(frozen=True, slots=True)
class LookupFeature:
    """The manifest's entry of one feature in one signature: its inputs, its output, and the combiner of its rows.

    ids, row_splits, weights: names of the feature's inputs. Without row_splits nothing is combined: ids of shape [B]
      give [B, D], and ids of shape [B, K] give [B, K, D], or [B, K * D] where the signature says so.
    output: the output that holds this feature alone; None where it is only a part of SignatureEntry.concatenated.
    max_sequence_length: L, the length of the output's sequences: nothing is combined, the output is [B, L, D], a
      shorter row ends in zeros, a longer one is cut. A feature with it has no combiner, weights or max_ids_per_row.
    on_bad_id: policy for an id outside [0, V): "error"; "drop" (as if it were not sent; zeros in its place in a
      sequence or a row of one id); "drop_negative" (drops an id below 0, any other is an error); "default_row" (reads
      default_row instead); "clamp" (reads the nearest row); "wrap" (an id from -V to -1 counts from the table's end, as
      keras.ops.take does, any other is an error).
    on_nonpositive_weight: "drop" leaves an id out whose weight is 0 or less.
    mean_divisor: "sum_weights" divides a mean by sum(w), 0 giving zeros (CPU); "at_least_one" by max(sum(w), 1)
      (tensor core).
    max_ids_per_row: K of a padded lookup; on_too_many_ids says whether a longer row is refused or cut at K.
    max_norm: a row of the table whose Euclidean norm is larger is scaled down to this norm before it is weighted and
      combined.
    on_empty_row: the output of an empty row, in which no id counts (none was sent, or all were dropped): "zeros";
      "nan"; or "default_row", the vector of default_row.
    trailing_empty_rows: "cut" leaves out the empty rows at the end of the output, as tf.math.segment_mean does;
      "keep" answers all rows.
    summation: the order of additions; the last bits of a sum depend on it. "in_order": one vector after
      the other. "blocks_of_8": as tf.sparse.segment_sum adds - the first n % 8 vectors (8 where that is 0, 9 where it
      is 1), then blocks of 8, each added up by itself; a mean or sqrtn of fewer than 10 multiplies by the reciprocal.
      "four_lanes": as tf.math.segment_sum adds - from 16 vectors on, vectors 0, 4, 8, ..., then 1, 5, 9, ... and so on
      in four sums, and these in order, for each whole packet of 8 columns; other columns in order. "segment_mean": in
      order, as tf.math.segment_mean adds. Only "in_order" begins with zeros in each row; the others copy the vector of
      a row with one id that has no weight.
    """

    ids: str
    row_splits: str | None = None
    weights: str | None = None
    output: str | None = None
    combiner: Combiner | None = None
    on_bad_id: BadIdPolicy = "error"
    default_row: int = 0
    mean_divisor: MeanDivisor = "sum_weights"
    max_ids_per_row: int | None = None
    on_too_many_ids: TooManyPolicy = "error"
    on_nonpositive_weight: WeightPolicy = "keep"
    max_sequence_length: int | None = None
    max_norm: float | None = None
    on_empty_row: EmptyRowPolicy = "zeros"
    trailing_empty_rows: TrailingRowPolicy = "keep"
    summation: Summation = "in_order"

    @property
    def is_foreign(self) -> bool:
        """Whether a field has a value that only adopted models have, and no graph of the exporter."""
        plain = (None, "zeros", "keep", "in_order")
        is_plain = (self.max_norm, self.on_empty_row, self.trailing_empty_rows, self.summation) == plain
        return not is_plain or self.on_bad_id == "wrap"

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> LookupFeature:
        entry = build(LookupFeature, data, "features")
        for name, allowed in _CHOICES.items():
            if getattr(entry, name) not in allowed:
                raise ArtifactError(f"manifest: {name} is {getattr(entry, name)!r}, expected one of {allowed}")
        reductions = (entry.combiner is not None) + (entry.max_sequence_length is not None)
        if reductions != (entry.row_splits is not None):
            raise ArtifactError(
                f"manifest: input {entry.ids!r} needs row_splits with either combiner or max_sequence_length, or none"
            )
        if entry.weights is not None and entry.row_splits is None:
            raise ArtifactError(f"manifest: input {entry.ids!r} has weights but no row_splits")
        if entry.max_sequence_length is not None and (entry.weights or entry.max_ids_per_row):
            raise ArtifactError(
                f"manifest: input {entry.ids!r} is a sequence, which has neither weights nor max_ids_per_row"
            )
        if entry.combiner is None and (entry.on_empty_row != "zeros" or entry.trailing_empty_rows != "keep"):
            raise ArtifactError(f"manifest: input {entry.ids!r} has a policy for empty rows but combines nothing")
        if entry.summation in UNWEIGHTED and entry.weights is not None:
            raise ArtifactError(f"manifest: input {entry.ids!r} has weights, which {entry.summation} does not have")
        if entry.max_norm is not None and not 0 < entry.max_norm < float("inf"):
            raise ArtifactError(f"manifest: input {entry.ids!r} has max_norm {entry.max_norm}, expected more than 0")
        for name in ("max_ids_per_row", "max_sequence_length"):
            if getattr(entry, name) == 0:
                raise ArtifactError(f"manifest: input {entry.ids!r} has {name} 0, expected 1 or more, or null")
        return entry


@dataclass(frozen=True, slots=True)
class SignatureEntry:
    """The manifest's entry of one signature of the SavedModel.

    kind: "lookup" runs on the mapped tables, "predict" runs the graph.
    batch_sizes: static sizes that a tensor-core graph pads rows to; rows beyond the last are refused.
    concatenated: only lookups: output -> the features whose vectors it holds side by side, in that order.
    run: only predicts: "cut" feeds looked-up rows to what is left of the graph; "whole" runs the whole graph in
      TensorFlow, because that was measured to be faster.
    """

    kind: Literal["lookup", "predict"]
    features: Mapping[str, LookupFeature]
    device: LookupDevice | None = None
    batch_sizes: tuple[int, ...] = ()
    concatenated: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    run: GraphRun = "cut"

    @property
    def output_names(self) -> set[str]:
        return {f.output for f in self.features.values() if f.output is not None} | set(self.concatenated)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A parsed lookup manifest. Its fields provenance and parity are for people; the server shows unproven and notice.

    labels: table -> the files with the labels of its rows.
    files: every other file of the artifact -> its size in bytes; a version folder is complete when all sizes agree.
    """

    tables: Mapping[str, TableEntry]
    features: Mapping[str, FeatureEntry]
    signatures: Mapping[str, SignatureEntry]
    vocabularies: Mapping[str, VocabularyEntry] = field(default_factory=dict)
    labels: Mapping[str, LabelEntry] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    parity: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps({"format_version": FORMAT_VERSION, **dataclasses.asdict(self)}, indent=1) + "\n"

    @staticmethod
    def from_json(text: str | bytes) -> Manifest:
        """Parses a manifest's JSON text, and checks that its entries do not contradict each other.

        Raises:
          ArtifactError: not JSON, a newer format, an unknown or missing field, or a table, feature or vocabulary that
            is not defined.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ArtifactError(f"{MANIFEST_PATH} is not valid JSON: {error}") from error
        if not isinstance(data, dict):
            raise ArtifactError(f"{MANIFEST_PATH} is not a JSON object")
        version = data.pop("format_version", None)
        if type(version) is not int or version < 1:
            raise ArtifactError(f"manifest: format_version is {version!r}, expected a positive integer")
        if version > FORMAT_VERSION:
            raise ArtifactError(
                f"manifest format {version} is newer than this server reads ({FORMAT_VERSION}); upgrade the server"
            )
        manifest = Manifest(
            tables=entries(data, "tables", _table),
            features=entries(data, "features", partial(build, FeatureEntry)),
            signatures=entries(data, "signatures", _signature),
            vocabularies=entries(data, "vocabularies", _vocabulary, required=False),
            labels=entries(data, "labels", partial(build, LabelEntry), required=False),
            files=json_object(data, "files", required=False),
            provenance=json_object(data, "provenance", required=False),
            parity=json_object(data, "parity", required=False),
        )
        _cross_check(manifest)
        return manifest

    @staticmethod
    def read(artifact: Path) -> Manifest | None:
        """Reads an artifact's manifest file; None if the SavedModel has no manifest. Raises ArtifactError."""
        path = artifact / MANIFEST_PATH
        try:
            return Manifest.from_json(read_plain_file(path, MAX_MANIFEST_BYTES))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ArtifactError(f"cannot read {path}: {error.strerror}") from error


_CHOICES: Mapping[str, tuple[Any, ...]] = {
    "combiner": (*get_args(Combiner), None),
    "on_bad_id": get_args(BadIdPolicy),
    "mean_divisor": get_args(MeanDivisor),
    "on_too_many_ids": get_args(TooManyPolicy),
    "on_nonpositive_weight": get_args(WeightPolicy),
    "on_empty_row": get_args(EmptyRowPolicy),
    "trailing_empty_rows": get_args(TrailingRowPolicy),
    "summation": get_args(Summation),
}


def _table(data: Any, where: str) -> TableEntry:
    if isinstance(data, dict) and data.get("scale") is not None:
        data = data | {"scale": build(TableScale, data["scale"], f"{where}.scale")}
    entry = build(TableEntry, data, where)
    if (entry.dtype in SCALED_DTYPES) != (entry.scale is not None):
        raise ArtifactError(
            f"manifest: {where} is {entry.dtype}; int8 and int4 tables have a scale, and no other table has one"
        )
    return entry


def _signature(data: Any, where: str) -> SignatureEntry:
    if not isinstance(data, dict) or data.get("kind") not in ("lookup", "predict"):
        raise ArtifactError(f'manifest: {where}.kind is not "lookup" or "predict"')
    if data.get("device") not in (*get_args(LookupDevice), None):
        raise ArtifactError(f"manifest: {where}.device is {data.get('device')!r}, expected {get_args(LookupDevice)}")
    sizes = data.get("batch_sizes", [])
    if not isinstance(sizes, list) or not all(type(s) is int and s > 0 for s in sizes) or sizes != sorted(sizes):
        raise ArtifactError(f"manifest: {where}.batch_sizes is not an ascending list of positive integers")
    if (run := data.get("run", "cut")) not in get_args(GraphRun):
        raise ArtifactError(f"manifest: {where}.run is {run!r}, expected one of {get_args(GraphRun)}")
    features = {k: LookupFeature.from_json(v) for k, v in json_object(data, "features").items()}
    concatenated = {}
    for output, parts in json_object(data, "concatenated", required=False).items():
        if not isinstance(parts, list) or not parts or not set(map(str, parts)) <= features.keys():
            raise ArtifactError(f"manifest: {where}.concatenated.{output} is {parts!r}, expected names of its features")
        concatenated[output] = tuple(parts)
    return SignatureEntry(data["kind"], features, data.get("device"), tuple(sizes), concatenated, run)


def _vocabulary(data: Any, where: str) -> VocabularyEntry:
    entry = build(VocabularyEntry, data, where)
    for name, allowed in (("on_oov", get_args(OovPolicy)), ("key_dtype", get_args(KeyDtype))):
        if getattr(entry, name) not in allowed:
            raise ArtifactError(f"manifest: {where}.{name} is {getattr(entry, name)!r}, expected one of {allowed}")
    if entry.num_oov_buckets and entry.oov_id is not None:
        raise ArtifactError(f"manifest: {where} has both oov_id and num_oov_buckets")
    if not entry.file and (entry.size or not entry.num_oov_buckets):
        raise ArtifactError(f"manifest: {where} has no file, so its size must be 0 and num_oov_buckets 1 or more")
    return entry


def _cross_check(manifest: Manifest) -> None:
    for name, feature in manifest.features.items():
        if feature.table not in manifest.tables:
            raise ArtifactError(f"manifest: feature {name!r} uses table {feature.table!r}, which is not defined")
        if feature.vocabulary is not None and feature.vocabulary not in manifest.vocabularies:
            raise ArtifactError(f"manifest: feature {name!r} uses vocabulary {feature.vocabulary!r}, not defined")
    if strangers := sorted(manifest.labels.keys() - manifest.tables.keys()):
        raise ArtifactError(f"manifest: labels of {strangers}, which are no tables")
    for name, signature in manifest.signatures.items():
        outputs = [lookup.output for lookup in signature.features.values() if lookup.output is not None]
        outputs += signature.concatenated
        if len(set(outputs)) != len(outputs):
            raise ArtifactError(f"manifest: signature {name!r} gives two features the same output")
        answered = {key for parts in signature.concatenated.values() for key in parts}
        for key, lookup in signature.features.items():
            if key not in manifest.features:
                raise ArtifactError(f"manifest: signature {name!r} uses feature {key!r}, which is not defined")
            if signature.kind == "lookup" and lookup.output is None and key not in answered:
                raise ArtifactError(f"manifest: signature {name!r} gives feature {key!r} no output")
            rows = manifest.tables[manifest.features[key].table].vocabulary_size
            vocabulary = manifest.vocabularies.get(manifest.features[key].vocabulary or "")
            drops_oov = vocabulary is not None and vocabulary.on_oov == "drop"
            if signature.kind == "lookup" and drops_oov and lookup.on_bad_id not in ("drop", "drop_negative"):
                raise ArtifactError(
                    f"manifest: signature {name!r}, feature {key!r}: its vocabulary drops unknown keys, so on_bad_id "
                    f"must drop them too, not {lookup.on_bad_id!r}"
                )
            if lookup.default_row >= rows:
                raise ArtifactError(f"manifest: signature {name!r}, feature {key!r}: default_row is not in the table")
    paths = [
        *manifest.files,
        *(table.file for table in manifest.tables.values()),
        *(table.scale.file for table in manifest.tables.values() if table.scale),
        *(vocabulary.file for vocabulary in manifest.vocabularies.values() if vocabulary.file),
        *(file for labels in manifest.labels.values() for file in (labels.file, labels.starts)),
    ]
    for path in paths:
        if Path(path).is_absolute() or ".." in Path(path).parts or "\0" in path:
            raise ArtifactError(f"manifest: file {path!r} lies outside the artifact")
