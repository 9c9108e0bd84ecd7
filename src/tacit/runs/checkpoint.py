"""The server's state in a safetensors file, with a checksum over everything in it."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import safetensors.torch
import torch
from msgspec import Meta, convert
from safetensors import safe_open
from torch import Tensor

from tacit.core import State, files
from tacit.core.prices import MAX_ROUNDS
from tacit.errors import RunError

MAX_CHECKPOINT_BYTES = 1 << 36  # bytes; a tensor is mapped from the file, never allocated by what its header declares
_MEMORY = "memory/"


def write(path: Path, state: State, caveat: str = "") -> None:
    """Write the state atomically, with the caveat that the method's channel requires."""
    memory = {_MEMORY + name: tensor for name, tensor in state.memory.items()}
    tensors = {
        name: tensor.detach().cpu().contiguous() for name, tensor in {"weights": state.weights, **memory}.items()
    }
    optional = {"caveat": caveat} if caveat else {}
    metadata = json.dumps({"round": state.round, "sha256": _digest(state.round, tensors), **optional})
    # a single entry, because safetensors writes several in no fixed order
    content = safetensors.torch.save({name: tensor.clone() for name, tensor in tensors.items()}, {"tacit": metadata})
    files.write(path, content, private=True)


def read(path: Path) -> State | None:
    """The state in a file; None if there is no such file. Raises `RunError` if the file is truncated or changed."""
    if not path.exists():
        return None
    try:
        if path.stat().st_size > MAX_CHECKPOINT_BYTES:
            raise ValueError(f"more than {MAX_CHECKPOINT_BYTES} bytes")
        with safe_open(path, "pt") as file:
            metadata = json.loads((file.metadata() or {})["tacit"])
            names = list(file.keys())
            tensors = {name: file.get_tensor(name).clone() for name in names}
        rounds = convert(metadata["round"], Annotated[int, Meta(ge=0, le=MAX_ROUNDS)])
        intact = _digest(rounds, tensors) == metadata["sha256"]
        weights = tensors.pop("weights")
    except Exception:  # of a parser of foreign bytes: SafetensorError, KeyError, RecursionError and others
        raise RunError(f"{path} is not a complete checkpoint: it was cut or changed. Start a new run.") from None
    if not intact:
        raise RunError(f"{path} does not match its checksum: it was damaged or changed. Start a new run.")
    return State(rounds, weights, {name.removeprefix(_MEMORY): tensor for name, tensor in tensors.items()})


def _digest(rounds: int, tensors: Mapping[str, Tensor]) -> str:
    sha = hashlib.sha256(f"round {rounds}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()
