"""Numbers as tensors: arrays, lists, columns and images; memory-mapped ones stay on disk."""

import tempfile
import warnings
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.core.schema import MAX_INT
from tacit.data.data_frames import is_number
from tacit.errors import DataError


class MappedTensor(Tensor):
    """Numbers in a file that is mapped into memory. Results of computations with them are plain tensors.

    Attributes:
        array: the memory-mapped array.
    """

    array: NDArray[Any]
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as nn.Parameter

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Another process gets a copy."""
        return _share, (np.asarray(self.array),)

    def __deepcopy__(self, memo: object) -> Self:
        """Copies share the file: nobody writes to samples."""
        return self


def to_tensor(values: Any, who: str) -> Tensor:
    """Numbers as a tensor; arrays share their memory. `who` names them in error messages."""
    if isinstance(values, Tensor):
        return _plain_tensor(values, who)
    if isinstance(values, np.ma.MaskedArray):
        values = _remove_mask(values, who)
    if hasattr(values, "toarray") and hasattr(values, "nnz"):
        raise DataError(f"Expected {who} as a dense array, got a sparse matrix. Convert it with .toarray().")
    array = _to_array(values, who)
    if array.dtype.kind in "US":
        raise DataError(_strings(who, _first_text(array)))
    if array.dtype.kind in "Mm":
        raise DataError(f"Expected numbers for {who}, got dates. Convert them, for example to days since the first.")
    if array.dtype.kind == "O":
        array = _from_objects(array, who)
    if array.dtype.kind == "V":
        raise DataError(f"Expected numbers for {who}, got records. Give a frame, or one array: np.stack(columns, 1).")
    if array.dtype == np.uint64 and array.size and int(array.max()) > MAX_INT:
        raise DataError(_too_large(who))
    if array.dtype.kind == "c":
        raise DataError(f"Expected real numbers for {who}, got {array.dtype}. Give real and imaginary parts.")
    return _share(array)


def concatenate(parts: Sequence[Tensor]) -> Tensor:
    """One tensor of all rows: the memory itself where the parts follow each other in it, otherwise a copy."""
    if len(parts) == 1:
        return parts[0]
    wide = reduce(torch.promote_types, (part.dtype for part in parts))
    parts = [part if part.dtype == wide else part.to(wide) for part in parts]
    if all(part.is_contiguous() for part in parts):
        ends = (part.data_ptr() + part.numel() * part.element_size() for part in parts)
        follows = all(end == after.data_ptr() for end, after in zip(ends, parts[1:], strict=False))
        if follows and all(isinstance(part, MappedTensor) for part in parts):
            return _span([part.array for part in parts if isinstance(part, MappedTensor)])
    return _pool_on_disk(parts) if any(isinstance(part, MappedTensor) for part in parts) else torch.cat(list(parts))


def _span(arrays: Sequence[NDArray[Any]]) -> Tensor:
    """Arrays that follow each other in one file, as one tensor without a copy."""
    root, first = arrays[0], arrays[0]
    while isinstance(root.base, np.ndarray):
        root = root.base
    begin = (first.__array_interface__["data"][0] - root.__array_interface__["data"][0]) // first.itemsize
    count = sum(array.size for array in arrays)
    return _share(root.reshape(-1).view(first.dtype)[begin : begin + count].reshape(-1, *first.shape[1:]))


def _pool_on_disk(parts: Sequence[Tensor]) -> Tensor:
    """A copy in a temporary file, removed with the process: the parts may be larger than memory."""
    count, shape = sum(map(len, parts)), tuple(parts[0].shape[1:])
    kind = torch.empty(0, dtype=parts[0].dtype).numpy().dtype
    with tempfile.TemporaryFile() as file:
        pooled: NDArray[Any] = np.memmap(file, dtype=kind, mode="w+", shape=(count, *shape))
    begin = 0
    for part in parts:
        pooled[begin : begin + len(part)] = part.numpy()
        begin += len(part)
    return _share(pooled)


def _plain_tensor(values: Tensor, who: str) -> Tensor:
    """The numbers of a tensor in a type that kernels and NumPy support: half precision becomes float32."""
    kind = values.dtype
    if values.is_sparse or (values.layout != torch.strided and not values.is_nested):
        raise DataError(f"Expected {who} as a dense tensor, got a sparse one. Convert it with .to_dense().")
    for refused, expected, actual in (
        (values.is_nested, "samples of one shape", "a nested tensor. Pad it: torch.nested.to_padded_tensor(x, 0.0)."),
        (values.device.type == "meta", "numbers", "a tensor without data (device='meta'). Load its data."),
        (values.is_complex(), "real numbers", f"{kind}. Use torch.view_as_real(x)."),
        (values.is_quantized, "plain numbers", f"{kind}. Convert them with .dequantize()."),
    ):
        if refused:
            raise DataError(f"Expected {expected} for {who}, got {actual}")
    if values.requires_grad or values.device.type != "cpu":
        values = values.detach().cpu()
    return values.float() if kind in (torch.float16, torch.bfloat16) else values


def check_one_shape(samples: Iterable[Any], who: str, advice: str) -> None:
    """Raise `DataError` if these arrays or tensors have several shapes."""
    shapes = sorted({tuple(np.shape(each)) for each in samples})
    if len(shapes) > 1:
        examples = ", ".join(map(str, shapes[:3]))
        raise DataError(f"Expected samples of one shape for {who}, got {examples}. {advice}")


def _to_array(values: Any, who: str) -> NDArray[Any]:
    if isinstance(values, np.ndarray):
        return values
    if hasattr(values, "__array__"):  # a column of pandas or Polars, an image of PIL
        return np.asarray(values)
    if isinstance(values, list | tuple) and any(isinstance(each, Tensor) for each in values):
        return _list_of_tensors(values, who)
    try:
        return np.array(values)
    except ValueError as error:  # ragged
        raise DataError(
            f"Expected samples of one shape for {who}, got lists of different lengths. Pad them to one length."
        ) from error


def _list_of_tensors(values: Sequence[Any], who: str) -> NDArray[Any]:
    tensors = [torch.as_tensor(each) for each in values]
    check_one_shape(tensors, who, "Pad them to one length, for example with torch.nn.utils.rnn.pad_sequence.")
    return _plain_tensor(torch.stack(tensors), who).numpy()


def _share(array: NDArray[Any]) -> Tensor:
    """A tensor that shares the array's memory where PyTorch can; other types are converted to supported ones."""
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)  # `to_tensor` has refused larger ones
    if array.dtype.kind == "f" and array.dtype.itemsize not in (4, 8):
        array = array.astype(np.float32 if array.dtype.itemsize == 2 else np.float64)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = array.copy()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")  # nobody writes to samples
        tensor = torch.from_numpy(np.asarray(array))
    if not _is_mapped(array):
        return tensor
    mapped = tensor.as_subclass(MappedTensor)
    mapped.array = array
    return mapped


def _is_mapped(array: NDArray[Any]) -> bool:
    return isinstance(array, np.memmap) or (isinstance(array.base, np.ndarray) and _is_mapped(array.base))


def _first_text(array: NDArray[Any]) -> str:
    first = array.flat[0] if array.size else ""
    return first.decode(errors="replace") if isinstance(first, bytes) else str(first)


def _remove_mask(values: Any, who: str) -> NDArray[Any]:
    """The numbers of a masked array; raises `DataError` if any is masked."""
    masked = int(np.ma.getmaskarray(values).sum())
    if masked:
        raise DataError(
            f"Expected numbers for {who}, got {masked} masked values of {values.size}. Fill them, for example with "
            "x.filled(0), or remove those samples."
        )
    numbers: NDArray[Any] = values.data
    return numbers


def _strings(who: str, example: str) -> str:
    if who.startswith("the targets"):
        advice = "Number the classes: names, y = numpy.unique(y, return_inverse=True)"
    else:
        advice = "Drop them, or turn texts into numbers first, for example with a tokenizer"
    return (
        f"Expected numbers for {who}, got strings such as {example!r}. {advice}; for a table with categories use "
        "tacit.Task.from_table."
    )


def _too_large(who: str) -> str:
    return f"Expected whole numbers below 2^63 for {who}, got larger ones. Number them from 0, or give floats."


def _from_objects(array: NDArray[Any], who: str) -> NDArray[Any]:
    """Numbers from an array of objects that are numbers, or arrays of one shape."""
    example = next((value for value in array.flat if value is not None), None)
    if isinstance(example, str | bytes):
        raise DataError(_strings(who, str(example)))
    if any(value is None for value in array.flat):
        raise DataError(f"Expected numbers for {who}, got missing values (None). Fill or remove them.")
    if all(map(is_number, array.flat)):
        whole = all(isinstance(value, int | np.integer) for value in array.flat)
        try:
            return array.astype(np.int64 if whole else np.float64)
        except OverflowError:
            raise DataError(_too_large(who)) from None
    if array.ndim == 1 and all(isinstance(value, list | tuple | np.ndarray) for value in array):
        check_one_shape(array, who, "Pad them to one length.")
        return np.stack([np.asarray(value) for value in array])
    kind = type(example).__name__
    advice = "Give a list, which has an order." if isinstance(example, set | frozenset) else "Convert it to numbers."
    raise DataError(f"Expected numbers for {who}, got an array of {kind}. {advice}")
