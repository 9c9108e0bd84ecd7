"""The lines that a framework's script and the runner exchange. Only the standard library is needed.

A script sends `{"ready": ...}` with its versions, then runs one round for every line `round` on its standard input
and sends its measurements. Between rounds it blocks on its standard input, so it uses no processor time while the
others run.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import ParamSpec, TextIO, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for the modules that all scripts share

P = ParamSpec("P")
T = TypeVar("T")


def send(**fields: object) -> None:
    """Send one line of JSON to the runner."""
    print(json.dumps(fields), flush=True)


def send_ready(*packages: str) -> None:
    """Report that start-up is complete, with the versions of these packages."""
    send(ready=True, versions={name: version(name) for name in packages})


def commands(source: TextIO | None = None) -> Iterator[None]:
    """Yield once for every round that the runner requests, until it requests no more."""
    for line in iter((source or sys.stdin).readline, ""):
        if line.strip() != "round":
            return
        yield


@dataclass
class Stopwatch:
    """The seconds spent in selected functions of a library."""

    seconds: float = 0.0

    def watch(self, module: ModuleType, *names: str) -> None:
        """Time these functions of a module from now on."""
        for name in names:
            setattr(module, name, self._timed(getattr(module, name)))

    def read(self) -> float:
        """The seconds since the last reading."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def _timed(self, function: Callable[P, T]) -> Callable[P, T]:
        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - begin

        return timed
