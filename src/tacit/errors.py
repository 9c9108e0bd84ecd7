"""All errors that Tacit raises on purpose, in one tree.

::

    TacitError                  not the caller's fault (exit code 1)
    ├── WorkerError             worker processes keep dying
    ├── StorageError            a file could not be written: disk full, read-only
    ├── ProtocolError           a peer sent a message that breaks the protocol, or a round cannot complete
    │   ├── TooFewClientsError       too few clients or valid shares remain for a secure sum
    │   ├── EnclaveUnavailableError  the enclave's process ended or does not answer
    │   └── EnclaveRefusedError      the enclave rejects a request of its host
    │       └── RoundOverError       it has released the aggregate of that round
    └── UserError               the caller can fix it (exit code 2): what was expected, what was found, what to do
        ├── CompositionError    the pieces of a method do not fit together
        ├── DataError           data that is missing or cannot be trained on
        │   └── PublicDataError a method that needs public data, for a task that has none
        ├── ModelError          a module that cannot be trained in a federation
        ├── TrainingError       training diverged
        ├── RunError            a run directory that cannot be used
        ├── LedgerError         a privacy ledger that cannot be used: locked, modified, or of other runs
        ├── BudgetError         a release that would exceed the privacy budget
        └── WireError           bytes that do not follow the wire format
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

MAX_SENTENCE = 4000  # characters of a message
_SHAPELESS = re.compile(  # although Python calls them printable
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


class TacitError(Exception):
    """Base of all errors raised on purpose. `exit_code` is the exit code of the command.

    As text it is one line, whatever it quotes; `args` has the original.
    """

    exit_code = 1

    def __str__(self) -> str:
        return one_line(Exception.__str__(self))


class WorkerError(TacitError):
    """Worker processes keep dying."""


class StorageError(TacitError):
    """A file could not be written."""


class ProtocolError(TacitError):
    """A message that breaks its protocol: malformed, out of order, or not safe to answer."""


class TooFewClientsError(ProtocolError):
    """Secure aggregation ended without a sum: too few clients, or too few valid shares, remain."""


class EnclaveUnavailableError(ProtocolError):
    """The enclave's process ended or does not answer: the round failed and the model is unchanged."""


class EnclaveRefusedError(ProtocolError):
    """The enclave rejected a request of its host; the message contains no client data."""


class RoundOverError(EnclaveRefusedError):
    """The enclave has released the aggregate of that round, and releases one per round."""


class UserError(TacitError, ValueError):
    """An error that the caller can fix; the message says how."""

    exit_code = 2

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the sentence alone, because the calls inside Tacit do not help."""
        return [f"{type(self).__name__}: {self}"]


class CompositionError(UserError):
    """The pieces of a method do not fit together."""


class DataError(UserError):
    """Data that is missing or cannot be trained on."""


class PublicDataError(DataError):
    """A method needs public data and the task has none; `remedy` says how to provide it or do without."""

    def __init__(self, who: str, remedy: str) -> None:
        super().__init__(f"{who} needs public data: {remedy}")
        self.remedy = remedy


class ModelError(UserError):
    """A module that cannot be trained in a federation."""


class TrainingError(UserError):
    """Training diverged."""


class RunError(UserError):
    """A run directory that cannot be used."""


class LedgerError(UserError):
    """A privacy ledger that cannot be used."""


class BudgetError(UserError):
    """A release that would exceed the privacy budget."""


class WireError(UserError):
    """Bytes that do not follow the wire format."""


def expect(condition: bool, statement: str, advice: str = "") -> None:
    """Raise `UserError` unless the condition holds, with one wording for all arguments: "Expected clip=-1.0 > 0."."""
    if not condition:
        raise UserError(f"Expected {statement}." + (f" {advice}" if advice else ""))


def positive(advice: str = "", /, **values: float | None) -> None:
    """Raise `UserError` unless each value is > 0 and finite; values that are None are left out."""
    for name, value in _numbers(values):
        expect(0 < value < math.inf, f"{name}={_text_of(value)} > 0 and finite", advice)


def at_least(minimum: float, advice: str = "", /, **values: float | None) -> None:
    """Raise `UserError` unless each value is finite and not below the minimum; values that are None are left out."""
    for name, value in _numbers(values):
        finite = "" if -math.inf < value < math.inf else " and finite"
        expect(minimum <= value < math.inf, f"{name}={_text_of(value)} >= {minimum:g}{finite}", advice)


def whole(minimum: int, maximum: int | None = None, /, **values: int | None) -> None:
    """Raise `UserError` unless each value is a whole number of this range; values that are None are left out."""
    for name, value in _numbers(values, "whole number"):
        expect(isinstance(value, Integral), f"{name}={value} to be a whole number")
        limits = f">= {minimum}" if maximum is None else f"in [{minimum}, {maximum}]"
        expect(minimum <= value and (maximum is None or value <= maximum), f"{name}={_text_of(value)} {limits}")


def within(interval: str, advice: str = "", /, **values: float | None) -> None:
    """Raise `UserError` unless each value is in the interval, such as "[0, 1)"; values that are None are left out."""
    low, high = map(float, interval[1:-1].split(","))
    closed = {bound for bound, bracket in ((low, interval[0]), (high, interval[-1])) if bracket in "[]"}
    for name, value in _numbers(values):
        expect(low < value < high or value in closed, f"{name}={_text_of(value)} in {interval}", advice)


def one_of(choices: Sequence[str], **values: str) -> None:
    """Raise `UserError` unless each value is one of the choices."""
    for name, value in values.items():
        expect(value in choices, f"{name}={value!r} to be {' or '.join(map(repr, choices))}")


def _numbers(values: Mapping[str, Any], kind: str = "number") -> Iterator[tuple[str, Any]]:
    """Each value that is given, which must be a number; True and False are none."""
    for name, value in values.items():
        if value is not None:
            expect(isinstance(value, Real) and not isinstance(value, bool), f"{name}={value!r} to be a {kind}")
            yield name, value


def _text_of(value: Any) -> str:
    """A number as text; Python refuses to write whole numbers of thousands of digits."""
    return str(value) if not isinstance(value, Integral) or abs(int(value)) < 10**100 else "of hundreds of digits"


def one_line(text: object, limit: int = MAX_SENTENCE) -> str:
    r"""A text as one line: every character is shown, none is obeyed; the middle of a long text is left out.

    Example:
        >>> one_line("accuracy\r\nround 7 was accepted\x1b[1A")
        'accuracy\\r\\nround 7 was accepted\\u001b[1A'
        >>> one_line("b" * 1000, limit=40)
        'bbbbbbbbbbbbb… (1000 characters) …bbbbbb'
    """
    return shorten(escape_characters(shorten(str(text), limit)), limit)


def shorten(text: str, limit: int) -> str:
    """The beginning and the end of a text that has more characters than the limit, in at most as many."""
    if len(text) <= limit:
        return text
    note = f"… ({len(text)} characters) …"
    end = (limit - len(note)) // 3
    return f"{text[: limit - len(note) - end]}{note}{text[len(text) - end :]}"


def escape_characters(text: str, kept: str = "") -> str:
    """The text with JSON's escapes in place of characters that have no shape; some may be kept."""
    if text.isprintable() and not _SHAPELESS.search(text):
        return text
    return "".join(each if each in kept or _has_shape(each) else json.dumps(each)[1:-1] for each in text)


def _has_shape(character: str) -> bool:
    return character.isprintable() and not _SHAPELESS.match(character)
