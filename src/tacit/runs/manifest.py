"""What a run's manifest says: everything that decides about the result, and nothing about the machine."""

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor

from tacit.core import Task
from tacit.errors import RunError

FORMAT = 1
Status = Literal["running", "interrupted", "failed", "finished"]
Options = Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class MethodEntry:
    """A method in print; `args` are those of its factory, None if it was not made by name.

    `nominal` are figures of its paper that are no guarantee.
    """

    name: str
    args: Options | None
    repr: str
    nominal: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TaskEntry:
    """A task in print; `args` are those of its factory, None if it was not made by name."""

    name: str
    args: Options | None
    clients: int
    samples: int
    parameters: int
    loss: str
    data: str  # a digest of all samples, held-out ones too, and of who owns them

    @classmethod
    def of(cls, task: Task, args: Options | None, parameters: int) -> Self:
        """What there is to say about a task."""
        population = task.population
        others = [*(task.public or ()), *(task.test or ()), *([] if task.owners is None else [task.owners])]
        return cls(
            name=task.name,
            args=args,
            clients=len(population),
            samples=len(population.sample_indices),
            parameters=parameters,
            loss=repr(task.loss),
            data=_digest(population.x, population.y, population.sample_indices, population.offsets, *others),
        )


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What was run. Two runs with equal manifests, but for the status, give bitwise equal results.

    `caveat` is what the method's channel wants said everywhere; empty: nothing.
    """

    method: MethodEntry
    task: TaskEntry
    seed: int
    device: str
    evaluate_every: int
    versions: Mapping[str, str]
    caveat: str = ""
    format: int = FORMAT
    status: Status = "running"

    @property
    def run(self) -> str:
        """A name that fixes everything random in the run: the same for every repetition of it."""
        text = json.dumps(self._decisive(), default=str, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def to_bytes(self) -> bytes:
        """As indented JSON."""
        return (json.dumps(asdict(self), indent=2, default=str) + "\n").encode()

    @classmethod
    def from_bytes(cls, content: bytes, file: Path) -> Self:
        """From JSON; anything but a manifest of this format is a `RunError`."""
        try:
            table = json.loads(content)
            written = table["format"]
        except (ValueError, KeyError, TypeError):
            raise RunError(f"{file} is not a run's manifest. Start the run anew in another directory.") from None
        if written != FORMAT:
            raise RunError(
                f"{file} was written by another version of Tacit (format {written}; this one reads format {FORMAT}). "
                "Use that version, or start the run anew."
            )
        return cls._from_table(table, file)

    @classmethod
    def _from_table(cls, table: dict[str, Any], file: Path) -> Self:
        try:
            entries = {"method": MethodEntry(**table["method"]), "task": TaskEntry(**table["task"])}
            manifest = cls(**{**table, **entries})
        except (TypeError, KeyError):
            raise RunError(f"{file} lacks a part of a run's manifest. Start the run anew.") from None
        if not isinstance(manifest.seed, int) or manifest.status not in get_args(Status):
            raise RunError(f"{file} has a damaged seed or status. Start the run anew.")
        return manifest

    def check_versions(self, path: Path) -> None:
        """Raise `RunError` unless the releases that decide about the numbers are those of the run."""
        here = versions()
        for name in ("tacit", "torch"):
            there = self.versions.get(name)
            if there != here[name]:
                raise RunError(
                    f"The run in {path} was started with another version, {name} {there}; this is {here[name]}. "
                    "Use that version, or start the run anew."
                )

    def check_same(self, other: "Manifest", path: Path) -> None:
        """Raise `RunError` unless the other one describes the same run, however its method and task were made."""
        mine, theirs = self._decisive(), other._decisive()
        for name in mine:
            if mine[name] != theirs[name]:
                raise RunError(
                    f"The run in {path} has another {name}: {mine[name]}, not {theirs[name]}. "
                    "Give the same, or start the run anew."
                )

    def _decisive(self) -> dict[str, object]:
        return {
            "method": self.method.repr,
            "task": replace(self.task, args=None),
            "seed": self.seed,
            "device": self.device,
            "evaluate_every": self.evaluate_every,
        }


def versions() -> dict[str, str]:
    """The releases that a result depends on; builds of one release count as equal."""
    return {
        "tacit": importlib.metadata.version("tacit"),
        "torch": torch.__version__.partition("+")[0],
        "python": platform.python_version(),
    }


def _digest(*tensors: Tensor) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
