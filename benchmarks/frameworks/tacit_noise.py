"""Tacit's discrete Gaussian: samples from a table that is built in advance, with bits of the operating system."""

import sys
import time

from messages import commands, send, send_ready

from sum_cases import SIGMAS
from tacit.privacy.noise.discrete import DiscreteGaussian

SAMPLES = 1_000_000


def main() -> None:
    """One sample of a million for every command."""
    table = DiscreteGaussian(SIGMAS[sys.argv[1]]).table
    table.sample(SAMPLES)
    send_ready("tacit-fl", "numpy")
    for _ in commands():
        begin = time.perf_counter()
        samples = table.sample(SAMPLES)
        seconds = time.perf_counter() - begin
        send(seconds=seconds, nanoseconds=1e9 * seconds / SAMPLES, deviation=float(samples.std()))


if __name__ == "__main__":
    main()
