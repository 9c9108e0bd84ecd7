"""How long pages take: `tacit report` on a run of 1,000 rounds, and `tacit watch` with 50 of them.

    python benchmarks/pages.py [--runs 50] [--rounds 1000] [--cohort 100]

Runs are written, not trained. Processor time is printed beside wall-clock time, which depends on what else is running.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests")]

from report.made import PROVED, add_round, made_run  # noqa: E402
from tacit.report.live import LiveServer  # noqa: E402
from tacit.report.watching import RunWatcher  # noqa: E402


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--cohort", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        private = {"epsilon": 2.0, "noise": 2.0, "cohort": 5}
        for seed in range(args.runs):
            path = Path(folder, f"run-{seed}")
            made_run(path, args.rounds, method="geyer", args=private, seed=seed, guarantee=PROVED, cohort=args.cohort)
        _report(Path(folder, "run-0"))
        _watch(Path(folder), args.rounds)


def _report(run: Path) -> None:
    command = [sys.executable, "-m", "tacit.cli", "report", str(run)]
    for _ in range(2):  # the first one compiles
        start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall = time.monotonic() - start
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    size = (run / "report.html").stat().st_size
    print(f"tacit report: {wall:.2f} s, {used:.2f} s of the processor, {size / 1e3:.0f} kB")


def _watch(folder: Path, rounds: int) -> None:
    watcher = RunWatcher(folder)
    used = time.process_time()
    watcher.look()
    print(f"tacit watch: all runs read in {time.process_time() - used:.1f} s of the processor")
    with LiveServer(watcher) as server:
        for target in (server.serve_forever, watcher.watch):
            threading.Thread(target=target, daemon=True).start()
        for page in ("", "charts?run=run-0", "report?run=run-0"):
            start, used = time.monotonic(), time.process_time()
            urllib.request.urlopen(server.address + page).read()
            wall, used = time.monotonic() - start, time.process_time() - used
            print(f"  /{page}: {1000 * wall:.0f} ms, {1000 * used:.0f} ms of the processor")
        start, known = time.monotonic(), watcher.version
        add_round(folder / "run-0", rounds + 1)
        watcher.wait(known, 60)
        print(f"  a new round was read after {1000 * (time.monotonic() - start):.0f} ms")
        watcher.close()
        server.shutdown()


if __name__ == "__main__":
    main()
