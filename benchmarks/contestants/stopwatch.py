"""Times some functions of a library from outside."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class Stopwatch:
    """Seconds spent in the functions that are watched."""

    seconds: float = 0.0

    def watch(self, module: ModuleType, *names: str) -> None:
        """From now on these functions of a module are timed."""
        for name in names:
            setattr(module, name, self._timed(getattr(module, name)))

    def read(self) -> float:
        """Seconds since the last reading."""
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
