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


class TacitError(Exception):
    """Base of all errors raised on purpose. `exit_code` is the exit code of the command."""

    exit_code = 1


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
