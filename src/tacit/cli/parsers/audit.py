"""Test a privacy claim: measure a lower bound on ε and compare it with the claim.

Canary clients take part at random. An adversary who receives everything that is released guesses which did, and correct
guesses prove a lower bound on ε with 95 % confidence. If the bound exceeds the claim, or if cohorts are not drawn as
declared, or noise is missing, the method is broken and the exit code is 1. A bound below the claim proves nothing: the
output states what was tried, how large a leak this audit could have missed, and what it cannot see. Claim and bound are
about the audited rounds only. The engine plays every round; the adversary chooses the data, and the server's broadcasts
where the claim does not trust it. The task gives the model, hostile records, and the number of clients.

Examples:
  tacit audit geyer                                      1000 runs of four rounds on the embedded digits
  tacit audit fl-std-dp --runs 300 --task-set clients=20 --set cohort=10 noise=1 epsilon=none
  tacit audit geyer --canaries 1000                      one run with 1000 canaries: faster, but a weaker test
  tacit audit fl-std-dp --dropouts 0.1                   a tenth of every cohort drops out
  tacit audit geyer --adjacency replace-one --json
"""

import argparse

from tacit.cli.parsers._options import add_adjacency, add_experiment, does


def configure(parser: argparse.ArgumentParser) -> None:
    add_experiment(parser, "gives the model and the number of clients")
    parser.add_argument("--rounds", type=int, default=4, metavar="N", help="rounds per run (default: 4)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--runs", type=int, default=1000, metavar="N", help="runs, half of them with a canary (default: 1000)"
    )
    how.add_argument("--canaries", type=int, metavar="N", help="one run with N canaries, instead of many runs")
    add_adjacency(
        parser, "an excluded canary is absent, or sends zeros or its negated update (default: as the method claims)"
    )
    parser.add_argument(
        "--unit",
        choices=("client", "record"),
        help="what a canary is: a client, or a record of one, where the task has persons a person (default: what the "
        "method protects)",
    )
    parser.add_argument(
        "--dropouts", type=float, default=0.0, metavar="P", help="fraction of a cohort that drops out (default: 0)"
    )
    does(parser, "names:experiment", "audit:run")
