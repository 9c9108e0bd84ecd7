"""Tacit's discrete Gaussian: samples from a table that is there before the race, with bits from the system's source."""

import sys
import time

from talk import commands, ready, say

from sums import SIGMAS
from tacit.pieces.mechanisms.discrete import DiscreteGaussian

SAMPLES = 1_000_000


def main() -> None:
    """As told."""
    table = DiscreteGaussian(SIGMAS[sys.argv[1]]).table
    table.sample(SAMPLES)
    ready("tacit", "numpy")
    for _ in commands():
        begin = time.perf_counter()
        samples = table.sample(SAMPLES)
        seconds = time.perf_counter() - begin
        say(seconds=seconds, nanoseconds=1e9 * seconds / SAMPLES, deviation=float(samples.std()))


if __name__ == "__main__":
    main()
