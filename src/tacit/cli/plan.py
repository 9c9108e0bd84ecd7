"""Noise for a privacy budget, or what a noise costs.

Give two of --epsilon, --noise and --rounds; the third is computed. Noise is a multiplier: its standard deviation
over what one client can add to the sum. Cohorts are Poisson samples unless said otherwise; a tight amplification is
proved for them. With cohorts of fixed size, whoever stays away is replaced by somebody else, which costs more.

Accountants: pld is tight and what should be claimed; rdp is a quick upper bound; rdp-classic is the moments
accountant of older papers, for comparison with their tables.

Examples:
  tacit plan --epsilon 1 --delta 1e-5 --rate 1/60 --rounds 200       the noise for a budget
  tacit plan --noise 1.54 --delta 1e-5 --rate 1/60 --rounds 200      epsilon after every round
  tacit plan --noise 1.54 --delta 1e-5 --rate 1/60 --epsilon 1       how many rounds
  tacit plan --epsilon 8 --delta 1e-3 --population 100 --cohort 50 --rounds 11 --accountant rdp-classic
  tacit plan --epsilon 8 --delta 1e-3 --population 100 --schedule 20x30,40x50        20 rounds of 30, 40 of 50
  tacit plan --noise 4 --delta 1e-5 --population 6000 --cohort 100 --rounds 200 --sampling fixed
  tacit plan --noise 20 --delta 1e-5 --sampling everyone --rounds 100 --adjacency replace-one --json
"""

import argparse
import json
import sys
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

from tacit.cli._console import aligned

if TYPE_CHECKING:
    from tacit.core.interfaces import Sampler
    from tacit.privacy.accountants import Accountant
    from tacit.privacy.planning import Cohorts


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    known = parser.add_argument_group("two of these three")
    known.add_argument("--epsilon", type=_number, metavar="E", help="the budget")
    known.add_argument("--noise", type=_number, metavar="Z", help="the noise multiplier")
    known.add_argument("--rounds", type=int, metavar="T", help="how many rounds (with --schedule: all of its stages)")
    parser.add_argument("--delta", type=_number, required=True, metavar="D", help="small against 1 / population")
    cohorts = parser.add_argument_group("who takes part in a round")
    cohorts.add_argument("--sampling", choices=("poisson", "fixed", "everyone"), default="poisson")
    cohorts.add_argument("--rate", type=_number, metavar="Q", help="the probability of a client, like 1/60")
    cohorts.add_argument("--population", type=int, metavar="N", help="how many clients there are")
    cohorts.add_argument("--cohort", type=_number, metavar="M", help="how many take part, on average")
    cohorts.add_argument("--schedule", type=_stages, metavar="TxM,TxM", help="so many rounds with so many clients")
    parser.add_argument("--accountant", choices=("rdp-classic", "rdp", "pld"), help="default: pld where it has a bound")
    parser.add_argument("--adjacency", choices=("add-or-remove", "replace-one"), default="add-or-remove")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Compute what is missing, and print it."""
    from tacit.privacy.accountants import accountant
    from tacit.privacy.planning import Cohorts

    _check(args)
    cohorts = Cohorts(_sampler(args), args.population or 1)
    by = accountant(_accountant(args), args.adjacency)
    found = {**_question(args, by), **_answer(args, cohorts, by)}
    _warn(args)
    print(json.dumps(_finite(found), indent=2) if args.json else "\n".join(_lines(found)))
    return 0


def _check(args: argparse.Namespace) -> None:
    """Raise `UserError` unless there is exactly one question."""
    from tacit.errors import expect
    from tacit.privacy.accounting import check_delta

    check_delta(args.delta)
    if args.schedule and args.rounds is None and (args.epsilon is None or args.noise is None):
        args.rounds = sum(rounds for rounds, _ in args.schedule)
    given = [name for name in ("epsilon", "noise", "rounds") if getattr(args, name) is not None]
    expect(len(given) == 2, f"two of --epsilon, --noise and --rounds, got {' and '.join(given) or 'none of them'}")
    if args.rounds is not None:
        expect(args.rounds >= 1, f"rounds={args.rounds} >= 1")


def _sampler(args: argparse.Namespace) -> "Sampler":
    """The sampler that the arguments describe, for a population of 1 if only a rate is given."""
    from tacit.errors import expect
    from tacit.pieces.samplers import Everyone, Growing

    if args.sampling == "everyone":
        expect(
            not (args.rate or args.cohort or args.schedule), "no --rate, --cohort or --schedule where everyone joins"
        )
        return Everyone()
    if args.rate is not None:
        expect(args.sampling == "poisson", "--population and --cohort for cohorts of fixed size, got --rate")
        expect(not (args.cohort or args.schedule), "either --rate or a cohort's size, got both")
        expect(0 < args.rate <= 1, f"rate={args.rate:g} in (0, 1]")
        return _sized(args, args.rate * (args.population or 1))
    expect(args.population is not None, "--rate, or --population with --cohort or --schedule")
    expect(args.population >= 1, f"population={args.population} >= 1")
    expect((args.cohort is None) != (args.schedule is None), "either --cohort or --schedule")
    sampler = Growing(tuple((n, _sized(args, m)) for n, m in args.schedule)) if args.schedule else None
    for size in [m for _, m in args.schedule or ()] or [args.cohort]:
        _sized(args, size).expected_cohort(args.population, 0)  # refuses a cohort that exceeds the population
    return sampler or _sized(args, args.cohort)


def _sized(args: argparse.Namespace, size: float) -> "Sampler":
    from tacit.errors import expect
    from tacit.pieces.samplers import FixedSize, Poisson

    if args.sampling == "poisson":
        return Poisson(size)
    expect(size == int(size), f"cohorts of fixed size={size:g} to be a whole number")
    return FixedSize(int(size))


def _accountant(args: argparse.Namespace) -> str:
    """Tight where there is a tight bound."""
    loose = args.sampling == "fixed" and args.adjacency == "replace-one"
    return str(args.accountant or ("rdp" if loose else "pld"))


def _question(args: argparse.Namespace, by: "Accountant") -> dict[str, object]:
    return {"accountant": by.name, "adjacency": by.adjacency.value, "sampling": args.sampling, "delta": args.delta}


def _answer(args: argparse.Namespace, cohorts: "Cohorts", by: "Accountant") -> dict[str, object]:
    """The one that was not given, and the ε that it leads to."""
    from tacit.errors import UserError
    from tacit.privacy.accounting import MOST_ROUNDS, Budget
    from tacit.privacy.planning import check_noise

    if args.noise is not None:
        check_noise(args.noise)
    if args.epsilon is None:
        epsilons = cohorts.epsilons(args.noise, args.rounds, args.delta, by)
        return {"noise": args.noise, "rounds": args.rounds, "epsilon": epsilons[-1], "epsilons": epsilons}
    budget = Budget(args.epsilon, args.delta)
    if args.noise is None:
        noise = cohorts.noise_for(budget, args.rounds, by)
        epsilon = cohorts.epsilon(noise, args.rounds, args.delta, by)
        return {"budget": args.epsilon, "rounds": args.rounds, "noise": noise, "epsilon": epsilon}
    rounds = cohorts.rounds_within(budget, args.noise, by)
    if rounds == 0:
        raise UserError(f"Not even one round at noise {args.noise:g} stays within {budget}. Take more noise.")
    epsilon = cohorts.epsilon(args.noise, rounds, args.delta, by)
    found = {"budget": args.epsilon, "noise": args.noise, "rounds": rounds, "epsilon": epsilon}
    return {**found, "or_more": True} if rounds == MOST_ROUNDS else found


def _warn(args: argparse.Namespace) -> None:
    from tacit.privacy.accounting import weak_delta

    warning = weak_delta(args.delta, args.population) if args.population else None
    if warning:
        print(f"tacit: {warning}", file=sys.stderr)


def _finite(value: object) -> object:
    """Plain values as JSON knows them: an infinite ε is null."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if value == float("inf") else value


def _lines(found: dict[str, object]) -> Iterator[str]:
    """What was found, for people; a curve as a table of its own, before the rest."""
    epsilons = found.get("epsilons")
    if isinstance(epsilons, list):
        rows = [("round", "", "epsilon"), *((str(i), "", f"{e:.4f}") for i, e in enumerate(epsilons, start=1))]
        yield from (*aligned(rows), "")
    words = {**found, "epsilon": f"{found['epsilon']:.4f}", "noise": _rounded_up(found["noise"])}
    words["rounds"] = f"{found['rounds']}{' or more' * ('or_more' in found)}"
    shown = ("noise", "rounds", "epsilon", "delta", "sampling", "adjacency", "accountant")
    yield from (line.rstrip() for line in aligned([(key, str(words[key])) for key in shown]))


def _rounded_up(noise: object) -> str:
    """A noise multiplier with four decimals that is not below the one that was computed."""
    assert isinstance(noise, float)
    text = f"{noise:.4f}"
    return text if float(text) >= noise else f"{noise + 0.5e-4:.4f}"


def _number(text: str) -> float:
    try:
        return float(Fraction(text.replace(" ", ""))) if "/" in text else float(text)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None


def _stages(text: str) -> list[tuple[int, float]]:
    """`20x30,40x50` as stages of rounds and sizes."""
    try:
        stages = [tuple(part.split("x")) for part in text.split(",")]
        return [(int(rounds), float(size)) for rounds, size in stages]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a schedule like 20x30,40x50, got {text!r}") from None
