"""What a task declares about the constants in its inputs, since statistics of private data are not free."""

from dataclasses import dataclass
from typing import Literal

from tacit.errors import expect


@dataclass(frozen=True)
class Preprocessing:
    """What the constants of a task's inputs, such as ranges and categories, were computed from.

    Attributes:
        source: `row`: none were computed, since each input is a function of its own row; `public`: from public data, or
            they are declared to be public; `private`: from the clients' rows, which no guarantee covers; `undeclared`:
            the task does not say.
        detail: which constants they are, as a sentence.

    Example:
        >>> print(Preprocessing("private", "ages are scaled by their mean.").not_covered)
        Preprocessing used the clients' rows: ages are scaled by their mean.
    """

    source: Literal["row", "public", "private", "undeclared"] = "undeclared"
    detail: str = ""

    def __post_init__(self) -> None:
        choices = ("row", "public", "private", "undeclared")
        expect(
            self.source in choices, f"the source of preprocessing to be one of {', '.join(choices)}, got {self.source}"
        )
        if self.source == "private":
            expect(
                bool(self.detail), "detail of private preprocessing: a sentence that says what was computed from rows"
            )

    def with_target(self, target: str) -> "Preprocessing":
        """The same, where the values of the target are those of the clients' rows, too."""
        more = f"the values of {target!r} are those of all rows (classes=... declares them)."
        return Preprocessing("private", f"{self.detail} T{more[1:]}" if self.source == "private" else more)

    @property
    def not_covered(self) -> str:
        """What a guarantee does not cover because of it, as a sentence; empty if there is nothing."""
        if self.source == "private":
            return f"Preprocessing used the clients' rows: {self.detail}"
        if self.source == "undeclared":
            return (
                "Whatever was computed from the clients' rows before the run, such as ranges or categories; the task "
                "does not declare its preprocessing."
            )
        return ""
