"""A method is a value with seven named pieces.

A round is not a chain of hooks: many rows become one vector, and privacy depends on the order of clipping, adding noise
and summing. That order is therefore fixed, in `tacit.core.client_half` and `server_half`; a method only names the piece
in each slot. An ablation is `dataclasses.replace`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import Self

from tacit.core.composition import check_composition, check_pieces
from tacit.core.interfaces import Aggregator, Channel, Codec, Mechanism, Sampler, ServerUpdate, Trainer
from tacit.core.neutral import Add, Identity, Mean, NoNoise, Plain
from tacit.core.plain_form import PLAIN_VERSION, Form, canonical, digest, from_plain, parse, to_plain
from tacit.core.prices import Budget, Unit, check_delta, check_rounds
from tacit.core.state import ServerRound, Sum
from tacit.core.terms import Terms
from tacit.errors import UserError, positive, whole

ROUNDING_SLACK = 1e-6  # by which rounding in floating point may lengthen a sum
MAX_MEAN_SIZE = 16.0  # the mean size of a row's numbers that is accepted by default
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
        max_row_norm: the largest L2 norm of a row that is accepted; None: see `max_norm` and `tacit.core.lengths`.
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
    max_row_norm: float | None = None
    report_delta: float = DELTA

    def __post_init__(self) -> None:
        check_pieces(self)
        check_delta(self.report_delta, "report_delta")
        check_rounds(self.rounds)
        positive(max_row_norm=self.max_row_norm)
        whole(1, patience=self.patience)
        check_composition(self)

    def to_plain(self) -> dict[str, Form]:
        """Its canonical form: nested dictionaries, lists, texts and numbers, with the version of the form."""
        return {"version": PLAIN_VERSION, **to_plain(self)}

    @classmethod
    def from_plain(cls, plain: Form, own: Iterable[type] = ()) -> Self:
        """The method of a canonical form.

        Args:
            plain: the form; it may name the classes that Tacit exports.
            own: classes of your own that it may name, too.

        Raises:
            UserError: it is no such form, of another version, or its pieces do not fit together.

        Example:
            >>> from tacit.methods import make
            >>> method = make("fedavg")
            >>> Method.from_plain(method.to_plain()) == method
            True
        """
        if not isinstance(plain, Mapping):
            raise UserError("Expected the form of a method, a dictionary, got another value.")
        fields = dict(plain)
        version = fields.pop("version", None)
        if version != PLAIN_VERSION or isinstance(version, bool):
            raise UserError(f"Expected the form of a method of version {PLAIN_VERSION}, got {version!r}.")
        method = from_plain(fields, own)
        if not isinstance(method, cls):
            raise UserError(f"Expected the form of a method, got that of {type(method).__name__}.")
        return method

    @cached_property
    def canonical(self) -> str:
        """Its canonical form as text, for sessions, configurations and comparisons."""
        return canonical(self.to_plain())

    @classmethod
    def from_canonical(cls, text: str) -> Self:
        """The method of a canonical text; raises `UserError` for anything else."""
        method = cls.from_plain(parse(text))
        if method.canonical != text:
            raise UserError("Expected the canonical form of a method, got another form of the same one.")
        return method

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of its canonical form, in hexadecimal: equal for equal methods, and for no others."""
        return digest(self.to_plain())

    @property
    def delta(self) -> float:
        """The δ at which ε is reported: that of the budget, without one `report_delta`."""
        return self.report_delta if self.budget is None else self.budget.delta

    @cached_property
    def terms(self) -> Terms:
        """Its privacy terms: units, prices, adjacency, and what is accounted for."""
        return Terms.of(self)

    def with_noise_multiplier(self, noise: float, *units: Unit) -> Self:
        """The method with this noise multiplier for these units; without units, for all noise not yet calibrated."""
        slots = {self.terms.noisy_slot(unit) for unit in units or self.terms.uncalibrated}
        return replace(self, **{slot: getattr(self, slot).with_noise_multiplier(noise) for slot in slots})

    def max_norm(self, dim: int) -> float:
        """The largest L2 norm of a row of `dim` numbers that is accepted; one beyond it is rejected, as NaN is.

        By default infinite where the mechanism clips every row before the sum; otherwise that of a row whose numbers
        are 16 on average (as `SecureSum` accepts them), or √dim times as much if clients add noise. A row of records
        may be longer by the same factor as its bound: its rejection must never depend on noise in shares.
        """
        if self.max_row_norm is not None:
            return self.max_row_norm
        if self.mechanism.requires in ("messages", "all messages"):
            return float("inf")
        of_records = self.mechanism.row_bound or 0.0
        return MAX_MEAN_SIZE * (dim if self.terms.changes_rows else sqrt(dim)) * max(of_records, 1.0) + of_records

    @property
    def shortens(self) -> bool:
        """Whether whoever sees the messages shortens those that are much longer than others (`tacit.core.lengths`)."""
        seen = self.channel.messages_seen_by != "nobody" and self.trainer.sends != "terms"
        return seen and self.mechanism.requires == "anything" and self.max_row_norm is None

    def max_sum(self, total: Sum, now: ServerRound) -> float:
        """The largest L2 norm of the round's released sum that honest clients can cause; infinite if nothing bounds it.

        With noise, they exceed it with a probability of at most 2⁻⁴⁰ in a round (`Mechanism.max_sum`). Without, it is
        the number of clients times `max_row_norm`, if that is given, and the rounding of a grid.
        """
        limit = self.mechanism.max_sum(total, now)
        if limit is not None:
            return limit
        if self.max_row_norm is None or self.terms.changes_rows or self.weighted:
            return float("inf")
        step = 0.0 if total.grid_step is None else total.grid_step.size
        return now.cohort * (self.max_row_norm + step * sqrt(total.total.numel())) * (1 + ROUNDING_SLACK)

    @property
    def weighted(self) -> bool:
        """Whether clients send their number of samples, as the weight of their row."""
        return self.aggregator.requires == "weighted sum"

    @property
    def streams(self) -> bool:
        """Whether waves can be summed as they arrive, so that memory does not grow with the cohort."""
        together = self.mechanism.requires == "all messages" or self.aggregator.requires == "messages"
        return self.channel.streams and not together
