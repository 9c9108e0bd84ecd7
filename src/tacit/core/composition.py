"""The rules of composition: each names two pieces that do not fit, and what to use instead."""

import typing
from abc import ABCMeta
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tacit.core.interfaces import Aggregator, Channel, Codec, Mechanism, Sampler, ServerUpdate, Trainer
from tacit.core.prices import RecordSums, Unit
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
    """Raise `CompositionError` if a slot holds anything but a piece of its kind."""
    for slot, (interface, examples) in PIECES.items():
        piece = getattr(method, slot)
        if isinstance(piece, type):
            raise CompositionError(
                f"{method.name}: Expected {slot} to be a piece, got the class {piece.__name__}. "
                f"Write {slot}={piece.__name__}(...)."
            )
        if missing := missing_members(piece, interface):
            is_value = isinstance(piece, str | int | float | None)
            what = repr(piece) if is_value else f"{_name(piece)}, which has no {' and no '.join(missing)}"
            raise CompositionError(
                f"{method.name}: Expected {slot} to be a piece such as {examples}, got {what}. "
                f"A piece of your own is a subclass of {interface.__name__} in tacit.core.interfaces."
            )


def missing_members(piece: object, interface: ABCMeta) -> list[str]:
    """The abstract members that a piece lacks; if it has them all, the first that a subclass would inherit."""
    required = [name for name in sorted(interface.__abstractmethods__) if not hasattr(piece, name)]
    members = (name for kind in interface.__mro__ for name in vars(kind) if not name.startswith("_"))
    return required or [name for name in members if not hasattr(piece, name)][:1]


def check_composition(method: "Method") -> None:
    """Raise `CompositionError` for the first pair of pieces that do not fit together."""
    problem = next((each for problems in _PROBLEMS for each in problems(method)), None)
    if problem is not None:
        raise CompositionError(f"{method.name}: {problem}")


def _of_trainer(m: "Method") -> Iterator[str]:
    trainer, mechanism, server = _name(m.trainer), _name(m.mechanism), _name(m.server)
    if m.trainer.sends != m.server.expects:
        instead = {
            "weights": "Use Replace.",
            "updates": "Use Add or Momentum.",
            "terms": "Use KeepSum, or another server that expects terms.",
        }[m.trainer.sends]
        yield f"{trainer} sends {m.trainer.sends}, but {server} expects {m.server.expects}. {instead}"
    if m.trainer.masked and m.codec.coordinates != "mask":
        yield (
            f"{trainer} trains only the coordinates that the codec selects, but {_name(m.codec)} selects none. "
            "Use Select, or the trainer without a mask."
        )
    if m.mechanism.expects not in (None, m.trainer.sends):
        yield (
            f"{trainer} sends {m.trainer.sends}, but {mechanism} expects {m.mechanism.expects}. "
            f"Set expects={m.trainer.sends!r}."
        )


def _of_codec(m: "Method") -> Iterator[str]:
    if m.codec.coordinates == "model":
        return
    mechanism, codec = _name(m.mechanism), _name(m.codec)
    if m.mechanism.per_layer:
        yield (
            f"{mechanism} needs the layers of the model, which rows encoded by {codec} do not have. "
            "Use Identity, or one bound for whole rows."
        )
    if m.terms.leakage is not None:
        yield f"{mechanism} protects by distances between whole models, which {codec} does not send. Use Identity."


def _of_channel(m: "Method") -> Iterator[str]:
    mechanism, channel, aggregator = _name(m.mechanism), _name(m.channel), _name(m.aggregator)
    bits, shares = m.channel.message_format.bits, m.mechanism.requires == "only the sum"
    if shares and m.channel.messages_seen_by == "server":
        yield (
            f"{mechanism} adds only a share of the noise at each client, but {channel} shows the server every message. "
            "Use a channel that reveals only the sum, such as SecureSum."
        )
    if shares and bits is not None and m.mechanism.bits != bits:
        noise = "real-valued noise" if m.mechanism.bits is None else f"noise modulo 2^{m.mechanism.bits}"
        advice = f"Use arithmetic=Grid(bits={bits})."
        yield f"{mechanism} adds {noise}, but {channel} sums integers modulo 2^{bits}. {advice}"
    if m.channel.messages_seen_by != "nobody":
        return
    if m.mechanism.requires not in ("anything", "only the sum"):
        yield (
            f"{mechanism} processes every message at the server, but {channel} reveals only their sum. "
            "Use Plain or Enclave, or a mechanism that acts at the clients, such as DistributedGaussian."
        )
    if m.weighted:
        yield f"{aggregator} needs the number of samples of every client, but {channel} hides it. Use Mean."
    if m.aggregator.requires != "sum":
        yield f"{aggregator} needs every message, but {channel} reveals only their sum. Use Plain or Enclave."


def _of_aggregator(m: "Method") -> Iterator[str]:
    mechanism, aggregator = _name(m.mechanism), _name(m.aggregator)
    if m.aggregator.requires == "messages" and m.aggregator.models == 1 and m.mechanism.requires != "anything":
        yield f"{mechanism} adds noise to a sum of bounded messages, but {aggregator} is not a sum. Use Mean."
    if m.weighted and m.terms.changes_rows:
        yield (
            f"{mechanism} bounds the contribution of every client equally, but {aggregator} gives some clients more "
            "weight. Use Mean."
        )


def _of_hypotheses(m: "Method") -> Iterator[str]:
    if m.aggregator.models == 1:
        return
    trainer, aggregator = _name(m.trainer), _name(m.aggregator)
    if not m.trainer.chooses:
        yield f"{aggregator} produces several models, but {trainer} does not choose between them. Use BestOf."
    if m.trainer.sends == "updates":
        yield (
            f"{aggregator} clusters models by their weights, but {trainer} sends updates. "
            "Use a trainer that sends weights."
        )
    if m.codec.coordinates != "model":
        yield f"{aggregator} produces several models, but {_name(m.codec)} supports only one. Use Identity."
    if m.terms.changes_rows and m.terms.leakage is None:
        yield (
            f"{_name(m.mechanism)} protects a single sum of all messages, but {aggregator} produces several. "
            "Use MetricLaplace."
        )


def _of_records_by_trainer(m: "Method") -> Iterator[str]:
    """The trainer's own noise protects records if messages are computed only from its noisy results."""
    price = m.trainer.record_price(1)
    if price is None:
        return
    trainer, mechanism = _name(m.trainer), _name(m.mechanism)
    if price.reason:
        yield f"{trainer} does not protect records: {price.reason}. Use the trainer without it."
    if m.terms.record_bound is not None:
        yield (
            f"{trainer} adds noise for records itself, but {mechanism} adds it to the sum of all clients' records "
            "(RecordClip). Use RecordGradient as the trainer, or FixedClip, or NoNoise."
        )
    if m.weighted:
        yield (
            f"{trainer} protects records, but {_name(m.aggregator)} sends the number of every client's records, which "
            "has no noise. Use Mean."
        )
    if not is_bounded_for(m.mechanism, Unit.RECORD):
        yield (
            f"{trainer} protects records, but {mechanism} is bounded for clients only: it may read the records again "
            "to decide what it does, and that decision gets no noise. Use another mechanism."
        )


def _of_records_by_mechanism(m: "Method") -> Iterator[str]:
    """Noise for records needs rows that are sums over records, each within the bound, and nothing that enlarges it.

    Only pieces that declare to keep the bound may change such a row, and none is left out.
    """
    bound, rows, mechanism = m.terms.record_bound, m.terms.record_sum, _name(m.mechanism)
    if bound is None:
        return
    if rows is None:
        yield (
            f"{mechanism} scales its noise to what one record adds to a row (RecordClip), which {_name(m.trainer)} "
            "does not bound. Use RecordGradient as the trainer, or FixedClip."
        )
    elif rows.bound > bound:
        yield (
            f"{_name(m.trainer)} clips every record to {rows.bound:g}, but RecordClip declares {bound:g}. "
            "Give both the same bound."
        )
    elif _KINDS.index(rows.sums) < _KINDS.index(m.mechanism.record_sums):
        yield {
            "float64": f"{_name(m.trainer)} sums records in float32, but {mechanism} provides only for the rounding "
            "errors of float64 (TermClip). Use RecordClip.",
            "cells": f"{mechanism} adds noise to counts, to which a record adds 1 in one cell, but {_name(m.trainer)} "
            "sums other numbers. Use QuerySum(cells=True), or DistributedGaussian.",
        }[m.mechanism.record_sums]
    bounds = f"{mechanism} bounds what one record adds to a row"
    if not is_bounded_for(m.codec, Unit.RECORD):
        selection = getattr(m.codec, "selection", None)
        which = _name(m.codec) + (f"({_name(selection)})" if selection is not None else "")
        yield (
            f"{bounds}, but {which} is bounded for clients only: through it, one record may change a row by more. "
            "Use Identity, or Select with TopK, FixedRandom or RandomK."
        )
    if not is_bounded_for(m.channel, Unit.RECORD):
        yield (
            f"{bounds}, but {_name(m.channel)} is bounded for clients only: the length of a message may depend on the "
            "row in it. Use SecureSum, or Enclave without a wire format (wire=None)."
        )
    if not is_bounded_for(m.aggregator, Unit.RECORD):
        yield (
            f"{bounds}, but {_name(m.aggregator)} is bounded for clients only: it may change a sum by more than the "
            "rows change. Use Mean."
        )
    if m.max_row_norm is not None:
        yield (
            f"{bounds}, but max_row_norm={m.max_row_norm:g} leaves out a client by the length of its row, which "
            "one record may decide. Leave max_row_norm out: the mechanism shortens long rows (RecordClip.records)."
        )


def _of_budget(m: "Method") -> Iterator[str]:
    mechanism = _name(m.mechanism)
    if m.terms.uncalibrated:
        if m.budget is None:
            uncalibrated = _name(getattr(m, m.terms.noisy_slot(m.terms.uncalibrated[0])))
            yield (
                f"{uncalibrated} has no noise multiplier, and there is no budget to compute it from. "
                "Set the budget or the noise."
            )
    elif m.budget is not None and not m.terms.accounted:
        if m.terms.leakage is not None:
            yield (
                f"a budget of {m.budget} does not apply to {mechanism}, which is accounted as d-privacy. "
                "Set its limit instead."
            )
        yield (
            f"a budget of {m.budget} needs noise with a proved (ε, δ) guarantee, which {mechanism} does not add. "
            "Set its noise, use another mechanism, or drop the budget."
        )


_PROBLEMS = (  # in this order; the later ones rely on the earlier ones
    _of_trainer,
    _of_codec,
    _of_channel,
    _of_aggregator,
    _of_hypotheses,
    _of_records_by_trainer,
    _of_records_by_mechanism,
    _of_budget,
)


_KINDS = typing.get_args(RecordSums)  # from the weakest statement to the strongest


def _name(piece: object) -> str:
    return type(piece).__name__
