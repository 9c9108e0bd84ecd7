"""A method is a record of seven named pieces.

A round is not a chain of hooks: many rows become one vector, and the order of clipping, blurring and summing
decides about privacy. The order is therefore fixed in `tacit.core.round`, and a method only says what stands
in each place. An ablation is `dataclasses.replace`.
"""

from dataclasses import dataclass

from tacit.core.interfaces import (
    Aggregator,
    Channel,
    Codec,
    HypothesisTrainer,
    Mechanism,
    MetricMechanism,
    PayloadMechanism,
    Sampler,
    ServerUpdate,
    Trainer,
)
from tacit.core.neutral import Add, Identity, Mean, NoNoise, Plain
from tacit.core.stopping import Budget
from tacit.errors import CompositionError, expect

DELTA = 1e-5  # at which ε is told if there is no budget


@dataclass(frozen=True, kw_only=True)
class Method:
    """Seven named pieces, a name, and for how long. The last five pieces' defaults make federated averaging.

    A method with a budget stops before the round that would pass it, and after `rounds` at the latest. One with
    patience stops when so many measurements in a row brought no smaller loss on held-out data; it keeps the best model.

    Built only if the pieces fit together; otherwise `CompositionError` says who, what, and what instead.
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

    def __post_init__(self) -> None:
        expect(self.rounds >= 1, f"rounds={self.rounds} >= 1")
        expect(self.patience is None or self.patience >= 1, f"patience={self.patience} >= 1")
        check_composition(self)

    @property
    def delta(self) -> float:
        """At which ε is told: the budget's δ, or a usual one if there is no budget."""
        return DELTA if self.budget is None else self.budget.delta

    @property
    def accounted(self) -> bool:
        """Whether its rounds have a price; noise that is not sized yet has none to tell."""
        return not self.mechanism.needs_noise and self.mechanism.event(0) is not None

    @property
    def streams(self) -> bool:
        """Whether waves can be summed as they come, so that memory does not grow with the cohort."""
        return self.mechanism.row_wise and self.aggregator.requires == "sum" and self.channel.streams


def check_composition(method: Method) -> None:
    """Raise `CompositionError` for the first pairing that cannot work."""
    for pair in _PAIRS:
        complaint = pair(method)
        if complaint:
            raise CompositionError(f"{method.name}: {complaint}")


def _says_and_takes(m: Method) -> str:
    if m.trainer.sends == m.server.expects:
        return ""
    instead = {"weights": "Use Replace.", "updates": "Use Add or Momentum."}[m.trainer.sends]
    return f"{_of(m.trainer)} sends {m.trainer.sends}, but {_of(m.server)} takes {m.server.expects}. {instead}"


def _trainer_and_codec(m: Method) -> str:
    if m.codec.selects or not m.trainer.masked:
        return ""
    return f"{_of(m.trainer)} trains only the codec's coordinates, but {_of(m.codec)} chooses none."


def _mechanism_and_codec(m: Method) -> str:
    if isinstance(m.codec, Identity) or not m.mechanism.per_layer:
        return ""
    return (
        f"{_of(m.mechanism)} needs the model's layers, but what {_of(m.codec)} sends has none. "
        "Use Identity, or a bound for whole rows."
    )


def _trainer_and_mechanism(m: Method) -> str:
    if not isinstance(m.mechanism, PayloadMechanism) or m.mechanism.expects == m.trainer.sends:
        return ""
    return (
        f"{_of(m.trainer)} sends {m.trainer.sends}, but {_of(m.mechanism)} takes {m.mechanism.expects}. "
        f"Set expects={m.trainer.sends!r}."
    )


def _mechanism_and_channel(m: Method) -> str:
    if m.mechanism.distributed and m.channel.server_sees == "messages":
        return (
            f"{_of(m.mechanism)} puts only 1/n of the noise on each client, but {_of(m.channel)} shows the server "
            "every message. Use a channel that reveals only the sum, such as SecureSum."
        )
    if m.mechanism.distributed and m.channel.bits is not None and m.mechanism.bits != m.channel.bits:
        added = "real numbers" if m.mechanism.bits is None else f"integers modulo 2^{m.mechanism.bits}"
        return (
            f"{_of(m.mechanism)} blurs with {added}, but {_of(m.channel)} adds up integers modulo 2^{m.channel.bits}. "
            f"Use numbers=Grid(bits={m.channel.bits})."
        )
    if m.mechanism.requires == "sum" or m.channel.aggregates == "messages":
        return ""
    return f"{_of(m.mechanism)} reads every message on the server, but {_of(m.channel)} reveals only their sum."


def _aggregator_and_channel(m: Method) -> str:
    if m.channel.aggregates == "messages":
        return ""
    if not m.aggregator.uniform:
        return f"{_of(m.aggregator)} needs every client's number of samples, but {_of(m.channel)} hides it. Use Mean."
    if m.aggregator.requires == "sum":
        return ""
    return f"{m.aggregator} needs every message, but {_of(m.channel)} reveals only their sum."


def _mechanism_and_aggregator(m: Method) -> str:
    if m.aggregator.uniform or not m.mechanism.bounds_rows:
        return ""
    return f"{_of(m.mechanism)} bounds every client alike, but {_of(m.aggregator)} lets some count more. Use Mean."


def _hypotheses(m: Method) -> str:
    if m.aggregator.models == 1:
        return ""
    if not isinstance(m.trainer, HypothesisTrainer):
        return f"{m.aggregator} makes several models, but {_of(m.trainer)} chooses none of them. Use BestOf."
    if m.trainer.sends == "updates":
        return f"{m.aggregator} tells models apart by their weights, but {_of(m.trainer)} sends updates. Send weights."
    if not isinstance(m.codec, Identity):
        return f"{m.aggregator} makes several models, but {_of(m.codec)} is made for one. Use Identity."
    return ""


def _mechanism_and_hypotheses(m: Method) -> str:
    if m.aggregator.models == 1 or not m.mechanism.bounds_rows or isinstance(m.mechanism, MetricMechanism):
        return ""
    return (
        f"{_of(m.mechanism)} is made for one sum of all messages, but {m.aggregator} makes several. Use MetricLaplace."
    )


def _metric(m: Method) -> str:
    if not isinstance(m.mechanism, MetricMechanism):
        return ""
    if not isinstance(m.codec, Identity):
        unlike = f"which {_of(m.codec)} does not send. Use Identity."
        return f"{_of(m.mechanism)} is priced by distances between models, {unlike}"
    if m.mechanism.expects == m.trainer.sends:
        return ""
    instead = f'Use {_of(m.mechanism)}(expects="{m.trainer.sends}").'
    return f"{_of(m.mechanism)} blurs {m.mechanism.expects}, but {_of(m.trainer)} sends {m.trainer.sends}. {instead}"


def _budget(m: Method) -> str:
    if m.mechanism.needs_noise:
        missing = f"{_of(m.mechanism)} is to be sized for a budget, but there is none. Give the budget or the noise."
        return missing if m.budget is None else ""
    if m.budget is None or m.accounted:
        return ""
    if isinstance(m.mechanism, MetricMechanism):
        return f"a budget of {m.budget} is not what {_of(m.mechanism)} is priced in. Set its limit instead."
    return f"a budget of {m.budget} needs noise, but {_of(m.mechanism)} adds none. Set its noise or drop the budget."


_PAIRS = (
    _says_and_takes,
    _trainer_and_codec,
    _trainer_and_mechanism,
    _mechanism_and_codec,
    _mechanism_and_channel,
    _aggregator_and_channel,
    _mechanism_and_aggregator,
    _hypotheses,
    _mechanism_and_hypotheses,
    _metric,
    _budget,
)


def _of(piece: object) -> str:
    return type(piece).__name__
