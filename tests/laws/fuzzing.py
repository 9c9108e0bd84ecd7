"""Fuzzing of a decoder: what it is, how its inputs are changed, and what happened to them."""

import functools
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from laws.mutations import Chance, change_bytes, change_tokens, nest
from tacit.errors import TacitError

MAX_SECONDS = 1.0
MAX_MEMORY = 1 << 30
Mutate = Callable[[Chance, bytes], bytes]
BYTES, TEXT = (change_bytes,), (change_tokens, change_tokens, change_bytes, nest)


@dataclass(frozen=True)
class Decoder:
    """A decoder, inputs that it accepts, and how they are changed."""

    name: str
    decode: Callable[[bytes], object]
    samples: Sequence[bytes]
    mutations: Sequence[Mutate]


@dataclass
class Outcome:
    """What happened to the inputs of a decoder."""

    inputs: int = 0
    refused: int = 0
    slowest: float = 0.0
    memory: int = 0
    foreign: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        return not self.foreign and self.slowest <= MAX_SECONDS and self.memory <= MAX_MEMORY


def fuzz(decoder: Decoder, seed: int, inputs: int) -> Outcome:
    """Decode the samples, which must be accepted, and this many changed ones."""
    for sample in decoder.samples:
        decoder.decode(sample)
    chance, outcome, before = Chance(f"{seed} {decoder.name}"), Outcome(), _peak()
    for number in range(inputs):
        data = chance.choice(decoder.mutations)(chance, chance.choice(decoder.samples))
        error, seconds = _decode(decoder, data)
        if seconds > MAX_SECONDS / 2:  # perhaps something else kept the machine busy
            seconds = min(seconds, _decode(decoder, data)[1])
        outcome.slowest = max(outcome.slowest, seconds)
        outcome.refused += isinstance(error, TacitError)
        if error is not None and not (isinstance(error, TacitError) and str(error)):
            found = f"{type(error).__name__}: {str(error)[:300]} for {data[:300]!r}"
            outcome.foreign += (f"input {number}: {found}",)
    outcome.inputs, outcome.memory = inputs, _peak() - before
    return outcome


def _decode(decoder: Decoder, data: bytes) -> tuple[BaseException | None, float]:
    """The error that the decoder raised, and the seconds it took."""
    began = time.perf_counter()
    try:
        decoder.decode(data)
    except BaseException as error:  # whatever it is
        return error, time.perf_counter() - began
    return None, time.perf_counter() - began


def _peak() -> int:
    """The most address space that this process has had, in bytes; also memory that was reserved but never touched."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    found = re.search(r"VmPeak:\s+(\d+) kB", status.read_text())
    return int(found[1]) * 1024 if found else 0


class in_file:  # noqa: N801, used as a function
    """Bytes in a file of this name, in memory where that is possible."""

    def __init__(self, name: str, data: bytes) -> None:
        self.path = Path(_folder().name, name)
        self.path.write_bytes(data)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        for path in self.path.parent.iterdir():
            path.unlink()


@functools.cache
def _folder() -> "tempfile.TemporaryDirectory[str]":
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)


def with_file(name: str, decode: Callable[[Path], object]) -> Callable[[bytes], object]:
    def run(data: bytes) -> object:
        with in_file(name, data) as path:
            return decode(path)

    return run
