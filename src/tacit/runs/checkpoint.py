"""The server's state in a safetensors file, with a checksum over everything in it."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tacit.core import State, files
from tacit.errors import RunError

_MEMORY = "memory/"


def write(path: Path, state: State, caveat: str = "") -> None:
    """Put the state in its place, in one step, with what must be said about it."""
    memory = {_MEMORY + name: tensor for name, tensor in state.memory.items()}
    tensors = {
        name: tensor.detach().cpu().contiguous() for name, tensor in {"weights": state.weights, **memory}.items()
    }
    said = {"caveat": caveat} if caveat else {}
    label = json.dumps({"round": state.round, "sha256": _digest(state.round, tensors), **said})
    # one entry: safetensors writes several in no fixed order
    content = safetensors.torch.save({name: tensor.clone() for name, tensor in tensors.items()}, {"tacit": label})
    files.write(path, content)


def read(path: Path) -> State | None:
    """The state in a file; None if there is no such file, `RunError` if it was cut or changed."""
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            label = json.loads((file.metadata() or {})["tacit"])
            names = list(file.keys())
            tensors = {name: file.get_tensor(name).clone() for name in names}
        done = int(label["round"])
        fine = _digest(done, tensors) == label["sha256"]
        weights = tensors.pop("weights")
    except (SafetensorError, OSError, KeyError, ValueError, TypeError):
        raise RunError(f"{path} is not a whole checkpoint: it was cut or changed. Start the run anew.") from None
    if not fine:
        raise RunError(f"{path} does not match its checksum: it was damaged or changed. Start the run anew.")
    return State(done, weights, {name.removeprefix(_MEMORY): tensor for name, tensor in tensors.items()})


def _digest(done: int, tensors: Mapping[str, Tensor]) -> str:
    sha = hashlib.sha256(f"round {done}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()
