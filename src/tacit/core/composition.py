"""Which pieces fit together: each rule names both pieces and what to use instead."""

from abc import ABCMeta
from typing import TYPE_CHECKING

from tacit.core.interfaces import Aggregator, Channel, Codec, Mechanism, Sampler, ServerUpdate, Trainer
from tacit.core.prices import Unit
from tacit.core.provenance import is_bounded_for
from tacit.errors import CompositionError

if TYPE_CHECKING:
    from tacit.core.method import Method

PIECES: dict[str, tuple[ABCMeta, str]] = {  # the interface of each slot, and pieces that fit it
    "sampler": (Sampler, "FixedSize(10), Poisson(10.0) or Everyone()"),
    "trainer": (Trainer, "Sgd(lr=0.1, epochs=1)"),
    "codec": (Codec, "Identity() or Select(TopK(...))"),
    "mechanism": (Mechanism, "NoNoise() or CentralGaussian(...)"),
    "channel": (Channel, "Plain() or SecureSum()"),
    "aggregator": (Aggregator, "Mean(), WeightedMean() or KMeans(...)"),
    "server": (ServerUpdate, "Add(), Replace() or Momentum(0.9)"),
}


def check_pieces(method: "Method") -> None:
    """Raise `CompositionError` if what is in a slot is not a piece of it."""
    for slot, (interface, examples) in PIECES.items():
        piece = getattr(method, slot)
        if isinstance(piece, type):
            raise CompositionError(
                f"{method.name}: Expected {slot} to be a piece, got the class {piece.__name__}. "
                f"Write {slot}={piece.__name__}(...)."
            )
        if missing := lacking(piece, interface):
            is_value = isinstance(piece, str | int | float | None)
            what = repr(piece) if is_value else f"{_name(piece)}, which has no {' and no '.join(missing)}"
            raise CompositionError(
                f"{method.name}: Expected {slot} to be a piece such as {examples}, got {what}. "
                f"A piece of your own is a subclass of {interface.__name__} in tacit.core.interfaces."
            )


def lacking(piece: object, interface: ABCMeta) -> list[str]:
    """What a piece must answer and does not; if it answers all of that, the first of what a subclass would inherit."""
    required = [name for name in sorted(interface.__abstractmethods__) if not hasattr(piece, name)]
    members = (name for kind in interface.__mro__ for name in vars(kind) if not name.startswith("_"))
    return required or [name for name in members if not hasattr(piece, name)][:1]


def check_composition(method: "Method") -> None:
    """Raise `CompositionError` for the first pair of pieces that do not fit together."""
    for check in _CHECKS:
        problem = check(method)
        if problem:
            raise CompositionError(f"{method.name}: {problem}")


def _trainer_and_server(m: "Method") -> str:
    if m.trainer.sends == m.server.expects:
        return ""
    instead = {"weights": "Use Replace.", "updates": "Use Add or Momentum."}[m.trainer.sends]
    return f"{_name(m.trainer)} sends {m.trainer.sends}, but {_name(m.server)} expects {m.server.expects}. {instead}"


def _trainer_and_codec(m: "Method") -> str:
    if m.codec.coordinates == "mask" or not m.trainer.masked:
        return ""
    return (
        f"{_name(m.trainer)} trains only the coordinates that the codec selects, but {_name(m.codec)} selects none. "
        "Use Select, or the trainer without a mask."
    )


def _trainer_and_mechanism(m: "Method") -> str:
    if m.mechanism.expects in (None, m.trainer.sends):
        return ""
    return (
        f"{_name(m.trainer)} sends {m.trainer.sends}, but {_name(m.mechanism)} expects {m.mechanism.expects}. "
        f"Set expects={m.trainer.sends!r}."
    )


def _mechanism_and_codec(m: "Method") -> str:
    if m.codec.coordinates == "model":
        return ""
    if m.mechanism.per_layer:
        return (
            f"{_name(m.mechanism)} needs the layers of the model, which rows encoded by {_name(m.codec)} do not have. "
            "Use Identity, or one bound for whole rows."
        )
    if m.terms.leakage is not None:
        return (
            f"{_name(m.mechanism)} protects by distances between whole models, which {_name(m.codec)} does not send. "
            "Use Identity."
        )
    return ""


def _mechanism_and_channel(m: "Method") -> str:
    bits, shares = m.channel.message_format.bits, m.mechanism.requires == "only the sum"
    if shares and m.channel.messages_seen_by == "server":
        return (
            f"{_name(m.mechanism)} adds only a share of the noise at each client, but {_name(m.channel)} shows the "
            "server every message. Use a channel that reveals only the sum, such as SecureSum."
        )
    if shares and bits is not None and m.mechanism.bits != bits:
        noise = "real-valued noise" if m.mechanism.bits is None else f"noise modulo 2^{m.mechanism.bits}"
        return (
            f"{_name(m.mechanism)} adds {noise}, but {_name(m.channel)} sums integers modulo 2^{bits}. "
            f"Use arithmetic=Grid(bits={bits})."
        )
    if m.mechanism.requires in ("anything", "only the sum") or m.channel.messages_seen_by != "nobody":
        return ""
    return (
        f"{_name(m.mechanism)} processes every message at the server, but {_name(m.channel)} reveals only their sum. "
        "Use Plain or Enclave, or a mechanism that acts at the clients, such as DistributedGaussian."
    )


def _aggregator_and_channel(m: "Method") -> str:
    if m.channel.messages_seen_by != "nobody":
        return ""
    if m.weighted:
        return (
            f"{_name(m.aggregator)} needs the number of samples of every client, but {_name(m.channel)} hides it. "
            "Use Mean."
        )
    if m.aggregator.requires == "sum":
        return ""
    return (
        f"{_name(m.aggregator)} needs every message, but {_name(m.channel)} reveals only their sum. "
        "Use Plain or Enclave."
    )


def _mechanism_and_aggregator(m: "Method") -> str:
    if m.aggregator.requires == "messages" and m.aggregator.models == 1 and m.mechanism.requires != "anything":
        return (
            f"{_name(m.mechanism)} adds noise to a sum of bounded messages, but {_name(m.aggregator)} is not a sum. "
            "Use Mean."
        )
    if not m.weighted or not m.terms.changes_rows:
        return ""
    return (
        f"{_name(m.mechanism)} bounds the contribution of every client equally, but {_name(m.aggregator)} gives some "
        "clients more weight. Use Mean."
    )


def _hypotheses(m: "Method") -> str:
    if m.aggregator.models == 1:
        return ""
    if not m.trainer.chooses:
        return (
            f"{_name(m.aggregator)} produces several models, but {_name(m.trainer)} does not choose between them. "
            "Use BestOf."
        )
    if m.trainer.sends == "updates":
        return (
            f"{_name(m.aggregator)} clusters models by their weights, but {_name(m.trainer)} sends updates. "
            "Use a trainer that sends weights."
        )
    if m.codec.coordinates != "model":
        return f"{_name(m.aggregator)} produces several models, but {_name(m.codec)} supports only one. Use Identity."
    return ""


def _mechanism_and_hypotheses(m: "Method") -> str:
    if m.aggregator.models == 1 or not m.terms.changes_rows or m.terms.leakage is not None:
        return ""
    return (
        f"{_name(m.mechanism)} protects a single sum of all messages, but {_name(m.aggregator)} produces several. "
        "Use MetricLaplace."
    )


def _budget(m: "Method") -> str:
    if m.terms.unsized:
        unsized = getattr(m, m.terms.noisy_slot(m.terms.unsized[0]))
        missing = (
            f"{_name(unsized)} has no noise multiplier, and there is no budget to compute it from. "
            "Set the budget or the noise."
        )
        return missing if m.budget is None else ""
    if m.budget is None or m.terms.accounted:
        return ""
    if m.terms.leakage is not None:
        return (
            f"a budget of {m.budget} does not apply to {_name(m.mechanism)}, which is accounted as d-privacy. "
            "Set its limit instead."
        )
    return (
        f"a budget of {m.budget} needs noise with a proved (ε, δ) guarantee, which {_name(m.mechanism)} does not add. "
        "Set its noise, use another mechanism, or drop the budget."
    )


def _records_by_trainer(m: "Method") -> str:
    """Noise of the trainer's own protects records if all that is sent is computed from what has this noise."""
    price = m.trainer.record_price(1)
    if price is None:
        return ""
    if price.reason:
        return f"{_name(m.trainer)} does not protect records: {price.reason}. Use the trainer without it."
    if m.terms.record_bound is not None:
        return (
            f"{_name(m.trainer)} adds noise for records itself, but {_name(m.mechanism)} adds it to the sum of all "
            "clients' records (RecordClip). Use RecordGradient as the trainer, or FixedClip, or NoNoise."
        )
    if m.weighted:
        return (
            f"{_name(m.trainer)} protects records, but {_name(m.aggregator)} sends the number of every client's "
            "records, which has no noise. Use Mean."
        )
    if not is_bounded_for(m.mechanism, Unit.RECORD):
        return (
            f"{_name(m.trainer)} protects records, but {_name(m.mechanism)} is bounded for clients only: it may read "
            "the records again to decide what it does, and that decision gets no noise. Use another mechanism."
        )
    return ""


def _records_by_mechanism(m: "Method") -> str:
    """Noise for records needs rows that are sums over records, each within the bound, and nothing that enlarges it."""
    bound, rows = m.terms.record_bound, m.terms.record_sum
    if bound is None:
        return ""
    if rows is None:
        return (
            f"{_name(m.mechanism)} scales its noise to what one record adds to a row (RecordClip), which "
            f"{_name(m.trainer)} does not bound. Use RecordGradient as the trainer, or FixedClip."
        )
    if rows.bound > bound:
        return (
            f"{_name(m.trainer)} clips every record to {rows.bound:g}, but RecordClip declares {bound:g}. "
            "Give both the same bound."
        )
    return _enlarges_records(m)


def _enlarges_records(m: "Method") -> str:
    """A row of clipped records may be changed only by what is declared to keep their bound; and none is left out."""
    bounds = f"{_name(m.mechanism)} bounds what one record adds to a row"
    if not is_bounded_for(m.codec, Unit.RECORD):
        selection = getattr(m.codec, "selection", None)
        which = _name(m.codec) + (f"({_name(selection)})" if selection is not None else "")
        return (
            f"{bounds}, but {which} is bounded for clients only: through it, one record may change a row by more. "
            "Use Identity, or Select with TopK, FixedRandom or RandomK."
        )
    if not is_bounded_for(m.channel, Unit.RECORD):
        return (
            f"{bounds}, but {_name(m.channel)} is bounded for clients only: the length of a message may depend on the "
            "row in it. Use SecureSum, or Enclave without a wire format (wire=None)."
        )
    if not is_bounded_for(m.aggregator, Unit.RECORD):
        return (
            f"{bounds}, but {_name(m.aggregator)} is bounded for clients only: it may change a sum by more than the "
            "rows change. Use Mean."
        )
    if m.reach is not None:
        return (
            f"{bounds}, but reach={m.reach:g} leaves out a client by the length of its row, which one record may "
            "decide. Leave reach out: the mechanism shortens long rows (RecordClip.records)."
        )
    return ""


_CHECKS = (
    _trainer_and_server,
    _trainer_and_codec,
    _trainer_and_mechanism,
    _mechanism_and_codec,
    _mechanism_and_channel,
    _aggregator_and_channel,
    _mechanism_and_aggregator,
    _hypotheses,
    _mechanism_and_hypotheses,
    _records_by_trainer,
    _records_by_mechanism,
    _budget,
)


def _name(piece: object) -> str:
    return type(piece).__name__
