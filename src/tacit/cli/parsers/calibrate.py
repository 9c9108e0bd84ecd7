"""Compute the noise for a privacy budget, the ε of a noise level, or the number of rounds.

Give two of --epsilon, --noise and --rounds; the third is computed. The noise multiplier is the standard deviation of
the noise divided by the clipping bound, the most that one client can change the sum.

Cohorts are Poisson samples by default: each client takes part independently, and privacy amplification by sampling is
tight. In cohorts of fixed size another client replaces one that does not take part, which costs more privacy. Use
--dropouts if clients add the noise in shares and more may drop out than it provides for, or some may collude: the noise
then reveals how many took part, and sampling does not lower ε. With SecureSum and dropouts within the mechanism's
tolerance it is not needed.

With --unit record, ε is that of one record of a client with --size records. Batches are Poisson samples of --batch
records on average; --epochs or --steps count local training in all rounds together. With --unit person, batches draw
persons with all of their records, and --size and --batch are numbers of persons.

Accountants: pld is tight; use it for claims. rdp is a fast upper bound. rdp-classic is the moments accountant of older
papers, for comparison with their tables.

Examples:
  tacit calibrate --epsilon 1 --delta 1e-5 --rate 1/60 --rounds 200       the noise multiplier for a budget
  tacit calibrate --noise 1.54 --delta 1e-5 --rate 1/60 --rounds 200      ε after every round
  tacit calibrate --noise 1.54 --delta 1e-5 --rate 1/60 --epsilon 1       the number of rounds
  tacit calibrate --epsilon 8 --delta 1e-3 --population 100 --cohort 50 --rounds 11 --accountant rdp-classic
  tacit calibrate --epsilon 8 --delta 1e-3 --population 100 --schedule 20x30,40x50        20 rounds of 30, 40 of 50
  tacit calibrate --noise 4 --delta 1e-5 --population 6000 --cohort 100 --rounds 200 --sampling fixed
  tacit calibrate --noise 20 --delta 1e-5 --rate 1/60 --rounds 200 --dropouts             noise in shares
  tacit calibrate --noise 20 --delta 1e-5 --sampling everyone --rounds 100 --adjacency replace-one --json
  tacit calibrate --unit record --size 3000 --batch 64 --epochs 20 --epsilon 3 --delta 1e-5       the noise for DP-SGD
  tacit calibrate --unit record --size 3000 --batch 64 --epochs 20 --noise 1 --delta 1e-5         ε of every record
"""

import argparse
from fractions import Fraction

from tacit.cli.parsers._options import add_adjacency, does, reader


def configure(parser: argparse.ArgumentParser) -> None:
    number = reader(_number, "a number")
    quantities = parser.add_argument_group("two of these three")
    quantities.add_argument("--epsilon", type=number, metavar="E", help="the privacy budget ε")
    quantities.add_argument("--noise", type=number, metavar="Z", help="the noise multiplier")
    quantities.add_argument("--rounds", type=int, metavar="T", help="number of rounds (with --schedule: all of them)")
    parser.add_argument(
        "--delta", type=number, required=True, metavar="D", help="δ; it should be far below 1 / population"
    )
    cohorts = parser.add_argument_group("cohorts")
    cohorts.add_argument(
        "--sampling", choices=("poisson", "fixed", "everyone"), default="poisson", help="default: poisson"
    )
    cohorts.add_argument("--rate", type=number, metavar="Q", help="sampling rate of a client, for example 1/60")
    cohorts.add_argument("--population", type=int, metavar="N", help="number of clients")
    cohorts.add_argument("--cohort", type=number, metavar="M", help="(expected) number of clients per round")
    cohorts.add_argument(
        "--schedule",
        type=reader(_stages, "a schedule like 20x30,40x50"),
        metavar="TxM,TxM",
        help="T rounds with M clients each, then the next stage",
    )
    records = parser.add_argument_group("records (--unit record), or persons (--unit person)")
    records.add_argument(
        "--unit",
        choices=("client", "record", "person"),
        default="client",
        help="whose privacy is protected (default: client)",
    )
    records.add_argument("--size", type=int, metavar="N", help="number of records of the client")
    records.add_argument("--batch", type=number, metavar="B", help="expected number of records in a batch")
    records.add_argument("--epochs", type=number, metavar="E", help="passes over the records, in all rounds together")
    records.add_argument("--steps", type=int, metavar="S", help="local steps in all rounds together, instead of epochs")
    parser.add_argument("--accountant", choices=("rdp-classic", "rdp", "pld"), help="default: pld where it applies")
    add_adjacency(parser, "default: add-or-remove; zero-out with --dropouts")
    parser.add_argument(
        "--dropouts",
        action="store_true",
        help="clients add the noise in shares, and more may drop out than tolerated: sampling then lowers no ε",
    )
    does(parser, "calibrate:run")


def _number(text: str) -> float:
    return float(Fraction(text.replace(" ", ""))) if "/" in text else float(text)


def _stages(text: str) -> list[tuple[int, float]]:
    """Parse `20x30,40x50` into stages of rounds and cohort sizes."""
    stages = [tuple(part.split("x")) for part in text.split(",")]
    return [(int(rounds), float(size)) for rounds, size in stages]
