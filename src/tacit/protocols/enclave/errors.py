"""What ends a round in an enclave without a result."""

from enum import IntEnum

from tacit.errors import ProtocolError


class EnclaveGoneError(ProtocolError):
    """The enclave's process ended or fell silent: the round is lost, the model stays as it was."""


class RefusedError(ProtocolError):
    """The enclave does not do what the host asked for; its reason says why, and nothing about anybody's data."""


class Refusal(IntEnum):
    """Why an upload was not taken."""

    NONE = 0
    OVERSIZE = 1  # longer than any honest one
    MALFORMED = 2  # not what the schema wants
    STRANGER = 3  # not of this round's cohort, or in another's name
    LATE = 4  # for a round that is over
    FOREIGN = 5  # for another run, round, model, schema, configuration, ledger head or enclave
    DUPLICATE = 6  # the first one counts
    FORGED = 7  # not signed by its sender, or altered on its way
    NOT_FINITE = 8  # NaN or infinity among its numbers

    @property
    def label(self) -> str:
        """The name in print."""
        return self.name.lower().replace("_", " ")
