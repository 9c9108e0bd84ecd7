"""Keeps all contestants of a race alive and lets them play one round at a time.

Rounds are interleaved: first everybody plays round 1, then everybody round 2, each time starting with another
one. Whatever disturbs the machine for a minute disturbs all alike.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from environments import FLOWER, PFL, PROJECT, Environment
from processes import PeakMemory, cpu_seconds, end, memory_mib

SCRIPTS = Path(__file__).resolve().parent / "contestants"
PATIENCE = 300.0  # seconds for one answer


@dataclass(frozen=True)
class Contestant:
    """Who races: an environment, a script, and how the script is started."""

    name: str
    environment: Environment
    script: str
    starter: str = "python"
    peer: bool = False  # races only in workloads that peers take part in
    options: tuple[str, ...] = ()
    alike: bool = True  # whether it computes what the others do

    def command(self, workload: str, workers: int) -> list[str]:
        """The command line, without the workload's options."""
        launch = ["--standalone", f"--nproc-per-node={workers}"] if self.starter == "torchrun" else ["-W", "ignore"]
        options = [workload, f"--workers={workers}", *self.options]
        return [self.environment.program(self.starter), *launch, str(SCRIPTS / self.script), *options]


CONTESTANTS = {
    contestant.name: contestant
    for contestant in (
        Contestant("tacit", PROJECT, "tacit_engine.py"),
        Contestant("tacit-fl-top", PROJECT, "tacit_engine.py", options=("--ratio=0.005",), alike=False),
        Contestant("plain-loop", PROJECT, "plain_loop.py"),
        Contestant("pfl-research", PFL, "pfl_research.py", starter="torchrun", peer=True),
        Contestant("flower", FLOWER, "flower.py", peer=True),
    )
}


class ContestantError(Exception):
    """A contestant fell silent; the message holds the end of what it said on its standard error."""


@dataclass
class Player:
    """A running contestant, and what is known of it so far."""

    contestant: Contestant
    process: subprocess.Popen[str]
    errors: Path
    versions: dict[str, str] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    peak_mib: float = 0.0
    busy: float = 0.0  # processor time within rounds
    born: tuple[float, float] = (0.0, 0.0)  # wall clock and processor time when the race began
    failure: str | None = None

    def hear(self) -> dict[str, Any]:
        """The contestant's next line of JSON."""
        assert self.process.stdout is not None
        watchdog = threading.Timer(PATIENCE, end, [self.process.pid])
        watchdog.start()
        try:
            for line in self.process.stdout:
                if line.startswith("{"):
                    return json.loads(line)
        finally:
            watchdog.cancel()
        raise ContestantError(f"{self.contestant.name} ended early:\n{self.errors.read_text()[-2000:]}")

    def ask(self) -> dict[str, Any]:
        """One round; what the contestant says about it."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("round\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.hear()
        return self.hear()

    def play(self) -> float:
        """One round; its seconds."""
        before = cpu_seconds(self.process.pid)
        seconds = float(self.ask()["seconds"])
        self.busy += cpu_seconds(self.process.pid) - before
        return seconds

    def warm_up(self) -> None:
        """A round whose memory is watched and whose time is not counted: watching costs some."""
        with PeakMemory(self.process.pid) as watch:
            self.play()
        self.peak_mib = max(self.peak_mib, watch.mib)

    def begin(self) -> None:
        """From now on time counts."""
        self.busy, self.born = 0.0, (time.monotonic(), cpu_seconds(self.process.pid))

    def race(self) -> None:
        """A round whose time counts."""
        self.seconds.append(self.play())
        self.peak_mib = max(self.peak_mib, memory_mib(self.process.pid))

    def stop(self) -> None:
        """Ask for the end, then insist."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
            self.process.wait(timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            end(self.process.pid)


@contextmanager
def playing(contestant: Contestant, workload: str, workers: int, *options: str) -> Iterator[Player]:
    """A contestant that is ready to play, and is stopped afterwards."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryDirectory() as folder:
        errors = Path(folder) / "stderr"
        with errors.open("w") as sink:
            process = subprocess.Popen(
                [*contestant.command(workload, workers), *options],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink, text=True, env=environment,
            )  # fmt: skip
        player = Player(contestant, process, errors)
        try:
            player.versions = player.hear()["versions"]
            yield player
        finally:
            player.stop()


@dataclass(frozen=True, kw_only=True)
class Score:
    """What a contestant achieved in a workload."""

    workload: str
    contestant: str
    seconds: float | None  # median over the rounds
    rounds: list[float]
    peak_mib: float
    idle_cpu: float  # processors kept busy while others played: should be close to 0
    versions: dict[str, str]
    failure: str | None = None

    @classmethod
    def missing(cls, workload: str, contestant: str, failure: str) -> Self:
        """The score of a contestant that did not start."""
        return cls(
            workload=workload, contestant=contestant, seconds=None, rounds=[], peak_mib=0.0, idle_cpu=0.0,
            versions={}, failure=failure,
        )  # fmt: skip

    @classmethod
    def of(cls, workload: str, player: Player) -> Self:
        """The score of a player at the end of its race."""
        wall, cpu = time.monotonic() - player.born[0], cpu_seconds(player.process.pid) - player.born[1]
        waiting = wall - sum(player.seconds)
        return cls(
            workload=workload,
            contestant=player.contestant.name,
            seconds=statistics.median(player.seconds) if player.seconds else None,
            rounds=[round(seconds, 4) for seconds in player.seconds],
            peak_mib=round(player.peak_mib, 1),
            idle_cpu=round(max(0.0, cpu - player.busy) / max(waiting, 1e-9), 3),
            versions=player.versions,
            failure=player.failure,
        )


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How long a race is."""

    rounds: int
    warm_ups: int = 2
    workers: int = 2
    deadline: float = float("inf")  # of the monotonic clock; a round is not begun after it


def _turn(player: Player, take: Callable[[Player], None]) -> None:
    """Let a player take its turn; one that fails is out, and the race goes on."""
    if player.failure:
        return
    try:
        take(player)
    except ContestantError as error:
        player.failure = str(error)
        print(error, file=sys.stderr)


def race(workload: str, contestants: list[Contestant], rules: Rules) -> list[Score]:
    """One workload: start all, warm up, play the rounds in turn."""
    scores: list[Score] = []
    with ExitStack() as stack:
        players: list[Player] = []
        for contestant in contestants:
            try:
                players.append(stack.enter_context(playing(contestant, workload, rules.workers)))
            except ContestantError as error:
                print(error, file=sys.stderr)
                scores.append(Score.missing(workload, contestant.name, str(error)))
        for _ in range(rules.warm_ups):
            for player in players:
                _turn(player, Player.warm_up)
        for player in players:
            player.begin()
        for number in range(rules.rounds):
            if number and time.monotonic() > rules.deadline:
                break
            first = number % max(1, len(players))
            for player in players[first:] + players[:first]:
                _turn(player, Player.race)
        scores += [Score.of(workload, player) for player in players]
    return sorted(scores, key=lambda score: list(CONTESTANTS).index(score.contestant))
