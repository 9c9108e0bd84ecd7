"""Write the catalogue of methods from their files: `make catalogue`, or `python -m tacit.methods.cataloguing`.

A test compares the catalogue with the files.
"""

import importlib
import json
import pkgutil
from collections.abc import Iterator
from dataclasses import asdict
from types import ModuleType

from tacit import methods
from tacit.core.discovery import Definition


def entries() -> dict[str, dict[str, object]]:
    """Every method as its file defines it, by name."""
    files = pkgutil.iter_modules(methods.__path__)
    modules = [importlib.import_module(f"{methods.__name__}.{each.name}") for each in files]
    return {name: entry for module in modules for name, entry in _entries_of(module)}


def _entries_of(module: ModuleType) -> Iterator[tuple[str, dict[str, object]]]:
    tasks, short_names = getattr(module, "DEFAULT_TASKS", {}), getattr(module, "SHORT_NAMES", {})
    for factory in getattr(module, "METHODS", ()):
        name = factory.__name__.replace("_", "-")
        entry = asdict(Definition.of(factory, short_names, tasks.get(name, ())))
        yield name, {key: value for key, value in entry.items() if value}


def write() -> None:
    """Write the catalogue."""
    methods.CATALOGUE.write_text(json.dumps(entries(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
