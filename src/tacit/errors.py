"""Everything Tacit raises on purpose, in one tree.

::

    TacitError                  our fault, or the machine's (exit code 1)
    ├── WorkerError             worker processes keep dying
    ├── StorageError            a file could not be written: disk full, read-only
    ├── ProtocolError           the other side of a conversation said what it must not say (TooFewError,
    │                           EnclaveGoneError: nothing)
    └── UserError               the caller's fault (exit code 2): what was expected, what came, what to do
        ├── CompositionError    the pieces of a method do not fit together
        ├── DataError           data that cannot be trained on, or cannot be found
        ├── ModelError          a module that cannot be trained in a federation
        ├── TrainingError       training diverged
        ├── RunError            a run directory that cannot be used
        ├── LedgerError         a privacy ledger that cannot be used: locked, changed, of other runs
        ├── BudgetError         a release that would pass the privacy budget
        └── WireError           bytes that do not follow the schema
"""


class TacitError(Exception):
    """Base of all errors raised on purpose. `exit_code` is what the command returns."""

    exit_code = 1


class WorkerError(TacitError):
    """Worker processes keep dying."""


class StorageError(TacitError):
    """A file could not be written."""


class ProtocolError(TacitError):
    """A message that breaks its protocol: malformed, out of turn, or not safe to answer."""


class UserError(TacitError, ValueError):
    """Something the caller can mend; the message says how."""

    exit_code = 2


class CompositionError(UserError):
    """The pieces of a method do not fit together."""


class DataError(UserError):
    """Data that cannot be trained on, or cannot be found."""


class ModelError(UserError):
    """A module that cannot be trained in a federation."""


class TrainingError(UserError):
    """Training diverged."""


class RunError(UserError):
    """A run directory that cannot be used."""


class LedgerError(UserError):
    """A privacy ledger that cannot be used."""


class BudgetError(UserError):
    """A release that would pass the privacy budget."""


class WireError(UserError):
    """Bytes that do not follow the schema."""


def expect(condition: bool, statement: str, advice: str = "") -> None:
    """Raise `UserError` with one wording for all arguments: for example "Expected clip=-1.0 > 0."."""
    if not condition:
        raise UserError(f"Expected {statement}." + (f" {advice}" if advice else ""))
