"""Describes features, signatures and tensors in words; all renderings of a report use these words."""

from __future__ import annotations

from model_export.report.document import FeatureReport, SignatureReport, TensorReport
from service.artifact.manifest import LookupFeature, VocabularyEntry

_BAD_ID = {
    "error": "is refused",
    "drop": "is dropped",
    "drop_negative": "below 0 is dropped, any other refused",
    "clamp": "reads the nearest row",
    "wrap": "below 0 counts from the table's end, any other refused",
}


def lookup_words(feature: LookupFeature) -> str:
    """Describes a feature's inputs and policies: "genres__values genres__row_splits: mean, at most 8 ids, ..."."""
    inputs = " ".join(name for name in (feature.ids, feature.row_splits, feature.weights) if name)
    parts = [_combination(feature)]
    if feature.max_ids_per_row is not None and feature.combiner:
        longer = "a longer row is cut" if feature.on_too_many_ids == "truncate" else "a longer row is refused"
        parts.append(f"at most {feature.max_ids_per_row} ids ({longer})")
    bad = _BAD_ID.get(feature.on_bad_id, f"reads row {feature.default_row}")
    parts.append(f"an id outside the table {bad}")
    if feature.combiner == "mean" and feature.mean_divisor == "at_least_one":
        parts.append("divided by at least 1")
    if feature.on_nonpositive_weight == "drop":
        parts.append("ids of weight 0 or less are left out")
    return f"{inputs}: {', '.join(parts)}"


def vocabulary_words(feature: FeatureReport) -> str:
    """Describes the keys or row numbers that clients send for a feature."""
    entry = feature.vocabulary
    if entry is None:
        return "rows"
    kind = "strings" if entry.key_dtype == "string" else "integers"
    return f"{entry.size:,} {kind} in {entry.file}, rows from {entry.first_id}; any other {_other_keys(entry)}"


def signature_words(signature: SignatureReport) -> str:
    """Describes a signature's kind and device: "lookup on cpu", "predict", ..."""
    device = f" on {signature.device}" if signature.device else ""
    sizes = f", padded to {', '.join(map(str, signature.batch_sizes))} rows" if signature.batch_sizes else ""
    return f"{signature.kind}{device}{sizes}"


def tensor_words(tensor: TensorReport) -> str:
    """Describes a tensor's dtype and shape, with "?" for a size that may vary: "int64 [?, 3]"."""
    if tensor.shape is None:
        shape = "[...]"
    else:
        shape = "[" + ", ".join("?" if size is None else str(size) for size in tensor.shape) + "]"
    return f"{tensor.dtype} {shape}" + (", optional" if tensor.is_optional else "")


def bytes_words(size: int) -> str:
    """Formats a number of bytes with a unit: "120.8 kB"."""
    number = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{size} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def _combination(feature: LookupFeature) -> str:
    if feature.max_sequence_length is not None:
        return f"sequence of {feature.max_sequence_length}, cut or padded with zeros"
    return feature.combiner or "one id per row"


def _other_keys(entry: VocabularyEntry) -> str:
    if entry.num_oov_buckets:
        return f"falls into one of {entry.num_oov_buckets} rows behind them"
    if entry.oov_id is not None:
        return f"is row {entry.oov_id}"
    return "is dropped" if entry.on_oov == "drop" else "is refused"
