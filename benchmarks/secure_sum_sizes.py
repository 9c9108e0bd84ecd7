"""Prints degree, threshold, failure bounds and bytes of secure aggregation by the size of the cohort, as Markdown.

The table of docs/guides/secure-sum.md: `python benchmarks/secure_sum_sizes.py`. Bytes are those of one client, in the
mean over the cohort: of the set-up of an epoch, both ways, and of a round, up and down. The ratios to the payload, of 4
bytes a number, are those of a round with its part of the set-up; `--epoch 1`: of a round with a set-up of its own.
`--bits`: of the numbers, of which the payload is still counted at 4 bytes. A test compares the bytes with the lengths
of real messages.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction

from tacit.core.state import Traffic
from tacit.protocols.secagg import Parameters, Phase, cohort_bytes
from tacit.protocols.secagg.secagg_messages import count_asked

COHORTS = (10, 50, 100, 300, 1000, 3000, 5000)
HEADER = (
    "| cohort | neighbours | threshold | wrong shares corrected | signatures | asked first | failure "
    "| set-up | round, up | round, down | up / payload | all / payload |"
)


def rows(dim: int, corrupt: Fraction, dropout: Fraction, epoch: int, bits: int) -> Iterator[str]:
    """A header, and a row for every cohort."""
    yield HEADER
    yield "|" + "---|" * (HEADER.count("|") - 1)
    for cohort in COHORTS:
        p = Parameters(cohort=cohort, dim=dim, corrupt=corrupt, dropout=dropout, rounds=epoch, bits=bits)
        graph, payload = p.graph(cohort), 4 * dim
        first, later = cohort_bytes(p), cohort_bytes(p, 1 % epoch)
        set_up = sum((size for phase, size in first.items() if phase < Phase.UPLOAD), Traffic())
        in_round = sum((size for phase, size in later.items() if phase >= Phase.UPLOAD), Traffic())
        set_up += Traffic(down=first[Phase.UPLOAD].down - later[Phase.UPLOAD].down)  # signatures on the sharers
        once_up, once, up, down = (
            each / cohort for each in (set_up.up, set_up.up + set_up.down, in_round.up, in_round.down)
        )
        cells = (
            f"{cohort:,}",
            graph.degree,
            graph.threshold,
            graph.max_wrong,
            graph.quorum,
            f"{count_asked(p, Phase.OPEN, 1 % epoch):,}",
            "2⁻⁴⁰" if graph.distances else "0",
            f"{once:,.0f}",
            f"{up:,.0f}",
            f"{down:,.0f}",
            f"{(up + once_up / epoch) / payload:.2f}",
            f"{(up + down + once / epoch) / payload:.2f}",
        )
        yield "| " + " | ".join(map(str, cells)) + " |"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dim", type=int, default=8316, help="length of the vectors (default %(default)s)")
    parser.add_argument("--corrupt", type=Fraction, default=Fraction(1, 10), help="default %(default)s")
    parser.add_argument("--dropout", type=Fraction, default=Fraction(1, 10), help="default %(default)s")
    parser.add_argument("--epoch", type=int, default=50, help="rounds of an epoch (default %(default)s)")
    parser.add_argument("--bits", type=int, default=32, help="of a number (default %(default)s)")
    args = parser.parse_args(argv)
    print("\n".join(rows(args.dim, args.corrupt, args.dropout, args.epoch, args.bits)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
