"""The command line of model-export: flags, defaults, help. It imports commands late, because most need TensorFlow."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, get_args

from model_export.adoption.spec import SPEC_EXAMPLE
from model_export.export_config import CONFIG_EXAMPLE
from model_export.folder_checks import StoreUri, out_place
from model_export.graphs.reduced_table import TableDtype
from model_export.graphs.source import DEFAULT_BATCH_SIZES
from model_export.report.commands import MAX_ROWS
from model_export.row_names import LabelFile
from movielens.commands import DEFAULT_MODELS, DEFAULT_RUN, add_demo
from service.errors import did_you_mean

_DESCRIPTION = """\
Writes trained models as versions that embedding-server serves: stock SavedModels, whose lookups run on mapped tables.

  model-export export ranker.keras --out models/ranker      a Keras model; --config FILE: any trained model
  model-export import --table item=item.npy --out models/shop   vectors from files (NumPy, Parquet, PyTorch, ...)
  model-export adopt saved_models/ranker --out models/ranker    a SavedModel of another program
  model-export inspect models/ranker/1 --html report.html   tables, features, signatures, and what needs attention

Then: embedding-server models/

  model-export verify models/ranker/1     compares every signature with numpy
  model-export diff models/ranker/1 models/ranker/2   what a new version changed
  model-export delta models/ranker/1 --table film --rows new.npz    rows of a version that is served
  model-export compact models/ranker/1    folds them into the next version
  model-export push models/ranker/1 --to valkey://host:6379   writes its tables into a cluster
  model-export upload models/ranker/1 --out s3://bucket/ranker   copies it into an object store

A demo with a film-rating model on TPU embeddings:

  model-export demo                       fetch MovieLens 100K, train, export and verify: models/movielens/1
  model-export demo --dataset synthetic   the same in seconds, without network

or step by step:

  model-export fetch movielens --to data/movielens-100k
  model-export train                      data/movielens-100k -> runs/movielens
  model-export export                     runs/movielens -> models/movielens/<next version>

--out of every command that writes a version may be s3://, gs:// or az://, see docs/object-stores.md.
"""

# Arguments that several commands have.
_ARTIFACT: Mapping[str, Any] = {"type": Path, "metavar": "DIR", "help": "version folder, e.g. models/movielens/1"}
_VERSION: Mapping[str, Any] = {"type": int, "help": "version number, a new one (default: the next)"}
_BASE: Mapping[str, Any] = {
    "type": out_place,
    "metavar": "BASE",
    "help": "folder of the versions (default: the folder that contains DIR)",
}
_LABELS = """what people call a table's rows, for the console and reports: a text with one label a line, the first for
row 0; or CSV or TSV of row number or key and label, in COLUMN of its header or the second (repeatable)"""


class _Parser(argparse.ArgumentParser):
    """A parser of a command, which says which of the command's flags was probably meant by an unknown one.

    An error is one line, as the server's: a usage of many lines above it would hide it.
    """

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help lists the arguments\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            flags = re.findall(r"--\w+", self.format_usage())
            self.error(f"unrecognized arguments: {' '.join(rest)}{did_you_mean(rest[0].partition('=')[0], flags)}")
        return found, rest


def build_parser() -> argparse.ArgumentParser:
    """Builds the argument parser of model-export; its parsed field `command` is the name of the command."""
    parser = _Parser(
        prog="model-export", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    export = commands.add_parser(
        "export",
        help="write a trained model as a new version: a .keras file, the model that --config names, or a demo's run",
        description=f"Exports a model.\n\nA configuration (--config, TOML or JSON):\n\n{CONFIG_EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = export.add_mutually_exclusive_group()
    what.add_argument("model", nargs="?", type=Path, metavar="FILE", help="a Keras model: .keras, or .h5")
    what.add_argument("--run", type=Path, help=f"folder of a `train` run (default: {DEFAULT_RUN})")
    what.add_argument(
        "--config", type=Path, metavar="FILE", help="TOML or JSON file that says what to export; flags override it"
    )
    _add_export(export)
    _add_import(commands)

    adopt = commands.add_parser(
        "adopt",
        help="copy a SavedModel that is not ours, with a manifest, so that its lookups are served from mapped tables",
        description="Copies a foreign SavedModel, finds out which tables it looks up and how, and writes that into a "
        f"manifest.\n\nA spec file of tables and features, for what is not found:\n\n{SPEC_EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    adopt.add_argument(
        "saved_model",
        type=Path,
        metavar="MODEL",
        help="folder of saved_model.pb, or a Keras model in a .keras or .h5 file; it is not changed",
    )
    adopt.add_argument(
        "--spec",
        type=Path,
        metavar="FILE",
        help="a file of names, as --print_spec prints it, or of tables and features (default: search the graph for "
        "lookups)",
    )
    adopt.add_argument(
        "--print_spec",
        action="store_true",
        help="write no version; print the tables and features found, as a file of names for --spec",
    )
    adopt.add_argument(
        "--allow_rounding",
        action="store_true",
        help="use mapped tables even for lookups whose sums then differ from TensorFlow's in the last bits",
    )
    adopt.add_argument(
        "--allow_unproven",
        action="store_true",
        help="believe what a spec says of signatures whose ops can not be read; the server's status names them",
    )
    adopt.add_argument(
        "--no_measure",
        action="store_true",
        help="do not time the signatures that TensorFlow still runs; cut lookups out of all of them",
    )
    adopt.add_argument("--out", **_BASE)
    adopt.add_argument("--version", **_VERSION)
    _add_labels(adopt)

    _add_reports(commands)
    _add_diff(commands)

    delta = commands.add_parser(
        "delta", help="change rows of a version that is served: write a delta file into its folder (no TensorFlow)"
    )
    delta.add_argument("artifact", **_ARTIFACT)
    delta.add_argument("--table", required=True, help="table whose rows change")
    delta.add_argument(
        "--rows", type=Path, required=True, metavar="FILE", help="NumPy .npz with ids [N] int64 and rows [N, D] float32"
    )
    delta.add_argument("--sequence", type=int, help="number of the delta (default: the one after the highest there)")
    delta.add_argument(
        "--force",
        action="store_true",
        help="write the delta even if a signature answers from TensorFlow's own copy of the table",
    )

    compact = commands.add_parser(
        "compact",
        help="make the next version: fold deltas and journaled upserts into the tables, or reduce tables to fewer bits",
    )
    compact.add_argument("artifact", **_ARTIFACT)
    compact.add_argument("--out", **_BASE)
    compact.add_argument("--version", **_VERSION)
    compact.add_argument(
        "--journal", type=Path, metavar="FILE", help="journal of the version's upserts, below --delta_journal_dir"
    )
    compact.add_argument(
        "--without_journal", action="store_true", help="leave upserts out, even if their journal is found"
    )
    _add_table_dtype(compact, "dtype of the tables that lookups of the new version read", default="as they are")
    compact.add_argument(
        "--skip_refused", action="store_true", help="leave out the deltas that a server refuses, instead of failing"
    )

    _add_push(commands)
    _add_upload(commands)

    add_demo(commands, _add_export)
    return parser


_IMPORT_DESCRIPTION = """\
Makes a served model from files of numbers. A table is PATH[:NAME][?OPTION=VALUE&...]:

  --table user=user.npy                                       [rows, numbers] of float16, float32, float64 or bfloat16
  --table user=arrays.npz:user
  --table item=model.safetensors:emb.weight                   or model.safetensors.index.json:emb.weight
  --table 'user=users.parquet?key=user_id&vector=embedding'   or a folder of part files; vector=x,y,z joins columns
  --table user=checkpoints/7:params.user                      Orbax (a table of stacked ones: docs/import.md), zarr
  --table user=ckpt-1000:model/user                           a TensorFlow checkpoint, or the folder of a SavedModel
  --table user=model.pt:emb.weight                            PyTorch; .keras, .h5: model.keras:layers/user/vars/0
  --table 'user=users.csv?key=user_id'                        .csv and .tsv; ?keys=none: numbers without keys
  --table word=vectors.bin                                    word2vec; vectors.txt and .vec: its text form, or GloVe;
                                                              also vectors.vec.gz, glove.zip:glove.50d.txt

Keys (of Parquet, CSV, hash tables, word vectors or --keys) become the vocabulary: clients send them instead of row
numbers.
"""


def _add_import(commands: Any) -> None:
    parser = commands.add_parser(
        "import",
        help="make a served model from files of numbers: NumPy, safetensors, Parquet, CSV, Orbax, TensorFlow, PyTorch, "
        "Keras, word2vec",
        description=_IMPORT_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def add_named(flag: str, form: str, help: str, *, is_required: bool = False) -> None:
        kind = partial(_named, form=form)
        parser.add_argument(flag, type=kind, action="append", default=[], metavar=form, help=help, required=is_required)

    parser.add_argument("--out", type=out_place, required=True, metavar="DIR", help="folder of the versions")
    add_named("--table", "NAME=FILE", "a table's rows (repeatable)", is_required=True)
    add_named(
        "--feature",
        "NAME=TABLE[:COMBINER]",
        "input that reads a table: one id a row, or with sum, mean or sqrtn any number of them (repeatable; "
        "default: one of each table's name, one id a row)",
    )
    add_named("--keys", "TABLE=FILE", "file of the keys of a table's rows: text, one key a line, or .npy")
    add_named(
        "--oov",
        "TABLE=POLICY",
        "vector of an unknown key or of an id beyond the table: error (the default) refuses the request; zero; "
        "row:N; mean, which adds a row to the table",
    )
    _add_table_dtype(parser, "dtype of the stored tables")
    parser.add_argument("--version", **_VERSION)
    parser.add_argument("--allow_nonfinite", action="store_true", help="import tables that hold NaN or infinity")
    _add_labels(parser)


def _add_reports(commands: Any) -> None:
    inspect = commands.add_parser(
        "inspect",
        help="show what any SavedModel holds: tables and their health, signatures, training (no TensorFlow needed)",
    )
    _add_report(inspect)
    _add_labels(
        inspect,
        "colour a table's picture: CSV or TSV of key or row number, label and perhaps name; COLUMN of its header is "
        "the label, else the second (repeatable)",
    )
    inspect.add_argument(
        "--statistics", type=Path, metavar="DIR", help="lookup statistics of a training: its profile_data_directory"
    )
    inspect.add_argument("--run", type=Path, metavar="DIR", help="folder of the training run, for its loss curves")
    inspect.add_argument(
        "--projector",
        type=Path,
        metavar="DIR",
        help="write rows of each table for TensorBoard's projector: `tensorboard --logdir DIR` shows them",
    )
    inspect.add_argument(
        "--projector_rows",
        type=_number(MAX_ROWS),
        default=10_000,
        metavar="N",
        help="rows of each table for --projector, drawn at random of a larger table, at most 100000 "
        "(default: %(default)s)",
    )
    inspect.add_argument("--fast", action="store_true", help="do not read the tables: no norms, no NaN, no dead rows")

    verify = commands.add_parser("verify", help="check an artifact's files, and every signature against numpy")
    _add_report(verify)


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", **_ARTIFACT)
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON, and nothing else")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as one page with plots")


def _number(most: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= (most or int(text))):
            limits = "from 1 on" if most is None else f"from 1 to {most}"
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {limits}")
        return int(text)

    return parse


def _label_file(text: str) -> LabelFile:
    try:
        return LabelFile.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _add_diff(commands: Any) -> None:
    parser = commands.add_parser(
        "diff",
        help="show what a new version changed: rows, their drift after alignment, neighbours, answers to requests",
    )
    parser.add_argument("old", **{**_ARTIFACT, "metavar": "OLD"})
    parser.add_argument("new", type=Path, metavar="NEW", help="version folder, e.g. models/movielens/2")
    parser.add_argument("--json", action="store_true", help="print the whole comparison as JSON, and nothing else")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the comparison as one page with plots")
    parser.add_argument(
        "--rows",
        type=_number(),
        default=100_000,
        metavar="N",
        help="most rows compared per table (default: %(default)s)",
    )
    parser.add_argument(
        "--no_predictions", action="store_true", help="do not run recorded requests, which needs TensorFlow"
    )
    parser.add_argument(
        "--max_drift",
        type=float,
        metavar="PERCENT",
        help="fail if more than this share of a table's rows drifted, as a server with this flag refuses the version",
    )


def _add_push(commands: Any) -> None:
    parser = commands.add_parser(
        "push",
        help="write a version's tables into a Valkey or Redis cluster, for --remote_tables (no TensorFlow)",
    )
    parser.add_argument("artifact", **_ARTIFACT)
    parser.add_argument(
        "--to", required=True, metavar="ADDRESS", help="valkey://HOST:PORT,HOST:PORT?OPTION=VALUE; see docs/scaling.md"
    )
    parser.add_argument("--model", metavar="NAME", help="as the server names it (default: the folder above DIR)")
    parser.add_argument(
        "--table", action="append", default=[], metavar="NAME", help="a table to write (repeatable; default: all)"
    )
    parser.add_argument(
        "--keep",
        type=int,
        default=2,
        metavar="N",
        help="versions that stay in the cluster, this one included; older ones are removed (default: %(default)s)",
    )
    parser.add_argument(
        "--max_mb_per_s",
        type=float,
        default=0.0,
        metavar="MB",
        help="most megabytes a second that are written, and that are read back (default: no limit)",
    )


def _add_upload(commands: Any) -> None:
    parser = commands.add_parser(
        "upload",
        help="copy a version into an object store, saved_model.pb last; to go on after an interruption, repeat it",
    )
    parser.add_argument("artifact", **_ARTIFACT)
    parser.add_argument(
        "--out", type=_uri, required=True, metavar="URI", help="s3://, gs:// or az:// place of the model's versions"
    )
    parser.add_argument("--version", type=int, help="version number in the store (default: the number that DIR names)")


def _uri(text: str) -> StoreUri:
    place = out_place(text)
    if not isinstance(place, StoreUri):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not s3://BUCKET/PLACE, gs://BUCKET/PLACE or az://CONTAINER/PLACE"
        )
    return place


def _named(text: str, form: str = "NAME=VALUE") -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (name and separator and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not {form}")
    return name, value


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=out_place, metavar="DIR", help=f"folder of the versions, or s3://... (default: {DEFAULT_MODELS})"
    )
    parser.add_argument("--version", **_VERSION)
    parser.add_argument(
        "--batch_sizes",
        type=_sizes,
        metavar="N,N,...",
        help=f"static sizes of the tensor-core lookup (default: {','.join(map(str, DEFAULT_BATCH_SIZES))})",
    )
    parser.add_argument(
        "--lookup_device",
        choices=["cpu", "tpu_tensor_core", "both"],
        help="devices to write lookup signatures for (default: both; with --config: cpu)",
    )
    parser.add_argument(
        "--signatures", type=lambda text: text.split(","), metavar="NAME,...", help="signatures to write (default: all)"
    )
    parser.add_argument("--export_to_tpu", action="store_true", default=None, help="write a {serve,tpu} MetaGraph too")
    parser.add_argument(
        "--allow_nonfinite", action="store_true", default=None, help="export tables that hold NaN or infinity"
    )
    parser.add_argument(
        "--no_warmup",
        dest="warmup",
        action="store_false",
        default=None,
        help="write no warm-up requests for TensorFlow Serving",
    )
    _add_table_dtype(parser, "dtype of the tables that lookups read")
    _add_labels(parser)


def _add_labels(parser: argparse.ArgumentParser, help: str = _LABELS) -> None:
    parser.add_argument(
        "--labels", type=_label_file, action="append", default=[], metavar="TABLE=FILE[#COLUMN]", help=help
    )


def _add_table_dtype(parser: argparse.ArgumentParser, what: str, *, default: str = "float32") -> None:
    parser.add_argument(
        "--table_dtype",
        type=_table_dtype,
        metavar="DTYPE|TABLE=DTYPE,...",
        help=f"{what}: float16, bfloat16, int8 or int4 (the last two with a float32 scale per row); one for all, or by "
        f"table (default: {default})",
    )


def _table_dtype(text: str) -> str | dict[str, str]:
    named = dict(_named(part) for part in text.split(",")) if "=" in text else {}
    choices = get_args(TableDtype)
    if wrong := [dtype for dtype in named.values() or [text] if dtype not in choices]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} is none of {', '.join(choices)}")
    return named or text


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers, such as 1,8,64") from error
    if sizes[0] < 1 or list(sizes) != sorted(set(sizes)):
        raise argparse.ArgumentTypeError(f"{text!r} is not ascending from 1 or more")
    return sizes
