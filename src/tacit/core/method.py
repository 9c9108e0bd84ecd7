"""A method is a record of seven named pieces.

A round is not a chain of hooks: many rows become one vector, and the order of clipping, adding noise and summing
decides about privacy. The order is therefore fixed, in `tacit.core.client_half` and `server_half`, and a
method only names the piece in each slot. An ablation is `dataclasses.replace`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from numbers import Integral
from typing import Self

from tacit.core.composition import check_composition, check_pieces
from tacit.core.interfaces import (
    Aggregator,
    Channel,
    Codec,
    Mechanism,
    Sampler,
    ServerUpdate,
    Trainer,
)
from tacit.core.neutral import Add, Identity, Mean, NoNoise, Plain
from tacit.core.plain_form import VERSION, Form, canonical, digest, from_plain, parse, to_plain
from tacit.core.prices import (
    Adjacency,
    Budget,
    Leakage,
    Price,
    RecordPrice,
    RecordSum,
    Release,
    Repeated,
    Sampling,
    Unit,
    Unproved,
    Unsized,
    accounted,
    check_delta,
    check_rounds,
    reason_unproved,
)
from tacit.core.provenance import OwnPart, own_parts, rests_on
from tacit.core.state import Turnout
from tacit.errors import UserError, expect

REACH = 16.0  # the mean size of a row's numbers that is accepted by default
MANY_LOST = Turnout(1000, 1)  # more than any noise provides for, but not all
DELTA = 1e-5  # at which ε is reported if there is no budget


@dataclass(frozen=True, kw_only=True)
class Method:
    """A name, seven pieces, and when to stop. The defaults of the last five pieces make federated averaging.

    Pieces that do not fit together raise `CompositionError`, which names both pieces and what to use instead.

    Args:
        name: the method's name in reports and error messages.
        rounds: the maximum number of rounds.
        sampler: who takes part in a round.
        trainer: what a client computes from its data.
        codec: in which coordinates updates are sent.
        mechanism: how updates are clipped and noised.
        channel: who sees which part of the messages.
        aggregator: how many messages become one model, or k.
        server: how the aggregate changes the model.
        budget: training stops before the round that would exceed this (ε, δ), for clients or for records: each
            guarantee that the method gives is held to it by itself.
        report_delta: the δ at which ε is reported if there is no budget.
        patience: training stops after this many evaluations in a row without a smaller loss on held-out data, and
            returns the best model.
        reach: the largest L2 norm of a row that is accepted; None: see `max_norm`.
    """

    name: str
    rounds: int
    sampler: Sampler
    trainer: Trainer
    codec: Codec = Identity()
    mechanism: Mechanism = NoNoise()
    channel: Channel = Plain()
    aggregator: Aggregator = Mean()
    server: ServerUpdate = Add()
    budget: Budget | None = None
    patience: int | None = None
    reach: float | None = None
    report_delta: float = DELTA

    def __post_init__(self) -> None:
        check_pieces(self)
        check_delta(self.report_delta)
        expect(isinstance(self.rounds, Integral), f"rounds={self.rounds!r} to be a whole number")
        check_rounds(self.rounds)
        expect(self.reach is None or self.reach > 0, f"reach={self.reach} > 0")
        expect(self.patience is None or self.patience >= 1, f"patience={self.patience} >= 1")
        check_composition(self)

    def to_plain(self) -> dict[str, Form]:
        """Its canonical form: nested dictionaries, lists, texts and numbers, with the version of the form."""
        return {"version": VERSION, **to_plain(self)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Form], own: Iterable[type] = ()) -> Self:
        """The method of a canonical form.

        Args:
            plain: the form; it may name the records that Tacit exports.
            own: classes of one's own that it may name, too.

        Raises:
            UserError: it is no such form, of another version, or its pieces do not fit together.

        Example:
            >>> from tacit.methods import make
            >>> method = make("fedavg")
            >>> Method.from_plain(method.to_plain()) == method
            True
        """
        given = dict(plain)
        version = given.pop("version", None)
        if version != VERSION or isinstance(version, bool):
            raise UserError(f"Expected the form of a method of version {VERSION}, got {version!r}.")
        found = from_plain(given, own)
        if not isinstance(found, cls):
            raise UserError(f"Expected the form of a method, got that of {type(found).__name__}.")
        return found

    @cached_property
    def canonical(self) -> str:
        """The one text of its canonical form, which sessions, configurations and comparisons use."""
        return canonical(self.to_plain())

    @classmethod
    def from_canonical(cls, text: str) -> Self:
        """The method of a canonical text; raises `UserError` for anything else."""
        found = cls.from_plain(_named(parse(text)))
        if found.canonical != text:
            raise UserError("Expected the canonical form of a method, got another form of the same one.")
        return found

    @property
    def digest(self) -> str:
        """The SHA-256 of its canonical form, in hexadecimal: equal for equal methods, and for no others."""
        return digest(self.to_plain())

    @property
    def delta(self) -> float:
        """The δ at which ε is reported: that of the budget, without one `report_delta`."""
        return self.report_delta if self.budget is None else self.budget.delta

    def price(self, index: int, turnout: Turnout | None = None) -> Price:
        """What a round costs a client, as far as all pieces are Tacit's own or declare their sensitivity."""
        if self.record_bound is not None:
            return Unproved("the noise is scaled to what one record adds to an update, and not to a whole update")
        return rests_on(self.mechanism.price(index, turnout), self.own_parts)

    def record_price(self, samples: int, turnout: Turnout | None = None) -> RecordPrice | None:
        """What a round costs one record of a client that has so many and takes part; None: no record is protected.

        The noise is the trainer's own, and everything after it post-processing; or it is that of a sum over the clients
        (`RecordClip`), where Poisson batches amplify it. Which clients take part may then be known, so that noise of
        another variance reveals nothing about a record.
        """
        if self.record_bound is None:
            found = self.trainer.record_price(samples)
            parts = [part for part in self.own_parts if part.slot in ("trainer", "codec", "mechanism")]
            return _record_price(found, parts)
        price, rows = self.mechanism.price(0, turnout), self.record_sum
        if not isinstance(price, Release) or rows is None:
            return price if isinstance(price, Unproved | Unsized) else None
        sampling = Sampling.at(rows.rate, "poisson")
        return _record_price(Repeated(replace(price, sampling=sampling, constant=True), 1), list(self.own_parts))

    def sized(self, noise: float) -> Self:
        """The method with this noise multiplier, wherever noise is not sized yet."""
        mechanism, trainer = self.mechanism, self.trainer
        if isinstance(mechanism.price(0), Unsized):
            mechanism = mechanism.sized(noise)
        if isinstance(trainer.record_price(1), Unsized):
            trainer = trainer.sized(noise)
        return replace(self, mechanism=mechanism, trainer=trainer)

    @property
    def record_sum(self) -> RecordSum | None:
        """How far one record can change a client's row, where rows are sums over records; None: they are not."""
        return self.trainer.record_sum

    @property
    def record_bound(self) -> float | None:
        """The bound on what one record adds to a row, where the mechanism's noise is for records; None: it is not."""
        return self.mechanism.record_bound

    @property
    def units(self) -> tuple[Unit, ...]:
        """The units about which a guarantee is stated, or that there is none; the record only if it gets noise."""
        if not self.protects_records:
            return (Unit.CLIENT,)
        return (Unit.CLIENT, Unit.RECORD) if self.record_bound is None and self.changes_rows else (Unit.RECORD,)

    @property
    def protects_records(self) -> bool:
        """Whether it adds noise for the protection of records, proved or not, sized or not."""
        return self.record_price(1) is not None

    @property
    def accounts_records(self) -> bool:
        """Whether an accountant can compute the ε of records; not before the noise multiplier is known."""
        return isinstance(self.record_price(1), Repeated)

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency of its guarantee, which is fixed before the first round; add-or-remove if nothing is proved.

        Where the channel goes on, however many clients are lost, noise in shares may depend on that number, so the
        guarantee is for zero-out even if nobody is lost in the end.
        """
        prices = (accounted(self.price(0, turnout)) for turnout in self.turnouts)
        proved = [price.adjacencies for price in prices if isinstance(price, Release)]
        common = (each for each in Adjacency if all(each in adjacencies for adjacencies in proved))
        return next(common, Adjacency.ADD_OR_REMOVE)

    @property
    def turnouts(self) -> tuple[Turnout | None, ...]:
        """The turnouts that decide about its adjacency: as planned and, where the channel goes on, a great loss."""
        return (None,) if self.channel.min_cohort else (None, MANY_LOST)

    @cached_property
    def own_parts(self) -> tuple[OwnPart, ...]:
        """The parts of its pieces that its user wrote."""
        return own_parts(self)

    @property
    def accounted(self) -> bool:
        """Whether an accountant can compute the ε of clients; not before the noise multiplier is known."""
        return self.record_bound is None and isinstance(accounted(self.mechanism.price(0)), Release)

    @property
    def metric(self) -> bool:
        """Whether its rounds are accounted as d-privacy."""
        return isinstance(accounted(self.mechanism.price(0)), Leakage)

    @property
    def unsized(self) -> bool:
        """Whether a noise multiplier still has to be computed from the budget and the population."""
        return isinstance(self.mechanism.price(0), Unsized) or isinstance(self.record_price(1), Unsized)

    @property
    def changes_rows(self) -> bool:
        """Whether its mechanism clips rows or adds noise at all."""
        price = self.mechanism.price(0)
        return self.mechanism.requires != "anything" or not isinstance(price, Unproved) or price.noisy

    def max_norm(self, dim: int) -> float:
        """The largest L2 norm of a row of `dim` numbers that is accepted; one beyond it is rejected, as NaN is.

        By default infinite where the mechanism clips every row before it is summed; otherwise that of a row whose
        numbers are 16 on average (as `SecureSum` accepts them), or √dim times as much if clients add noise. A row of
        records may be longer by the same factor as its bound: noise in shares must never decide that it is left out.
        """
        if self.reach is not None:
            return self.reach
        if self.mechanism.requires in ("messages", "all messages"):
            return float("inf")
        of_records = self.mechanism.row_bound or 0.0
        return REACH * (dim if self.changes_rows else sqrt(dim)) * max(of_records, 1.0) + of_records

    @property
    def weighted(self) -> bool:
        """Whether clients send their number of samples, as the weight of their row."""
        return self.aggregator.requires == "weighted sum"

    @property
    def streams(self) -> bool:
        """Whether waves can be summed as they arrive, so that memory does not grow with the cohort."""
        together = self.mechanism.requires == "all messages" or self.aggregator.requires == "messages"
        return self.channel.streams and not together


def _named(plain: Form) -> Mapping[str, Form]:
    """A form that is a dictionary; raises `UserError` for any other."""
    if isinstance(plain, dict):
        return plain
    raise UserError("Expected the form of a method, a dictionary, got another value.")


def _record_price(price: RecordPrice | None, parts: list[OwnPart]) -> RecordPrice | None:
    """The price for records, if all of these parts are Tacit's own or declare their sensitivity."""
    if not isinstance(price, Repeated):
        return price
    found = rests_on(price.release, tuple(parts))
    return replace(price, release=found) if isinstance(found, Release) else Unproved(reason_unproved(found))
