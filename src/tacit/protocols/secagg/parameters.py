"""The terms of a round, equal for all parties: parameters, a client's policy, and the session that binds all keys."""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from tacit.errors import ProtocolError, expect
from tacit.protocols import crypto
from tacit.protocols.kit import RUN, Session
from tacit.protocols.secagg.graph import GraphParameters, ThreatModel, graph_parameters
from tacit.wire.packing import Reader, pack_number

MAX_EPOCH = 1 << 12  # of an epoch: their secrets are shared in one message
MIN_COHORT = 3  # with two clients, each could subtract its own vector from the sum


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Parameters of the protocol; part of the context that binds every key.

    Attributes:
        cohort: number of clients invited.
        dim: length of a vector.
        bits: sums are modulo 2^bits.
        threat_model: from which server individual updates stay hidden.
        corrupt: fraction of the cohort that may collude with the server.
        dropout: fraction of the cohort that may drop out.
        min_uploads: uploads required for the round to end with a sum; 0: all but the tolerated dropouts.
        surplus: losses for which clients' noise provides; if there are fewer, seeds of as many survivors' noise are
            opened. 0: there is no such noise.
        rounds: of an epoch: sums for which the clients set up once.
    """

    cohort: int
    dim: int
    bits: int = 32
    threat_model: ThreatModel = ThreatModel.ACTIVE_SERVER
    corrupt: Fraction = Fraction(1, 10)
    dropout: Fraction = Fraction(1, 5)
    min_uploads: int = 0
    surplus: int = 0
    rounds: int = 1

    def __post_init__(self) -> None:
        expect(MIN_COHORT <= self.cohort < 1 << 15, f"{MIN_COHORT} <= cohort={self.cohort} < 32768")
        expect(1 <= self.dim <= 1 << 28, f"1 <= dim={self.dim} <= 2^28")
        expect(1 <= self.bits <= 32, f"1 <= bits={self.bits} <= 32")
        expect(0 <= self.corrupt < 1, f"0 <= corrupt={self.corrupt} < 1")
        expect(0 <= self.dropout < 1, f"0 <= dropout={self.dropout} < 1")
        expect(max(self.corrupt.denominator, self.dropout.denominator) < 1 << 32, "denominators below 2^32")
        expect(0 <= self.min_uploads <= self.cohort, f"0 <= min_uploads={self.min_uploads} <= cohort={self.cohort}")
        expect(0 <= self.surplus < self.cohort, f"0 <= surplus={self.surplus} < cohort={self.cohort}")
        expect(1 <= self.rounds <= MAX_EPOCH, f"1 <= rounds={self.rounds} <= {MAX_EPOCH}")
        losses = self.cohort - self.min_survivors
        expect(self.surplus in {0, max(losses, self.surplus)}, f"surplus={self.surplus} noise for {losses} losses")

    @property
    def min_survivors(self) -> int:
        """The fewest clients in a sum, colluding ones included: what distributed noise may rely on."""
        return max(MIN_COHORT, self.min_uploads or self.cohort - _count(self.dropout, self.cohort))

    @property
    def draws(self) -> bool:
        """Whether clients draw an order, because the graph of the whole cohort is sparse."""
        return bool(self._graph(self.cohort, sparse=True).distances)

    def graph(self, announced: int) -> GraphParameters:
        """The graph of this number of announced clients; all colluders of the cohort may be among them."""
        return self._graph(announced, sparse=self.draws)

    def _graph(self, announced: int, *, sparse: bool) -> GraphParameters:
        dropouts = _count(self.dropout, announced)
        return graph_parameters(
            announced, self.threat_model, self.colluding, dropouts, self.min_survivors, sparse=sparse
        )

    @property
    def colluding(self) -> int:
        """The number of clients that may collude with the server, or lie."""
        return _count(self.corrupt, self.cohort)


@dataclass(frozen=True, kw_only=True)
class SecaggPolicy:
    """The minimum security that a client requires, whatever the server proposes.

    Attributes:
        threat_model: this threat model or a stronger one.
        min_corrupt: at least this fraction may collude.
        min_cohort: at least this many clients must announce.
        min_survivors: at least this many must upload before any share is revealed.
    """

    threat_model: ThreatModel = ThreatModel.ACTIVE_SERVER
    min_corrupt: Fraction = Fraction(1, 20)
    min_cohort: int = MIN_COHORT
    min_survivors: int = MIN_COHORT

    def validate(self, proposed: Parameters) -> None:
        """Raise `ProtocolError` for parameters below the minimum."""
        if proposed.threat_model < self.threat_model:
            raise ProtocolError(
                f"Expected threat model {self.threat_model.name} or stronger, got {proposed.threat_model.name}."
            )
        for name in ("corrupt", "cohort", "min_survivors"):
            value, least = getattr(proposed, name), getattr(self, f"min_{name.removeprefix('min_')}")
            if value < least:
                raise ProtocolError(f"Expected {name}={value} >= {least}.")


@dataclass(frozen=True, kw_only=True)
class SecaggSession(Session):
    """One round of one run. Its digest, the context, binds every pad and signature of the round.

    The session of an epoch's first round is also that of its set-up, and binds keys and shares.

    A client builds it from what it received itself: its digest of the model's bytes, its digest of the round's
    configuration. If a server sends one client another model, the pads of that client cancel with no other pad, and
    its upload is uniform noise (this prevents the attack of Pasquini et al., "Eluding secure aggregation", CCS 2022).

    No two conversations may have the same session: a retried round needs another `config`, by the head of the privacy
    ledger or an attempt counter. Otherwise a server could put old announcements, whose keys it has recovered, into a
    new roster.

    Attributes:
        parameters: of the protocol.
    """

    parameters: Parameters

    @cached_property
    def context(self) -> bytes:
        """The digest that binds keys, pads and signatures to this session."""
        return crypto.digest("context", self.pack())

    def round_binding(self, epoch: bytes, turn: int) -> bytes:
        """The digest that binds pads and signatures of this round, which is number `turn` of an epoch."""
        return crypto.digest("round", epoch, pack_number(turn), self.context)

    def pack(self) -> bytes:
        """All fields, in fixed widths."""
        p = self.parameters
        fractions = (*p.corrupt.as_integer_ratio(), *p.dropout.as_integer_ratio())
        numbers = (
            self.round,
            p.cohort,
            p.dim,
            p.bits,
            int(p.threat_model),
            *fractions,
            p.min_uploads,
            p.surplus,
            p.rounds,
        )
        return self.run + self.model + self.config + b"".join(map(pack_number, numbers))

    @classmethod
    def read(cls, reader: Reader) -> "SecaggSession":
        run, model, config = reader.take(RUN), reader.take(crypto.KEY), reader.take(crypto.KEY)
        index, cohort, dim, bits, threat_model, a, b, c, d, min_uploads, surplus, rounds = (
            reader.number() for _ in range(12)
        )
        parameters = Parameters(
            cohort=cohort,
            dim=dim,
            bits=bits,
            threat_model=ThreatModel(threat_model),
            corrupt=Fraction(a, b),
            dropout=Fraction(c, d),
            min_uploads=min_uploads,
            surplus=surplus,
            rounds=rounds,
        )
        return cls(run=run, round=index, model=model, config=config, parameters=parameters)


def _count(fraction: Fraction, clients: int) -> int:
    return int(fraction * clients)
