"""OpenDP's discrete Gaussian: its mechanism for vectors of integers, on zeros."""

import statistics
import sys
import time

import opendp.prelude as dp
from messages import commands, send, send_ready

SAMPLES = 20_000


def main() -> None:
    """One sample for every command. `sum_cases` needs NumPy, which is missing here: σ is in the name of the case."""
    dp.enable_features("contrib")
    sigma = float(sys.argv[1].removeprefix("sigma-"))
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="i64")
    noise, zeros = dp.m.make_gaussian(*space, sigma), [0] * SAMPLES
    noise(zeros)
    send_ready("opendp")
    for _ in commands():
        begin = time.perf_counter()
        samples = noise(zeros)
        seconds = time.perf_counter() - begin
        send(seconds=seconds, nanoseconds=1e9 * seconds / SAMPLES, deviation=statistics.pstdev(samples))


if __name__ == "__main__":
    main()
