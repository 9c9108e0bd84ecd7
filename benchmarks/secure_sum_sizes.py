"""Prints degree, threshold, failure bounds and bytes of secure aggregation by the size of the cohort, as Markdown.

The table of docs/guides/secure-sum.md: `python benchmarks/secure_sum_sizes.py`. Bytes are those of one client, per
round, both ways; a test compares them with the lengths of real messages.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction

from tacit.protocols.secagg import Parameters, phase_bytes

COHORTS = (10, 50, 100, 300, 1000, 3000, 5000)
HEADER = (
    "| cohort | neighbours | threshold | wrong shares corrected | signatures | failure "
    "| up | down | up / payload | all / payload |"
)


def rows(dim: int, corrupt: Fraction, dropout: Fraction) -> Iterator[str]:
    """A header, and a row for every cohort."""
    yield HEADER
    yield "|" + "---|" * (HEADER.count("|") - 1)
    for cohort in COHORTS:
        p = Parameters(cohort=cohort, dim=dim, corrupt=corrupt, dropout=dropout)
        graph, phases, payload = p.graph(cohort), phase_bytes(p).values(), 4 * dim
        up, down = sum(size.up for size in phases), sum(size.down for size in phases)
        failure = "2⁻⁴⁰" if graph.distances else "0"
        cells = (
            f"{cohort:,}",
            graph.degree,
            graph.threshold,
            graph.liars,
            graph.quorum,
            failure,
            f"{up:,}",
            f"{down:,}",
        )
        yield "| " + " | ".join(map(str, (*cells, f"{up / payload:.2f}", f"{(up + down) / payload:.2f}"))) + " |"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dim", type=int, default=8316, help="length of the vectors (default %(default)s)")
    parser.add_argument("--corrupt", type=Fraction, default=Fraction(1, 10), help="default %(default)s")
    parser.add_argument("--dropout", type=Fraction, default=Fraction(1, 10), help="default %(default)s")
    args = parser.parse_args(argv)
    print("\n".join(rows(args.dim, args.corrupt, args.dropout)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
