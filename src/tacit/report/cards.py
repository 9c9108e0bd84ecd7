"""Cards: a method's pieces, who sees what, what is guaranteed and what is not, how to run it and how to cite it.

Who sees what follows from what the pieces declare (`tacit.report.disclosures`). What is not covered comes from the
sections *Formal guarantees* of the pieces' docstrings.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tacit import methods
from tacit.core import Method
from tacit.core.prices import Adjacency, Gaussian, Laplace, Leakage, Release, Unit, UnitPrice, Zcdp
from tacit.core.schema import SLOTS, list_names
from tacit.errors import expect
from tacit.privacy.guarantee import IN_COMMON, PERSONS, within_adversary
from tacit.report.disclosures import section, who_sees

_LARGE = 10**9  # a population larger than any cohort


@dataclass(frozen=True, kw_only=True)
class Card:
    """The description of a method for its users.

    Attributes:
        name: the method's name.
        summary: what it does, in one line.
        rounds: the number of rounds.
        args: the parameters of its factory with their defaults, as Python expressions.
        explanations: what each of them is, and what happens if it is wrong.
        pieces: the piece in each of the seven slots.
        sees: who sees what.
        event: what one round releases, for privacy accounting; `none` if there is nothing to account for.
        guarantee: what is proved about privacy; `none`, with the reason, if nothing is.
        nominal: figures of the method's paper that are not guarantees, by name.
        uncovered: assumptions of the guarantee, and what it does not cover.
        reference: the paper.
        run: the command that runs it.
        repr: a Python expression that builds the method, from the names of `tacit` and `tacit.pieces`.
    """

    name: str
    summary: str
    rounds: int
    args: Mapping[str, str]
    explanations: Mapping[str, str]
    pieces: Mapping[str, str]
    sees: Mapping[str, str]
    event: str
    guarantee: str
    nominal: Mapping[str, float]
    uncovered: tuple[str, ...]
    reference: str
    run: str
    repr: str


def card(method: str | Method, args: Mapping[str, object] = MappingProxyType({})) -> Card:
    """Return the card of a method: of a registered name or `FILE.py:FUNCTION` with these arguments, or of your own.

    Example:
        >>> card("fl-std").guarantee
        'none: no noise is added, so updates can reveal training data.'
        >>> card(methods.make("fl-std", {"rounds": 3})).summary == card("fl-std").summary
        True
    """
    if isinstance(method, Method):
        expect(
            not args, "a method's arguments with its name only", "Change a finished method with dataclasses.replace."
        )
        return _card(method, lambda: method, _summary_of(method), "tacit.train(method, task)")
    instance = methods.make(method, args)
    line = " ".join(["tacit run", method, *(f"--set {key}={value}" for key, value in args.items())])
    factory = methods.find(method)
    return _card(instance, factory, summary(factory), line)


def _summary_of(method: Method) -> str:
    """The summary of a built-in method that was made in Python; empty: it is none."""
    if method.name not in methods.definitions():
        return ""
    factory = methods.find(method.name)
    kinds = [{slot: type(getattr(each, slot)) for slot in SLOTS} for each in (method, methods.make(method.name))]
    changed = [slot for slot in SLOTS if kinds[0][slot] is not kinds[1][slot]]
    return f"{summary(factory)}{f' With another {list_names(changed)}.' * bool(changed)}"


def _card(method: Method, factory: Callable[..., object], text: str, line: str) -> Card:
    return Card(
        name=method.name,
        summary=text or "A method of your own.",
        rounds=method.rounds,
        args={key: _parameter(parameter) for key, parameter in inspect.signature(factory).parameters.items()},
        explanations=explain_arguments(factory),
        pieces={slot: repr(getattr(method, slot)) for slot in SLOTS},
        sees=who_sees(method),
        event=_event(method),
        guarantee=_guarantee(method),
        nominal=dict(_price(method).figures),
        uncovered=_limitations(method),
        reference=section(factory, "Reference") or "none given",
        run=line,
        repr=repr(method),
    )


def summary(factory: Callable[..., object]) -> str:
    """Return the first line of a docstring."""
    return (inspect.getdoc(factory) or "").partition("\n")[0]


def explain_arguments(factory: Callable[..., object]) -> dict[str, str]:
    """What the docstring of a factory says about its parameters; of a variant, what its family's say.

    Example:
        >>> explain_arguments(methods.find("fl-std-dp"))["rounds"][:22]
        'number of rounds, T_cl'
    """
    family = [methods.find(name) for name in methods.definitions()]
    family = [each for each in family if each.__module__ == factory.__module__ and each is not factory]
    alike = sorted(family, key=lambda each: _difference(each, factory))
    known: dict[str, str] = {}
    for each in reversed([factory, *alike]):
        known |= _read_arguments(each)
    return {name: known.get(name, "") for name in inspect.signature(factory).parameters}


def _difference(sibling: Callable[..., object], factory: Callable[..., object]) -> tuple[int, int]:
    """How many parameters a sibling has besides, and how many it lacks."""
    theirs, ours = (set(inspect.signature(each).parameters) for each in (sibling, factory))
    return len(theirs - ours), len(ours - theirs)


def _read_arguments(factory: Callable[..., object]) -> dict[str, str]:
    """The entries of a docstring's section *Args*, as one line each."""
    _, _, rest = (inspect.getdoc(factory) or "").partition("Args:")
    entries, name = dict[str, str](), ""
    for line in rest.partition("\n\n")[0].splitlines()[1:]:
        begins = re.match(r" {4}(\w+): (.*)", line)
        if begins:
            name = begins[1]
            entries[name] = begins[2]
        elif name:
            entries[name] += f" {line.strip()}"
    return entries


def _parameter(parameter: inspect.Parameter) -> str:
    return "required" if parameter.default is parameter.empty else repr(parameter.default)


def _event(method: Method) -> str:
    by_unit = {Unit.CLIENT: _client_event, Unit.RECORD: _record_event}
    return "; ".join(by_unit[unit](method) for unit in method.terms.units)


def _record_event(method: Method) -> str:
    """What a round releases about one record of a client that takes part."""
    price = method.terms.prices[Unit.RECORD].accounted
    what = "for which nothing is proved" if price is None else _noise(price.release.loss)
    if Unit.RECORD in method.terms.uncalibrated:
        what = "calibrated for the budget"
    released = "in every local step, a sum of clipped gradients over a Poisson batch of records"
    if method.trainer.sends == "terms":
        return f"a sum over all clients of the bounded terms of every record, with noise, {what}"
    if method.terms.record_bound is not None:
        released = "a sum of all clients' clipped gradients over Poisson batches of records"
    return f"{released}, with Gaussian noise, {what}"


def _noise(loss: Gaussian | Laplace | Zcdp) -> str:
    match loss:
        case Laplace(epsilon=epsilon):
            return f"Laplace noise of pure ε = {epsilon:.4g}"
        case Zcdp(rho=rho, xi=xi):
            return f"zCDP of ρ = {rho:.4g} and ξ = {xi:.2g}"
        case Gaussian(noise_multiplier=noise):
            return f"noise multiplier {noise:g}"


def _client_event(method: Method) -> str:
    cohorts = f"; cohorts: {method.sampler}"
    if Unit.CLIENT in method.terms.uncalibrated:
        return f"a sum with Gaussian noise, calibrated for the budget{cohorts}"
    price = _price(method)
    if price.leakage is not None:
        return f"every message, with noise added by its client ({method.mechanism}); no amplification by sampling"
    return "none" if price.accounted is None else f"{_describe(price.accounted.release)}{cohorts}"


def _describe(release: Release) -> str:
    within = f", within a total variation distance of {release.distance:.2g}" if release.distance else ""
    return f"a sum with Gaussian noise, {_noise(release.loss)}{within}"


def _price(method: Method, unit: Unit = Unit.CLIENT) -> UnitPrice:
    """The price of a round; if the budget calibrates the noise, that of noise multiplier 1."""
    return method.with_noise_multiplier(1.0).terms.prices[unit]


def _guarantee(method: Method) -> str:
    by_unit = {Unit.CLIENT: _client_guarantee, Unit.RECORD: _record_guarantee}
    together = " The guarantees for clients and for records hold side by side; their ε are never added."
    return " ".join(by_unit[unit](method) for unit in method.terms.units) + together * (len(method.terms.units) > 1)


OF_PERSONS = (
    " Where the task says which records are one person's (person), batches draw persons and the mean gradient of a "
    "person is clipped: all of this then holds for every person of every client, with all of its records there."
)


def _record_guarantee(method: Method) -> str:
    price = _price(method, Unit.RECORD)
    if price.accounted is None:
        return f"none for records: {price.reason or 'no noise is added for them'}."
    release = price.accounted.release
    adjacency, across = Adjacency.ADD_OR_REMOVE, method.terms.record_bound is not None
    adversary = within_adversary(sums=release.adversary if across else "")
    rate = (
        f"every record with probability {release.sampling.rate:.4g}"
        if across
        else "at a rate that depends on the number of a client's records, which is public"
    )
    meaning = (
        f"{adjacency.capitalize()}: {adjacency.meaning_for(Unit.RECORD)} Batches are Poisson samples, {rate}; ε "
        "assumes that which records a batch contains is secret. Who takes part is not: sampling of clients lowers no ε."
        f"{OF_PERSONS * method.trainer.draws_persons}"
    )
    if method.budget is None:
        return (
            f"(ε, δ)-differential privacy for every record ({adjacency}), against {adversary}; ε grows with every "
            f"round in which a client takes part, and a run reports that of the worst client at δ = {method.delta:g}. "
            f"{meaning}"
        )
    return (
        f"at most {method.budget} for every record of every client ({adjacency}), against {adversary}. Training stops "
        f"before the round that would exceed it for any of them. {meaning}"
    )


def _client_guarantee(method: Method) -> str:
    price = _price(method)
    if price.reason:
        return f"none: {price.reason}."
    if price.leakage is not None:
        return _metric_guarantee(price.leakage)
    assert price.accounted is not None  # a price of noise multiplier 1 is calibrated
    release = price.accounted.release
    return _release_guarantee(method, release) + _secrecy(method)


def _release_guarantee(method: Method, release: Release) -> str:
    adjacency = method.with_noise_multiplier(1.0).terms.adjacency
    meaning = f"{adjacency.capitalize()}: {adjacency.meaning} The number of clients is public."
    if method.budget is None:
        return (
            f"(ε, δ)-differential privacy for every client ({adjacency}); ε grows with every round, and a run reports "
            f"it at δ = {method.delta:g}. {meaning}"
        )
    return (
        f"at most {method.budget} for every client ({adjacency}), against {release.adversary}. "
        f"Training stops before the round that would exceed it. {meaning}"
    )


def _secrecy(method: Method) -> str:
    """What amplification by sampling assumes; empty if every client takes part."""
    sampling = method.sampler.sampling(_LARGE, 0)
    if sampling.kind == "everyone":
        return ""
    in_shares = method.mechanism.requires == "only the sum"
    caveat = "; the server and the clients of a round know it, and a run reports the ε against them" * in_shares
    return f" ε assumes that who took part is secret{caveat}."


def _metric_guarantee(price: Leakage) -> str:
    """The leakage by distance and for some model sizes; a card does not know the model."""
    examples = ", ".join(f"{price.per_message(dim):.3g} for {dim:,}" for dim in (2, 11, 1_000_000))
    limit = "" if price.limit is None else f" A client declines before it would leak more than {price.limit:g}."
    return (
        f"d-privacy for every client, against {price.adversary}, in each round in which it takes part. Between two "
        f"models within the public radius {price.radius:g}, the leakage is at most n·{price.per_message(1):g} for "
        f"n weights ({examples}); at a distance d, d / {price.radius:g} times as much. A client's rounds add up."
        f"{limit}"
    )


def _limitations(method: Method) -> tuple[str, ...]:
    slots = (*("trainer",) * method.terms.protects_records, "mechanism", "channel")
    formal = {name: section(type(getattr(method, name)), "Formal guarantees") for name in slots}
    sentences = tuple(f"{name.capitalize()}: {text}" for name, text in formal.items() if text)
    if not method.terms.adds_noise:
        return sentences
    return (
        *sentences,
        *((PERSONS, IN_COMMON) if method.terms.protects_records else ()),
        "Hyperparameters, clipping bounds among them, that were chosen by results on the same data are not covered.",
        "What was computed from the clients' rows before a run, such as ranges, is not covered; a run lists it.",
        "With `--randomness seeded`, noise protects only against those who do not know the seed.",
    )
