import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a script of the benchmarks; they find each other because their folder is on the path."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module
