"""Reads tensors of PyTorch files (torch.save) without PyTorch, and without running the code that a pickle may name.

Source: torch/serialization.py (_save, persistent_id) and torch/_utils.py (_rebuild_tensor_v2) of PyTorch 2: a zip
archive of data.pkl and one uncompressed member data/N for each storage.
"""

from __future__ import annotations

import pickletools
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from model_export.errors import ExportError
from model_export.importers.address import Address
from model_export.importers.matrix_files import NUMBERS, RawMatrix, data_offset, stored_matrix
from model_export.importers.table_reader import TableReader

_NUMBERS = {
    "HalfStorage": NUMBERS["float16"],
    "FloatStorage": NUMBERS["float32"],
    "DoubleStorage": NUMBERS["float64"],
    "BFloat16Storage": NUMBERS["bfloat16"],
}
# All classes and functions that a pickle of tensors names, beside the types of storages.
_DICT = "collections.OrderedDict"
_SIZE = "torch.Size"
_TENSOR = "torch._utils._rebuild_tensor_v2"
_PARAMETER = "torch._utils._rebuild_parameter"
_DAMAGES = (ValueError, IndexError, KeyError, TypeError, AttributeError, RecursionError, zlib.error)


@dataclass(frozen=True, slots=True)
class _Storage:
    kind: str
    key: str


@dataclass(frozen=True, slots=True)
class _Tensor:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def open_torch(address: Address) -> TableReader:
    """Opens the tensor PATH:NAME of a state dict and returns its reader; raises ExportError.

    The name joins the keys that lead to the tensor with dots; a file of one tensor needs none.
    """
    path = address.path
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: info for info in archive.infolist()}
            pickled = next((name for name in members if name.rpartition("/")[2] == "data.pkl"), None)
            if pickled is None:
                raise ExportError(f"{path} is a zip archive without data.pkl, so no file of torch.save()")
            root = pickled.removesuffix("data.pkl")
            order = archive.read(root + "byteorder") if root + "byteorder" in members else b"little"
            with archive.open(pickled) as file:
                named = dict(_named(_unpickled(file), ""))
    except zipfile.BadZipFile as error:
        raise ExportError(
            f"{path} is no zip archive, as torch.save() has written since PyTorch 1.6, or is cut short; load it with "
            "PyTorch and save it again"
        ) from error
    except _UnknownName as error:
        raise ExportError(
            f"{path} can not be read without running code: it holds {error}; save its tensors alone, "
            "torch.save(model.state_dict(), PATH), or use safetensors"
        ) from error
    except _DAMAGES as error:
        raise ExportError(f"{path} is damaged: {error}") from error
    tensors = {name: tensor for name, tensor in named.items() if len(tensor.shape) == 2}
    name = address.chosen(sorted(tensors), "matrices")
    tensor = tensors[name]
    what = f"{path}:{name}" if name else str(path)
    number = _NUMBERS.get(tensor.storage.kind)
    if number is None or order != b"little":
        kind = tensor.storage.kind.removesuffix("Storage").lower()
        raise ExportError(
            f"{what} holds {kind} of {order.decode(errors='replace')}-endian bytes; a table holds half, "
            "float, double or bfloat16, little-endian"
        )
    rows, dim = tensor.shape
    is_fortran = tensor.strides == (1, rows) and rows > 1
    if not is_fortran and tensor.strides != (dim, 1) and dim > 1:
        raise ExportError(f"{what} is a view of every n-th number of another tensor; save tensor.contiguous()")
    member = members.get(f"{root}data/{tensor.storage.key}")
    end = (tensor.offset + rows * dim) * number.dtype.itemsize
    if member is None or member.compress_type != zipfile.ZIP_STORED or end > member.file_size or tensor.offset < 0:
        raise ExportError(f"{path} is damaged: it lacks numbers of {name!r} in data/{tensor.storage.key}")
    offset = data_offset(path, member) + tensor.offset * number.dtype.itemsize
    return stored_matrix(RawMatrix(path, offset, rows, dim, number, is_fortran=is_fortran), member)


class _UnknownName(Exception):
    """The pickle names a class or function that stands for no part of a tensor."""


@dataclass(frozen=True, slots=True)
class _Global:
    name: str


def _unpickled(file: IO[bytes]) -> Any:
    """Returns the dicts, lists, plain values and tensors of a pickle.

    Python's own reader of pickles imports and calls what a pickle names. So the opcodes are interpreted here: a name
    stays a name, and only _called() gives a call a meaning.

    Raises:
      _UnknownName: the pickle names another class or function.
      ValueError, IndexError, KeyError, TypeError, AttributeError: it is no pickle, or is damaged.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}

    def behind_mark() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    for opcode, argument, position in pickletools.genops(file):
        match opcode.name:
            case "PROTO" | "FRAME":
                pass
            case "STOP":
                return stack.pop()
            case "MARK":
                marks.append(len(stack))
            case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                memo[len(memo) if opcode.name == "MEMOIZE" else argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(opcode.name[-1])
                stack[-count:] = [tuple(stack[-count:])]
            case "TUPLE":
                stack.append(tuple(behind_mark()))
            case "APPEND" | "APPENDS":
                items = [stack.pop()] if opcode.name == "APPEND" else behind_mark()
                stack[-1].extend(items)
            case "SETITEM" | "SETITEMS":
                items = [stack.pop(), stack.pop()][::-1] if opcode.name == "SETITEM" else behind_mark()
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[opcode.name])
            case "GLOBAL":
                stack.append(_known(str(argument).replace(" ", ".")))
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                stack.append(_known(f"{module}.{name}"))
            case "BINPERSID":
                kind, storage, key, *_ = stack.pop()
                if kind != "storage" or not isinstance(storage, _Global):
                    raise ValueError(f"byte {position} of data.pkl names no storage")
                stack.append(_Storage(storage.name.rpartition(".")[2], str(key)))
            case "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(_called(function.name, arguments))
            case "BUILD":
                # Attributes of an object, such as the versions of a state dict's modules.
                stack.pop()
            case name if opcode.arg is not None and name.startswith(
                ("BININT", "LONG", "BINFLOAT", "BINUNI", "SHORT_BINUNI")
            ):
                stack.append(argument)
            case name:
                raise ValueError(f"byte {position} of data.pkl is {name}, which no tensor needs")
    raise ValueError("data.pkl has no end")


def _known(name: str) -> _Global:
    is_storage = name.startswith("torch.") and name.endswith("Storage")
    if not is_storage and name not in (_DICT, _SIZE, _TENSOR, _PARAMETER):
        raise _UnknownName(name)
    return _Global(name)


def _called(name: str, arguments: Any) -> Any:
    if name == _DICT:
        return dict(*arguments)
    if name in (_SIZE, _PARAMETER):
        return arguments[0]
    storage, offset, shape, strides, *rest = arguments
    if len(rest) > 2 and rest[2]:
        raise ValueError("a tensor is a view that changes signs; save tensor.resolve_neg()")
    sizes, steps = tuple(int(size) for size in shape), tuple(int(stride) for stride in strides)
    if name != _TENSOR or not isinstance(storage, _Storage) or min((0, *sizes)) < 0 or len(sizes) != len(steps):
        raise ValueError("data.pkl has a tensor without a storage or shape")
    return _Tensor(storage, int(offset), sizes, steps)


def _named(data: Any, name: str) -> Iterator[tuple[str, _Tensor]]:
    if isinstance(data, _Tensor):
        yield name, data
    elif isinstance(data, dict | list | tuple):
        pairs = data.items() if isinstance(data, dict) else enumerate(data)
        for key, value in pairs:
            yield from _named(value, f"{name}.{key}" if name else str(key))
