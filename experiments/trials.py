"""A file of finished trials, so that a script that is called again goes on where it stopped.

A trial is a record (a frozen dataclass) that says everything on which its result depends; a result is numbers by name.
Scripts in the folders beside this file import it with `sys.path`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tacit.core import files

Result = Mapping[str, float]


@dataclass(frozen=True, eq=False)
class TrialFile:
    """The trials that were made so far.

    Attributes:
        path: a JSON file, written after every trial, whole or not at all.
        found: results by the text of their trial.
    """

    path: Path
    found: dict[str, Result]

    @classmethod
    def open(cls, path: Path) -> "TrialFile":
        """The file with its trials; none if it does not exist yet."""
        return cls(path, _read(path))

    def get(self, trial: Any) -> Result | None:
        """The result of a trial; None: it has not been made."""
        return self.found.get(_text(trial))

    def measure(self, trial: Any, run: Callable[[], Result]) -> Result:
        """The result of a trial, which is run if there is none yet."""
        text = _text(trial)
        if text not in self.found:
            self.found[text] = dict(run())
            with files.locked(self.path.parent):
                self.found.update(_read(self.path))  # what other processes have added
                files.write(self.path, (json.dumps(self.found, indent=1, sort_keys=True) + "\n").encode())
        return self.found[text]


def _read(path: Path) -> dict[str, Result]:
    return json.loads(path.read_text()) if path.exists() else {}


def _text(trial: Any) -> str:
    return json.dumps(asdict(trial), sort_keys=True)
