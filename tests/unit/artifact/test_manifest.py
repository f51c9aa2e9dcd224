"""A manifest is checked, with its files, vocabularies and labels."""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.artifact.completeness import Arrival, check_tree, fingerprint
from service.artifact.dict_vocabulary import DictVocabulary, open_vocabularies
from service.artifact.manifest import (
    FORMAT_VERSION,
    MANIFEST_PATH,
    MAX_MANIFEST_BYTES,
    LabelEntry,
    Manifest,
    TableEntry,
    VocabularyEntry,
)
from service.artifact.row_labels import NO_LABELS, RowLabels, open_labels, write_labels
from service.errors import ArtifactError, IdOutOfRange
from tests.conftest import Clock
from tests.toy_model import manifest_of, toy_manifest, toy_tables, variable_name, write_toy_model


def manifest_json() -> dict[str, Any]:
    """Returns the toy model's manifest as a JSON object."""
    entries = {variable_name(name): {"offset": 3, "nbytes": t.nbytes, "crc32c": 1} for name, t in toy_tables().items()}
    return toy_manifest(entries) | {"files": {"saved_model.pb": 10}, "provenance": {"by": "a test"}}


def parse(data: Any) -> Manifest:
    """Parses a manifest from an edited JSON object."""
    return Manifest.from_json(json.dumps(data))


def test_what_is_written_is_read_back_equal() -> None:
    manifest = parse(manifest_json())
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert json.loads(manifest.to_json())["format_version"] == FORMAT_VERSION


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "int4"])
def test_tables_of_fewer_bits_are_written_with_their_scales(tmp_path: Path, dtype: str) -> None:
    manifest = manifest_of(write_toy_model(tmp_path / "1", dtype=dtype))
    assert Manifest.from_json(manifest.to_json()) == manifest
    data = json.loads(manifest.to_json())
    assert data["tables"]["tag"]["dtype"] == dtype
    scale = data["tables"]["tag"]["scale"]
    assert (scale and scale["nbytes"]) == (16 if dtype in ("int8", "int4") else None)


def test_reads_every_field_of_the_toy_manifest() -> None:
    manifest = parse(manifest_json())
    assert manifest.tables["tag"].embedding_dim == 3
    assert manifest.vocabularies["tag"].first_id == 1
    padded = manifest.signatures["lookup_tpu_tensor_core"]
    assert (padded.device, padded.batch_sizes) == ("tpu_tensor_core", (1, 4))
    assert padded.features["tags"].mean_divisor == "at_least_one"
    assert padded.features["tags"].max_ids_per_row == 3
    assert manifest.provenance == {"by": "a test"}


def test_a_format_newer_than_ours_is_refused_by_its_number() -> None:
    data = manifest_json() | {"format_version": FORMAT_VERSION + 1, "something_new": True}
    with pytest.raises(ArtifactError, match=rf"format {FORMAT_VERSION + 1} is newer .*\({FORMAT_VERSION}\); upgrade"):
        parse(data)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", "[" * 100_000, '{"a": 1' + "0" * 5000 + "}"])
def test_what_is_not_json_is_an_artifact_error(text: str | bytes) -> None:
    with pytest.raises(ArtifactError, match="not valid JSON"):
        Manifest.from_json(text)


def test_json_that_is_not_an_object_is_refused() -> None:
    with pytest.raises(ArtifactError, match="not a JSON object"):
        parse([1])


def place(data: dict[str, Any], path: str) -> tuple[Any, str]:
    """Returns the object that a dotted path of the manifest ends in, and the last name."""
    *names, last = path.split(".")
    return functools.reduce(operator.getitem, names, data), last


def at(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Returns an edit that sets the value at one place in the manifest."""

    def edit(data: dict[str, Any]) -> None:
        holder, name = place(data, path)
        holder[name] = value

    return edit


def without(path: str) -> Callable[[dict[str, Any]], None]:
    """Returns an edit that removes one place."""

    def edit(data: dict[str, Any]) -> None:
        holder, name = place(data, path)
        del holder[name]

    return edit


LOOKUP = "signatures.lookup"
TAGS, USER = f"{LOOKUP}.features.tags", f"{LOOKUP}.features.user"


def as_sequence(**fields: Any) -> Callable[[dict[str, Any]], None]:
    """Returns an edit that makes `tags` a sequence."""

    def edit(data: dict[str, Any]) -> None:
        names = {"ids": "tags__values", "row_splits": "tags__row_splits", "output": "tags"}
        data["signatures"]["lookup"]["features"]["tags"] = names | {"max_sequence_length": 2} | fields

    return edit


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "run unknown": (at(f"{LOOKUP}.run", "half"), "signatures.lookup.run is 'half'"),
    "concatenated of a stranger": (
        at(f"{LOOKUP}.concatenated", {"both": ["user", "nobody"]}),
        "concatenated.both is .* expected names of its features",
    ),
    "concatenated is an output": (
        at(f"{LOOKUP}.concatenated", {"user": ["user", "tags"]}),
        "gives two features the same output",
    ),
    "norm 0": (at(f"{TAGS}.max_norm", 0), "max_norm 0, expected more than 0"),
    "empty row unknown": (at(f"{TAGS}.on_empty_row", "ones"), "on_empty_row is 'ones'"),
    "empty rows not combined": (at(f"{USER}.trailing_empty_rows", "cut"), "policy for empty rows but combines nothing"),
    "no file": (at("vocabularies.tag.file", ""), "has no file, so its size must be 0"),
    "no format": (without("format_version"), "format_version is None"),
    "format zero": (at("format_version", 0), "format_version is 0"),
    "format true": (at("format_version", True), "format_version is True"),
    "no tables": (without("tables"), "tables is missing"),
    "tables a list": (at("tables", []), "tables is not an object"),
    "no features": (without("features"), "features is missing"),
    "no signatures": (without("signatures"), "signatures is missing"),
    "files a list": (at("files", []), "files is not an object"),
    "provenance a text": (at("provenance", "me"), "provenance is not an object"),
    "table a number": (at("tables.tag", 1), "tables.tag is not an object"),
    "unknown table field": (at("tables.tag.color", 1), r"tables.tag has unknown fields \['color'\]"),
    "missing table field": (without("tables.tag.crc32c"), r"tables.tag .* lacks \['crc32c'\]"),
    "offset a text": (at("tables.tag.offset", "3"), "tables.tag.offset is '3', expected int"),
    "offset a bool": (at("tables.tag.offset", True), "tables.tag.offset is True"),
    "offset negative": (at("tables.tag.offset", -3), "tables.tag.offset is negative"),
    "variable a number": (at("tables.tag.variable", 5), "tables.tag.variable is 5"),
    "feature of no table": (at("features.user.table", "x"), "feature 'user' uses table 'x', which is not"),
    "vocabulary unknown": (at("features.user.vocabulary", "x"), "uses vocabulary 'x', not defined"),
    "vocabulary oov negative": (at("vocabularies.tag.oov_id", -1), "vocabularies.tag.oov_id is negative"),
    "signature kind": (at(f"{LOOKUP}.kind", "x"), 'signatures.lookup.kind is not "lookup"'),
    "signature a list": (at(LOOKUP, []), "signatures.lookup.kind"),
    "signature device": (at(f"{LOOKUP}.device", "gpu"), "signatures.lookup.device is 'gpu'"),
    "no features in a signature": (without(f"{LOOKUP}.features"), "features is missing"),
    "batch sizes fall": (at(f"{LOOKUP}.batch_sizes", [4, 1]), "batch_sizes is not an ascending"),
    "batch size zero": (at(f"{LOOKUP}.batch_sizes", [0]), "batch_sizes is not an ascending"),
    "batch size bool": (at(f"{LOOKUP}.batch_sizes", [True]), "batch_sizes is not an ascending"),
    "batch sizes a number": (at(f"{LOOKUP}.batch_sizes", 4), "batch_sizes is not an ascending"),
    "feature of a signature unknown": (
        at(f"{LOOKUP}.features.x", {"ids": "x", "output": "x"}),
        "signature 'lookup' uses feature 'x', which is not defined",
    ),
    "no output": (without(f"{TAGS}.output"), "signature 'lookup' gives feature 'tags' no output"),
    "output twice": (at(f"{TAGS}.output", "user"), "signature 'lookup' gives two features the same output"),
    "combiner unknown": (at(f"{TAGS}.combiner", "max"), "combiner is 'max', expected one of"),
    "policy unknown": (at(f"{TAGS}.on_bad_id", "ignore"), "on_bad_id is 'ignore'"),
    "policy a list": (at(f"{TAGS}.on_bad_id", ["drop"]), "on_bad_id is"),
    "divisor unknown": (at(f"{TAGS}.mean_divisor", "n"), "mean_divisor is 'n'"),
    "too many unknown": (at(f"{TAGS}.on_too_many_ids", "x"), "on_too_many_ids is 'x'"),
    "row splits without combiner": (
        without(f"{TAGS}.combiner"),
        "needs row_splits with either combiner or max_sequence_length",
    ),
    "combiner without row splits": (
        without(f"{TAGS}.row_splits"),
        "needs row_splits with either combiner or max_sequence_length",
    ),
    "weights without row splits": (at(f"{USER}.weights", "w"), "input 'user' has weights but no row_splits"),
    "sequence and combiner": (at(f"{TAGS}.max_sequence_length", 2), "either combiner or max_sequence_length"),
    "sequence without row splits": (
        at(f"{USER}.max_sequence_length", 2),
        "needs row_splits with either combiner or max_sequence_length",
    ),
    "sequence with weights": (as_sequence(weights="tags__weights"), "is a sequence, which has neither weights nor max"),
    "sequence with K": (as_sequence(max_ids_per_row=3), "is a sequence, which has neither weights nor max_ids_per_row"),
    "sequence of nothing": (as_sequence(max_sequence_length=0), "max_sequence_length 0, expected 1 or more"),
    "weight policy unknown": (at(f"{TAGS}.on_nonpositive_weight", "x"), "on_nonpositive_weight is 'x'"),
    "keys of another kind": (at("vocabularies.tag.key_dtype", "int32"), "key_dtype is 'int32'"),
    "unknown keys policy": (at("vocabularies.tag.on_oov", "x"), "vocabularies.tag.on_oov is 'x'"),
    "buckets and a row": (at("vocabularies.tag.num_oov_buckets", 2), "both oov_id and num_oov_buckets"),
    "buckets negative": (at("vocabularies.tag.num_oov_buckets", -2), "num_oov_buckets is negative"),
    "dropped keys that are an error": (
        at("vocabularies.tag", {"file": "assets/tag.txt", "size": 3, "on_oov": "drop"}),
        "its vocabulary drops unknown keys, so on_bad_id must drop them too, not 'error'",
    ),
    "room for no ids": (at(f"{TAGS}.max_ids_per_row", 0), "max_ids_per_row 0, expected 1 or more"),
    "room for a text of ids": (at(f"{TAGS}.max_ids_per_row", "3"), "max_ids_per_row is '3'"),
    "unknown lookup field": (at(f"{TAGS}.pad", 1), r"unknown fields \['pad'\]"),
    "table file absolute": (at("tables.tag.file", "/etc/passwd"), "'/etc/passwd' lies outside"),
    "table file above": (at("tables.tag.file", "variables/../../x"), "lies outside the artifact"),
    "vocabulary file above": (at("vocabularies.tag.file", "../x"), "'../x' lies outside the artifact"),
    "listed file above": (at("files", {"a/../../b": 1}), "lies outside the artifact"),
}


@pytest.mark.parametrize(("edit", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_each_fault_is_refused_by_name(edit: Callable[[dict[str, Any]], None], message: str) -> None:
    data = manifest_json()
    edit(data)
    with pytest.raises(ArtifactError, match=message):
        parse(data)


def test_format_1_is_read_and_means_what_it_meant() -> None:
    data = manifest_json()
    assert data["format_version"] == 1
    manifest = parse(data)
    tags, words = manifest.signatures["lookup"].features["tags"], manifest.vocabularies["tag"]
    assert (tags.on_nonpositive_weight, tags.max_sequence_length) == ("keep", None)
    assert (words.key_dtype, words.num_oov_buckets, words.on_oov) == ("string", 0, "error")


FIELDS: dict[str, Callable[[dict[str, Any]], None]] = {
    "wrap": at(f"{TAGS}.on_bad_id", "wrap"),
    "summation": at(f"{TAGS}.summation", "four_lanes"),
    "max_norm": at(f"{TAGS}.max_norm", 1.5),
    "on_empty_row": at(f"{TAGS}.on_empty_row", "nan"),
    "trailing_empty_rows": at(f"{TAGS}.trailing_empty_rows", "cut"),
    "concatenated": at(f"{LOOKUP}.concatenated", {"both": ["user", "tags"]}),
    "run": at(f"{LOOKUP}.run", "whole"),
    "first_oov_id": at("vocabularies.tag.first_oov_id", 0),
    "empty_key_id": at("vocabularies.tag.empty_key_id", 0),
}


@pytest.mark.parametrize("edit", FIELDS.values(), ids=FIELDS.keys())
def test_a_field_is_written_and_read_back(edit: Callable[[dict[str, Any]], None]) -> None:
    plain, changed = manifest_json(), manifest_json()
    edit(changed)
    manifest = parse(changed)
    assert manifest != parse(plain)
    assert parse(json.loads(manifest.to_json())) == manifest


def test_hashed_keys_have_no_file() -> None:
    data = manifest_json()
    data["vocabularies"]["tag"] = {"file": "", "size": 0, "num_oov_buckets": 4}
    words = parse(data).vocabularies["tag"]
    assert (words.first_bucket, words.last_id) == (0, 3)
    assert not words.unknown_key_rows, "no key is unknown"


def test_buckets_may_stand_before_the_keys() -> None:
    data = manifest_json()
    data["vocabularies"]["tag"] = {"file": "assets/tag.txt", "size": 2, "first_id": 2, "num_oov_buckets": 2}
    words = parse(data | {}).vocabularies["tag"]
    assert (words.first_bucket, words.last_id, words.unknown_key_rows) == (4, 5, range(4, 6))
    data["vocabularies"]["tag"]["first_oov_id"] = 0
    words = parse(data).vocabularies["tag"]
    assert (words.first_bucket, words.last_id) == (0, 3)


def test_a_sequence_is_read() -> None:
    data = manifest_json()
    as_sequence()(data)
    assert parse(data).signatures["lookup"].features["tags"].max_sequence_length == 2


@pytest.mark.parametrize("row", [3, 4])
def test_the_default_row_must_be_in_the_table(row: int) -> None:
    data = manifest_json()
    data["signatures"]["lookup"]["features"]["tags"] |= {"on_bad_id": "default_row", "default_row": row}
    if row < 4:
        assert parse(data).signatures["lookup"].features["tags"].default_row == row
    else:
        with pytest.raises(ArtifactError, match="feature 'tags': default_row is not in the table"):
            parse(data)


def test_optional_parts_may_be_left_out() -> None:
    data = manifest_json()
    for name in ("files", "provenance"):
        del data[name]
    assert parse(data).files == {}


def test_an_artifact_without_the_file_has_no_manifest(tmp_path: Path) -> None:
    assert Manifest.read(tmp_path) is None


def test_a_file_that_can_not_be_read_is_an_artifact_error(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_PATH).mkdir(parents=True)
    with pytest.raises(ArtifactError, match="cannot read .*lookup_manifest.json"):
        Manifest.read(tmp_path)


def test_entries_can_not_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        parse(manifest_json()).tables["tag"].offset = 0  # type: ignore[misc]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(data: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Returns the path of every value of nested objects."""
    below = [p for key, value in data.items() for p in places(value, (*path, key))] if isinstance(data, dict) else []
    return [path, *below] if path else below


@pytest.mark.slow
@given(st.sampled_from(places(manifest_json())), JSON_VALUES)
def test_any_value_in_any_place_is_read_or_refused(place: tuple[str, ...], value: Any) -> None:
    data = manifest_json()
    at(f"{TAGS}", value)(data)
    try:
        parse(data)
    except ArtifactError:
        pass


def test_a_manifest_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / MANIFEST_PATH
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(MAX_MANIFEST_BYTES + 1)
    with pytest.raises(ArtifactError, match=f"it has more than {MAX_MANIFEST_BYTES} bytes, the most that are read"):
        Manifest.read(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns the folder of a version whose copy has only begun."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "saved_model.pb").write_bytes(b"half of it")
    return tmp_path / "1"


def arrival(folder: Path, clock: Clock, wall: Clock) -> Arrival:
    """Returns an Arrival of a folder that must be unchanged for 10 s; a test sets both of its clocks."""
    return Arrival(folder, 10.0, clock, wall)


@pytest.mark.parametrize("jump_s", [1e6, -1e6], ids=["ahead", "back"])
def test_a_clock_that_jumps_makes_no_half_copy_whole_and_no_whole_one_wait_longer(
    folder: Path, clock: Clock, jump_s: float
) -> None:
    wall = Clock(fingerprint(folder).changed_at_s + 1)
    watched = arrival(folder, clock, wall)
    assert not watched.is_complete()
    wall.now_s += jump_s
    clock.now_s += 5
    assert not watched.is_complete()
    (folder / "more").write_bytes(b"the other half")
    clock.now_s += 6
    assert not watched.is_complete()
    clock.now_s += 10
    assert watched.is_complete()


def test_what_lies_there_for_long_does_not_wait(folder: Path, clock: Clock) -> None:
    wall = Clock(fingerprint(folder).changed_at_s + 11)
    assert arrival(folder, clock, wall).is_complete()


def test_a_file_systems_clock_that_is_ahead_costs_the_settle_time_and_no_more(folder: Path, clock: Clock) -> None:
    wall = Clock(fingerprint(folder).changed_at_s - 1e6)
    watched = arrival(folder, clock, wall)
    assert not watched.is_complete()
    clock.now_s += 10
    assert watched.is_complete()


def opened(folder: Path, text: bytes, entry: VocabularyEntry) -> DictVocabulary:
    """Writes a vocabulary file and opens it."""
    (folder / "words.txt").write_bytes(text)
    return open_vocabularies(folder, Manifest({}, {}, {}, {"v": entry}))["v"]


def ids(vocabulary: DictVocabulary, *keys: object) -> list[int]:
    """Returns the rows of some keys."""
    return list(map(int, vocabulary.ids_of(np.array([*keys, None], object)[:-1], "x")))


def test_lines_are_keys(tmp_path: Path) -> None:
    words = opened(tmp_path, b"red\r\ngr\xc3\xbcn\nblue", VocabularyEntry("words.txt", 3, first_id=2, oov_id=0))
    assert ids(words, b"red", "grün".encode(), "blue", b"pink", b"") == [2, 3, 4, 0, 0]
    assert (words.key_of(3), words.key_of(0), words.example_key) == ("grün".encode(), None, b"red")
    codes = opened(tmp_path, b"100\n-5\n", VocabularyEntry("words.txt", 2, key_dtype="int64", on_oov="drop"))
    assert codes.ids_of(np.array([[-5], [7]]), "x").tolist() == [[1], [-1]]


def test_unknown_keys(tmp_path: Path) -> None:
    strict = opened(tmp_path, b"red\n", VocabularyEntry("words.txt", 1))
    with pytest.raises(IdOutOfRange, match="'pink' at position 1 is not in its vocabulary of 1 strings"):
        ids(strict, b"red", b"pink")
    # FarmHash's Fingerprint64 of "hello" is 13009744463427800296.
    buckets = opened(tmp_path, b"red\n", VocabularyEntry("words.txt", 1, first_id=3, num_oov_buckets=7))
    assert ids(buckets, b"hello") == [4 + 13009744463427800296 % 7]
    hashed = open_vocabularies(tmp_path, Manifest({}, {}, {}, {"v": VocabularyEntry("", 0, num_oov_buckets=7)}))["v"]
    assert ids(hashed, b"hello") == [13009744463427800296 % 7]
    masked = opened(tmp_path, b"red\n", VocabularyEntry("words.txt", 1, first_id=2, oov_id=1, empty_key_id=0))
    assert ids(masked, b"", b"red", b"x") == [0, 2, 1]


@pytest.mark.parametrize(
    ("text", "entry", "match"),
    [
        (b"red\n", VocabularyEntry("words.txt", 2), "has 1 lines, its manifest says 2"),
        (b"", VocabularyEntry("words.txt", 1), "has 0 lines"),
        (b"red\nred\n", VocabularyEntry("words.txt", 2), "holds b'red' twice"),
        (b"1\nx\n", VocabularyEntry("words.txt", 2, key_dtype="int64"), "line 2 is b'x', expected an int64"),
        (b"9223372036854775808\n", VocabularyEntry("words.txt", 1, key_dtype="int64"), "expected an int64"),
    ],
)
def test_a_file_that_contradicts_its_entry_is_refused(
    text: bytes, entry: VocabularyEntry, match: str, tmp_path: Path
) -> None:
    with pytest.raises(ArtifactError, match=match):
        opened(tmp_path, text, entry)


TITLES = ["", "Alien (1979)", "Star Wars (1977)", "Before Star Wars", "Été à Paris", "two\nlines\r\n", "star"]


def manifest(entry: LabelEntry, rows: int = len(TITLES)) -> Manifest:
    """Returns the manifest of one table with labels."""
    table = TableEntry("t", rows, 1, "float32", "variables/variables.data-00000-of-00001", 0, 4 * rows, 0)
    return Manifest({"film": table}, {}, {}, labels={"film": entry})


def written(folder: Path, titles: list[str] = TITLES) -> RowLabels:
    """Writes labels and opens them."""
    return open_labels(folder, manifest(write_labels(folder, "film", 0, titles), len(titles)))["film"]


def test_each_row_has_its_label(tmp_path: Path) -> None:
    labels = written(tmp_path)
    assert labels.of([2, 0, 1, 5, 99, -1]) == ["Star Wars (1977)", None, "Alien (1979)", "two lines", None, None]
    assert NO_LABELS.of([0, 1]) == [None, None]


def test_rows_are_found_by_a_part_of_their_label_in_either_case(tmp_path: Path) -> None:
    labels = written(tmp_path)
    assert labels.find("star", 9) == [2, 6, 3]
    assert labels.find("star", 1) == [2]
    assert labels.find("ÉTÉ À", 9) == [4] and labels.find("(19", 9) == [1, 2]
    assert labels.find("", 9) == labels.find("none of them", 9) == NO_LABELS.find("x", 9) == []
    many = written(tmp_path / "many", [f"film {row}" for row in range(150_000)])
    assert many.find("film 149999", 9) == [149_999] and many.row_of("film 70000") == 70_000


def test_similar_labels_of_an_unknown_label_are_named(tmp_path: Path) -> None:
    labels = written(tmp_path)
    assert labels.near("Star") == ' There are: "Star Wars (1977)", "star", "Before Star Wars".'
    assert labels.near("star warz 1977") == ' There are: "Star Wars (1977)".'
    assert labels.near("Aline (1979)") == ' There are: "Alien (1979)".'
    assert labels.near("Satr Wars (1977)") == ' There are: "Star Wars (1977)".'
    assert labels.near("Été de Paris") == ' There are: "Été à Paris".'
    assert labels.near("Casablanca") == labels.near("") == labels.near("()") == labels.near("Star Warz" * 20) == ""
    many = written(tmp_path / "many", [f"film {row}" for row in range(15_000)])
    assert '"film 14999"' in many.near("flim 14999")
    # A search of all labels would take too long.
    more = written(tmp_path / "more", [f"film {row}" for row in range(150_000)])
    assert (more.near("m 149999"), more.near("flim 149999")) == (' There are: "film 149999".', "")


def test_a_whole_label_names_one_row(tmp_path: Path) -> None:
    labels = written(tmp_path)
    assert [labels.row_of(one) for one in ("star", "Star Wars (1977)", "Star Wars", "")] == [6, 2, None, None]


def test_a_files_name_is_no_path(tmp_path: Path) -> None:
    entry = write_labels(tmp_path, "../a/b\0", 3, ["x"])
    assert (entry.file, entry.starts) == ("assets.extra/labels/3-.._a_b_.txt", "assets.extra/labels/3-.._a_b_.starts")


def _cut(folder: Path, entry: LabelEntry) -> None:
    (folder / entry.file).write_text("shorter\n")


def _without(folder: Path, entry: LabelEntry) -> None:
    (folder / entry.starts).unlink()


@pytest.mark.parametrize(
    ("damage", "rows", "fault"),
    [
        (_cut, len(TITLES), "the two files do not belong together"),
        (_without, len(TITLES), "cannot read the labels of table 'film': "),
        (lambda *_: None, 8, "has places for 7 labels, and table 'film' has 8 rows"),
    ],
)
def test_a_fault_is_named(tmp_path: Path, damage: Callable[[Path, LabelEntry], None], rows: int, fault: str) -> None:
    entry = write_labels(tmp_path, "film", 0, TITLES)
    damage(tmp_path, entry)
    with pytest.raises(ArtifactError, match=re.escape(fault)):
        open_labels(tmp_path, manifest(entry, rows))


@pytest.fixture
def version(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "m" / "1"
    (folder / "variables").mkdir(parents=True)
    (folder / "assets").mkdir()
    (folder / "variables" / "data").write_text("data")
    (tmp_path / "secret").write_text("secret")
    return folder


def test_links_within_the_models_folder_are_taken(version: Path) -> None:
    (version / "assets" / "same").symlink_to("../variables/data")
    (version.parent / "shared").mkdir()
    (version / "assets" / "shared").symlink_to("../../shared")
    check_tree(version)
    (version / "assets" / "shared").unlink()
    # The version folder is itself a symbolic link, as some deployment tools make it.
    linked = version.parent.parent.parent / "served" / "m" / "7"
    linked.parent.mkdir(parents=True)
    linked.symlink_to(version)
    check_tree(linked)


@pytest.mark.parametrize("target", ["{}/secret", "../../../../secret", "/etc", "{}/models/other/absent"])
@pytest.mark.parametrize("where", ["assets/link", "variables/deep", "link"])
def test_a_link_elsewhere_is_refused(version: Path, tmp_path: Path, target: str, where: str) -> None:
    (version / where).symlink_to(
        target.format(tmp_path) if where != "link" else target.format(tmp_path).replace("../", "", 1)
    )
    with pytest.raises(ArtifactError, match=f"{where} is a link out of"):
        check_tree(version)
