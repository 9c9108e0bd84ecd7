"""A method in print: its pieces, who sees what, what is guaranteed and what is not, how to run and to cite it.

Who sees what follows from what the pieces declare (`channel.server_sees`, `aggregator.uniform`, `mechanism.bounds_rows`), the
same declarations by which wrong compositions are refused; pieces with more to say do so under *Visibility* in their
docstrings.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tacit import methods
from tacit.core import Method, Metric
from tacit.core.pieces import nominal

SLOTS = ("sampler", "trainer", "codec", "mechanism", "channel", "aggregator", "server")


@dataclass(frozen=True, kw_only=True)
class Card:
    """A method in print.

    Attributes:
        name: the method's name.
        summary: what it does, in one line.
        rounds: for how many rounds it runs.
        args: the parameters of its factory with their defaults, as Python writes them.
        pieces: what stands in each of the seven slots.
        sees: who sees what.
        event: what one round releases, as the privacy books price it; `none` if there is nothing to price.
        guarantee: what is proved about privacy; `none`, with the reason, if nothing is.
        nominal: figures of the method's paper that are no guarantee, by their names.
        uncovered: what the guarantee does not cover.
        reference: the paper.
        run: the command that runs it.
        repr: an expression that makes the method from public names.
    """

    name: str
    summary: str
    rounds: int
    args: Mapping[str, str]
    pieces: Mapping[str, str]
    sees: Mapping[str, str]
    event: str
    guarantee: str
    nominal: Mapping[str, float]
    uncovered: tuple[str, ...]
    reference: str
    run: str
    repr: str


def card(name: str, args: Mapping[str, object] = MappingProxyType({})) -> Card:
    """The card of a method of the catalogue, with these arguments of its factory.

    Example:
        >>> card("fl-std").guarantee
        'none: nothing is blurred, so what is sent may give away the data it was computed from.'
    """
    factory, method = methods.find(name), methods.make(name, args)
    return Card(
        name=name,
        summary=summary(factory),
        rounds=method.rounds,
        args={key: _parameter(parameter) for key, parameter in inspect.signature(factory).parameters.items()},
        pieces={slot: repr(getattr(method, slot)) for slot in SLOTS},
        sees=_sees(method),
        event=_event(method),
        guarantee=_guarantee(method),
        nominal=dict(nominal(method.mechanism)),
        uncovered=_uncovered(method),
        reference=section(factory, "Reference") or "none given",
        run=" ".join(["tacit run", name, *(f"--set {key}={value}" for key, value in args.items())]),
        repr=repr(method),
    )


def summary(factory: Callable[..., object]) -> str:
    """The first line of a docstring."""
    return (inspect.getdoc(factory) or "").partition("\n")[0]


def section(thing: object, title: str) -> str:
    """The paragraph of a docstring that begins with `title:`, in one line; empty if there is none."""
    paragraphs = (inspect.getdoc(thing) or "").split("\n\n")
    found = next((text for text in paragraphs if text.startswith(f"{title}:")), "")
    return " ".join(found.removeprefix(f"{title}:").split())


def _parameter(parameter: inspect.Parameter) -> str:
    return "required" if parameter.default is parameter.empty else repr(parameter.default)


def _sees(method: Method) -> dict[str, str]:
    server = {"messages": "every client's message", "sum": "only the sum of a round's messages"}[
        method.channel.server_sees
    ]
    hidden = (
        method.channel.server_sees == "sum" and method.channel.aggregates == "messages"
    )  # aggregation is not the server's
    if hidden:
        server = "only what the enclave lets out: the sum of a round's messages, blurred if the mechanism blurs sums"
    if not method.aggregator.uniform and not hidden:
        server += ", and how many samples each client has"
    blurred = "the model after every round" + (
        ", blurred by noise" if method.mechanism.bounds_rows else ", without noise"
    )
    notes = {type(piece).__name__: section(type(piece), "Visibility") for piece in (method.mechanism, method.channel)}
    said = {f"as {name} says": note for name, note in notes.items() if note}
    tolerated = {"tolerated": method.channel.tolerates} if method.channel.tolerates else {}
    return {"the server": server, "every client and whoever gets the model": blurred, **said, **tolerated}


def _event(method: Method) -> str:
    if method.mechanism.needs_noise:
        return f"a Gaussian sum with as much noise as the budget needs, amplified by {method.sampler}"
    if isinstance(method.mechanism, Metric):
        return f"every message, each blurred by its client ({method.mechanism}); sampling amplifies nothing"
    event = method.mechanism.event(0)
    return "none" if event is None else f"{event}, amplified by {method.sampler}"


def _guarantee(method: Method) -> str:
    if method.mechanism.unproved:
        return f"none: {method.mechanism.unproved}."
    if isinstance(method.mechanism, Metric):
        return _metric(method.mechanism, method.mechanism.against)
    if method.budget is None:
        return "(ε, δ)-differential privacy for every client, as the run's own report tells: ε grows with the rounds."
    return (
        f"at most {method.budget} for every client (add-or-remove), against {method.mechanism.against}. Training stops "
        "before the round that would pass it."
    )


def _metric(mechanism: Metric, against: str) -> str:
    """What which distance costs; the model's size is not known here."""
    prices = ", ".join(f"{mechanism.leakage(dim):.3g} for {dim:,}" for dim in (2, 11, 1_000_000))
    limit = "" if mechanism.limit is None else f" A client declines before it would leak more than {mechanism.limit:g}."
    return (
        f"d-privacy for every client, against {against}, in each round in which it takes part: two models within the "
        f"public radius {mechanism.radius:g} can be told apart by at most n·{mechanism.leakage(1):g} for n weights "
        f"({prices}), two at a distance d by d / {mechanism.radius:g} times as much. A client's rounds add up.{limit}"
    )


def _uncovered(method: Method) -> tuple[str, ...]:
    formal = {name: section(type(getattr(method, name)), "Formal guarantees") for name in ("mechanism", "channel")}
    said = tuple(f"Of the {name}: {text}" for name, text in formal.items() if text)
    if not method.mechanism.bounds_rows:
        return said
    return (
        *said,
        "Hyperparameters that were chosen by looking at results on the same data, bounds among them.",
        "A simulated run draws its noise from the seed: it protects only against those who do not know the seed.",
    )
