"""Which conversation it is. Its digest, the context, binds every key, pad and signature of a round."""

from dataclasses import dataclass
from fractions import Fraction

from tacit.errors import expect
from tacit.protocols import crypto
from tacit.protocols.secagg.parameters import Level, Parameters
from tacit.wire.packing import Reader, number

RUN = 16  # bytes of a run's name


@dataclass(frozen=True, kw_only=True)
class Session:
    """One round of one run.

    A client builds it from what it was really given: its digest of the model's bytes, its digest of the round's
    configuration. If a server gives somebody another model, that client's pads cancel with nobody's, and what it sends
    is noise (against Pasquini et al., "Eluding secure aggregation", CCS 2022).

    No two conversations may have the same session: a round that is tried again needs another `config`, through the
    ledger's head or a counter of attempts. Otherwise a server could put old announcements, whose keys it has opened,
    into a new roster.

    Attributes:
        run: 16 bytes that no other run has.
        round: the round's number; keys are fresh in every round.
        model: SHA-256 of the model that was broadcast.
        config: SHA-256 of everything else that clients must agree on, the ledger's head included.
        parameters: of the protocol.
    """

    run: bytes
    round: int
    model: bytes
    config: bytes
    parameters: Parameters

    def __post_init__(self) -> None:
        expect(len(self.run) == RUN, f"a run of {RUN} bytes, got {len(self.run)}")
        expect(0 <= self.round < 1 << 32, f"0 <= round={self.round} < 2^32")
        expect(len(self.model) == len(self.config) == crypto.KEY, "digests of 32 bytes")

    @property
    def context(self) -> bytes:
        """The digest that binds."""
        return crypto.digest("context", self.pack())

    def pack(self) -> bytes:
        """All of it, in fixed widths."""
        p = self.parameters
        numbers = (self.round, p.cohort, p.dim, p.bits, int(p.level), *_both(p.corrupt), *_both(p.dropout), p.least)
        return self.run + self.model + self.config + b"".join(map(number, numbers))

    @classmethod
    def read(cls, reader: Reader) -> "Session":
        """What was packed."""
        run, model, config = reader.take(RUN), reader.take(crypto.KEY), reader.take(crypto.KEY)
        index, cohort, dim, bits, level, a, b, c, d, least = (reader.number() for _ in range(10))
        parameters = Parameters(
            cohort=cohort,
            dim=dim,
            bits=bits,
            level=Level(level),
            corrupt=Fraction(a, b),
            dropout=Fraction(c, d),
            least=least,
        )
        return cls(run=run, round=index, model=model, config=config, parameters=parameters)


def _both(fraction: Fraction) -> tuple[int, int]:
    return fraction.numerator, fraction.denominator
