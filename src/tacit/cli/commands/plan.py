"""Compute the noise for a privacy budget, the ε of a noise level, or the number of rounds.

Give two of --epsilon, --noise and --rounds; the third is computed. The noise multiplier is the standard deviation of
the noise divided by the clipping bound, the most that one client can change the sum. Cohorts are Poisson samples unless
--sampling is given: each client takes part independently, and privacy amplification by sampling is tight. In cohorts of
fixed size a client that does not take part is replaced by another one, which costs more privacy. Where clients add the
noise in shares, and more drop out than it provides for or some collude, the noise reveals how many took part, and
sampling lowers nothing: use --dropouts. With SecureSum and losses within the mechanism's dropouts it is not needed.

With --unit record, the plan is for one record of a client with --size records, whose batches of --batch records (on
average) are Poisson samples: --epochs or --steps count all local training together, over all rounds. With --unit person
batches draw persons, with all of their records, and --size and --batch are numbers of persons.

Accountants: pld is tight, and should be used for claims; rdp is a fast upper bound; rdp-classic is the moments
accountant of older papers, for comparison with their tables.

Examples:
  tacit plan --epsilon 1 --delta 1e-5 --rate 1/60 --rounds 200       the noise multiplier for a budget
  tacit plan --noise 1.54 --delta 1e-5 --rate 1/60 --rounds 200      ε after every round
  tacit plan --noise 1.54 --delta 1e-5 --rate 1/60 --epsilon 1       the number of rounds
  tacit plan --epsilon 8 --delta 1e-3 --population 100 --cohort 50 --rounds 11 --accountant rdp-classic
  tacit plan --epsilon 8 --delta 1e-3 --population 100 --schedule 20x30,40x50        20 rounds of 30, 40 of 50
  tacit plan --noise 4 --delta 1e-5 --population 6000 --cohort 100 --rounds 200 --sampling fixed
  tacit plan --noise 20 --delta 1e-5 --rate 1/60 --rounds 200 --dropouts             noise in shares
  tacit plan --noise 20 --delta 1e-5 --sampling everyone --rounds 100 --adjacency replace-one --json
  tacit plan --unit record --size 3000 --batch 64 --epochs 20 --epsilon 3 --delta 1e-5       the noise for DP-SGD
  tacit plan --unit record --size 3000 --batch 64 --epochs 20 --noise 1 --delta 1e-5         ε of every record
"""

import argparse
import math
import sys
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from tacit.cli._console import add_adjacency, aligned, print_json

if TYPE_CHECKING:
    from tacit.core.interfaces import Sampler
    from tacit.privacy.accountants import Accountant
    from tacit.privacy.planning import CohortSampling


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    known = parser.add_argument_group("two of these three")
    known.add_argument("--epsilon", type=_number, metavar="E", help="the privacy budget ε")
    known.add_argument("--noise", type=_number, metavar="Z", help="the noise multiplier")
    known.add_argument("--rounds", type=int, metavar="T", help="number of rounds (with --schedule: all of them)")
    parser.add_argument(
        "--delta", type=_number, required=True, metavar="D", help="δ; it should be far below 1 / population"
    )
    cohorts = parser.add_argument_group("cohorts")
    cohorts.add_argument(
        "--sampling", choices=("poisson", "fixed", "everyone"), default="poisson", help="default: poisson"
    )
    cohorts.add_argument("--rate", type=_number, metavar="Q", help="sampling rate of a client, for example 1/60")
    cohorts.add_argument("--population", type=int, metavar="N", help="number of clients")
    cohorts.add_argument("--cohort", type=_number, metavar="M", help="(expected) number of clients per round")
    cohorts.add_argument(
        "--schedule", type=_stages, metavar="TxM,TxM", help="T rounds with M clients each, then the next stage"
    )
    records = parser.add_argument_group("records (--unit record), or persons (--unit person)")
    records.add_argument(
        "--unit",
        choices=("client", "record", "person"),
        default="client",
        help="whose privacy is planned; default: client",
    )
    records.add_argument("--size", type=int, metavar="N", help="number of records of the client")
    records.add_argument("--batch", type=_number, metavar="B", help="expected number of records in a batch")
    records.add_argument("--epochs", type=_number, metavar="E", help="passes over the records, in all rounds together")
    records.add_argument("--steps", type=int, metavar="S", help="local steps in all rounds together, instead of epochs")
    parser.add_argument("--accountant", choices=("rdp-classic", "rdp", "pld"), help="default: pld where it applies")
    add_adjacency(parser, "default: add-or-remove; zero-out with --dropouts")
    parser.add_argument(
        "--dropouts",
        action="store_true",
        help="clients add the noise in shares, and more may drop out than planned: sampling then lowers nothing",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def run(args: argparse.Namespace) -> int:
    """Compute the missing quantity and print it."""
    from tacit.core.prices import Gaussian, Release
    from tacit.privacy.accountants import accountant_by_name
    from tacit.privacy.planning import CohortSampling

    if args.unit != "client":
        _as_batches(args)
    _check(args)
    release = Release(Gaussian(1.0), constant=not args.dropouts)
    cohorts = CohortSampling(_sampler(args), args.population or 1, release)
    accountant = accountant_by_name(_accountant_name(args), args.adjacency)
    found = {**_inputs(args, accountant), **_result(args, cohorts, accountant)}
    _warn(args)
    if args.unit != "client":
        found = _of_records(args, found)
    if args.json:
        print_json(found)
    else:
        print("\n".join(_lines(found)))
    return 0


def _as_batches(args: argparse.Namespace) -> None:
    """Read a plan for records as one for clients: steps are rounds, and batches are cohorts of records."""
    from tacit.errors import expect

    for name in ("rate", "population", "cohort", "schedule", "rounds"):
        expect(getattr(args, name) is None, f"--size, --batch and --epochs or --steps for records, got --{name}")
    expect(args.sampling == "poisson" and not args.dropouts, "Poisson batches: for records nothing else is proved")
    expect(args.size is not None and args.batch is not None, "--size and --batch for records")
    expect(args.size >= 1, f"size={args.size} >= 1")
    expect(args.batch > 0, f"batch={args.batch:g} > 0")
    expect(args.epochs is None or args.steps is None, "either --epochs or --steps, got both")
    args.population, args.cohort = args.size, min(args.batch, args.size)
    args.rounds = args.steps
    if args.epochs is not None:
        expect(0 < args.epochs < math.inf, f"epochs={args.epochs:g} > 0 and finite")
        args.rounds = math.ceil(args.epochs * max(1, round(args.size / args.cohort)))  # as DpSgd counts them


def _of_records(args: argparse.Namespace, found: dict[str, Any]) -> dict[str, Any]:
    """The result in terms of records; ε after every single step is left out."""
    renamed = {"steps" if name == "rounds" else name: value for name, value in found.items() if name != "epsilons"}
    epochs = found["rounds"] * args.cohort / args.size
    return {"unit": args.unit, "size": args.size, "rate": args.cohort / args.size, "epochs": epochs, **renamed}


def _check(args: argparse.Namespace) -> None:
    """Raise `UserError` unless exactly two of the three quantities are given."""
    from tacit.core.prices import check_delta, check_rounds
    from tacit.errors import expect

    check_delta(args.delta)
    args.adjacency = args.adjacency or ("zero-out" if args.dropouts else "add-or-remove")
    if args.schedule and args.rounds is None and (args.epsilon is None or args.noise is None):
        args.rounds = sum(rounds for rounds, _ in args.schedule)
    given = [name for name in ("epsilon", "noise", "rounds") if getattr(args, name) is not None]
    third = "--rounds" if args.unit == "client" else "--epochs (or --steps)"
    expect(len(given) == 2, f"two of --epsilon, --noise and {third}, got {' and '.join(given) or 'none of them'}")
    if args.rounds is not None:
        check_rounds(args.rounds, "rounds" if args.unit == "client" else "steps")


def _sampler(args: argparse.Namespace) -> "Sampler":
    """The sampler that the arguments describe, for a population of 1 if only a rate is given."""
    from tacit.errors import expect
    from tacit.pieces.samplers import Everyone, Growing

    if args.sampling == "everyone":
        expect(
            not (args.rate or args.cohort or args.schedule),
            "no --rate, --cohort or --schedule with --sampling everyone",
        )
        return Everyone()
    if args.rate is not None:
        expect(args.sampling == "poisson", "--population and --cohort for cohorts of fixed size, got --rate")
        expect(not (args.cohort or args.schedule), "either --rate or a cohort size, got both")
        expect(0 < args.rate <= 1, f"rate={args.rate:g} in (0, 1]")
        return _sized(args, args.rate * (args.population or 1))
    expect(args.population is not None, "--rate, or --population with --cohort or --schedule")
    expect(args.population >= 1, f"population={args.population} >= 1")
    expect((args.cohort is None) != (args.schedule is None), "either --cohort or --schedule")
    sampler = Growing(tuple((n, _sized(args, m)) for n, m in args.schedule)) if args.schedule else None
    for size in [m for _, m in args.schedule or ()] or [args.cohort]:
        _sized(args, size).sampling(args.population, 0)  # refuses a cohort that exceeds the population
    return sampler or _sized(args, args.cohort)


def _sized(args: argparse.Namespace, size: float) -> "Sampler":
    from tacit.errors import expect
    from tacit.pieces.samplers import FixedSize, Poisson

    if args.sampling == "poisson":
        return Poisson(size)
    expect(size == int(size), f"cohorts of fixed size={size:g} to be a whole number")
    return FixedSize(int(size))


def _accountant_name(args: argparse.Namespace) -> str:
    """The tight accountant, except where it has no bound."""
    loose = args.sampling == "fixed" and args.adjacency != "add-or-remove" and not args.dropouts
    return str(args.accountant or ("rdp" if loose else "pld"))


def _inputs(args: argparse.Namespace, accountant: "Accountant") -> dict[str, object]:
    return {
        "accountant": accountant.name,
        "adjacency": accountant.adjacency.value,
        "sampling": args.sampling,
        "amplified": args.sampling != "everyone" and not args.dropouts,
        "delta": args.delta,
    }


def _result(args: argparse.Namespace, cohorts: "CohortSampling", accountant: "Accountant") -> dict[str, Any]:
    """The quantity that was not given, and the resulting ε."""
    from tacit.core import Budget
    from tacit.errors import UserError
    from tacit.privacy.accountants import MAX_FOUND_ROUNDS
    from tacit.privacy.planning import check_noise

    if args.noise is not None:
        check_noise(args.noise)
    if args.epsilon is None:
        if args.unit != "client":
            epsilon = cohorts.epsilon(args.noise, args.rounds, args.delta, accountant)
            return {"noise": args.noise, "rounds": args.rounds, "epsilon": epsilon}
        epsilons = cohorts.epsilons(args.noise, args.rounds, args.delta, accountant)
        return {"noise": args.noise, "rounds": args.rounds, "epsilon": epsilons[-1], "epsilons": epsilons}
    budget = Budget(args.epsilon, args.delta)
    if args.noise is None:
        noise = cohorts.noise_for(budget, args.rounds, accountant)
        epsilon = cohorts.epsilon(noise, args.rounds, args.delta, accountant)
        return {"budget": args.epsilon, "rounds": args.rounds, "noise": noise, "epsilon": epsilon}
    rounds = cohorts.rounds_within(budget, args.noise, accountant)
    if rounds == 0:
        raise UserError(f"Not even one round with noise {args.noise:g} stays within {budget}. Use more noise.")
    epsilon = cohorts.epsilon(args.noise, rounds, args.delta, accountant)
    found = {"budget": args.epsilon, "noise": args.noise, "rounds": rounds, "epsilon": epsilon}
    return {**found, "or_more": True} if rounds == MAX_FOUND_ROUNDS else found


def _warn(args: argparse.Namespace) -> None:
    from tacit.core.prices import Unit
    from tacit.privacy.guarantee import delta_warning

    warning = delta_warning(args.delta, args.population, Unit(args.unit)) if args.population else None
    if warning:
        print(f"Warning: {warning}", file=sys.stderr)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    """The result as text: first ε after every round, if it was computed, then all quantities."""
    if epsilons := found.get("epsilons"):
        rows = [("round", "", "ε"), *((str(i), "", f"{e:.4f}") for i, e in enumerate(epsilons, start=1))]
        yield from (*aligned(rows), "")
    steps = "steps" if "steps" in found else "rounds"
    rounds = f"{found[steps]}{' or more' * ('or_more' in found)}"
    unit = found.get("unit", "")
    of_records = [("unit", unit), (f"rate of a {unit}", f"{found['rate']:.4g}")] if unit else []
    shown = [
        *of_records,
        ("noise multiplier", _rounded_up(found["noise"])),
        (steps, f"{rounds} ({found['epochs']:.4g} epochs)" if of_records else rounds),
        ("ε", f"{found['epsilon']:.4f}"),
        ("δ", f"{found['delta']:g}"),
        ("sampling", f"{found['sampling']}{'' if found['amplified'] else ', without amplification'}"),
        *((key, str(found[key])) for key in ("adjacency", "accountant")),
    ]
    yield from aligned(shown)


def _rounded_up(noise: float) -> str:
    """A noise multiplier with four decimals, rounded up: less noise would not suffice."""
    text = f"{noise:.4f}"
    return text if float(text) >= noise else f"{noise + 0.5e-4:.4f}"


def _number(text: str) -> float:
    try:
        return float(Fraction(text.replace(" ", ""))) if "/" in text else float(text)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None


def _stages(text: str) -> list[tuple[int, float]]:
    """Parse `20x30,40x50` into stages of rounds and cohort sizes."""
    try:
        stages = [tuple(part.split("x")) for part in text.split(",")]
        return [(int(rounds), float(size)) for rounds, size in stages]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a schedule like 20x30,40x50, got {text!r}") from None
