"""The lines that a contestant and the referee exchange; it needs nothing that a peer's environment may lack."""

import json
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # contestants import what all of them share


def say(**words: object) -> None:
    """One line of JSON to the referee."""
    print(json.dumps(words), flush=True)


def ready(*packages: str) -> None:
    """Tell the referee that start-up is over."""
    say(ready=True, versions={name: version(name) for name in packages})


def commands(source: TextIO | None = None) -> Iterator[None]:
    """One item for every round that the referee asks for; ends when it asks for no more."""
    for line in iter((source or sys.stdin).readline, ""):
        if line.strip() != "round":
            return
        yield
