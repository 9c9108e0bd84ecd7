"""What an upload is for. Its digest, the context, binds every key and signature of a round."""

from dataclasses import dataclass

from tacit.errors import expect
from tacit.protocols import crypto
from tacit.wire.packing import number

RUN = 16  # bytes of a run's name


@dataclass(frozen=True, kw_only=True)
class Session:
    """One round of one run in one enclave. A client builds it from what it was really given.

    Attributes:
        run: 16 bytes that no other run has.
        round: the round's number.
        model: SHA-256 of the view that was broadcast.
        dim: how many numbers a row has.
        weighed: whether the number of samples goes with it.
        config: the digest of the enclave's configuration.
        head: the ledger's head before this round.
        key: the enclave's public key, by which it was attested.
    """

    run: bytes
    round: int
    model: bytes
    dim: int
    weighed: bool
    config: bytes
    head: bytes
    key: bytes

    def __post_init__(self) -> None:
        expect(len(self.run) == RUN, f"a run of {RUN} bytes, got {len(self.run)}")
        expect(0 <= self.round < 1 << 32, f"0 <= round={self.round} < 2^32")
        expect({len(part) for part in (self.model, self.config, self.head, self.key)} == {crypto.KEY}, "32 bytes each")

    @property
    def context(self) -> bytes:
        """The digest that binds."""
        schema = number(self.round) + number(self.dim, 8) + number(self.weighed, 1)
        return crypto.digest("enclave", self.run, schema, self.model, self.config, self.head, self.key)
