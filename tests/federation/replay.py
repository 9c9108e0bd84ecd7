"""Who answered a run's server and who did not, written down while it runs, and a run in one process that repeats it.

The repetition has the same survivors, round by round and phase by phase, and no other disturbance: what a run with
deaths, restarts and repeated attempts must end with.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tacit.federation.journal import Entry
from tacit.federation.messages import REGISTER, TRAIN, Answer, Refusal, SiteRequest, read_request
from tacit.federation.transport.endpoints import Failure, Handler, InProcess, Transport

Attempt = tuple[str, int, int]  # the server's run, the round, the attempt at it


@dataclass(frozen=True)
class Exchange:
    """One message to several sites, and who answered it."""

    attempt: Attempt
    verb: str
    asked: tuple[str, ...]
    answered: tuple[str, ...]


@dataclass
class RecordingTransport:
    """A transport that appends to a file who answered and who did not."""

    inner: Transport
    path: Path
    attempt: Attempt = ("", 0, 0)

    def sites(self) -> tuple[str, ...]:
        return self.inner.sites()

    def ask(self, verb: str, requests: Mapping[str, bytes], timeout: float) -> Mapping[str, bytes | Failure]:
        replies = self.inner.ask(verb, requests, timeout)
        if verb == TRAIN:
            first = read_request(next(iter(requests.values())), SiteRequest)
            self.attempt = first.run.hex(), first.round + 1, first.attempt
        if verb != REGISTER:
            answered = [name for name in requests if _is_answer(replies[name])]
            with self.path.open("a") as file:
                file.write(json.dumps([self.attempt, verb, list(requests), answered]) + "\n")
        return replies


def _is_answer(reply: bytes | Failure) -> bool:
    if isinstance(reply, Failure):
        return False
    return isinstance(msgspec.msgpack.decode(reply, type=Answer | Refusal), Answer)


def released(log: Sequence[Entry], record: Path) -> list[list[Exchange]]:
    """The exchanges of the attempts whose sums a run has kept, by round: of a repeated round, those of the last."""
    run, last = "", dict[int, Attempt]()
    for entry in log:
        run = str(entry["run"]) if entry["event"] == "started" else run
        if entry["event"] == "closed":
            last[int(str(entry["round"]))] = run, int(str(entry["round"])), int(str(entry["attempt"]))
    lines = map(json.loads, record.read_text().splitlines())
    exchanges = [Exchange((run, *rest), verb, tuple(asked), tuple(got)) for (run, *rest), verb, asked, got in lines]
    return [[each for each in exchanges if each.attempt == last[index]] for index in sorted(last)]


@dataclass
class ReplayTransport:
    """Sites in this process, of which those are lost, round by round and message by message, that were lost before.

    Attributes:
        handlers: the sites.
        rounds: the exchanges of each round.
    """

    handlers: Mapping[str, Handler]
    rounds: Sequence[Sequence[Exchange]]
    begun: int = 0
    lost: set[str] = field(default_factory=set)
    left: Iterator[Exchange] = field(default_factory=lambda: iter(()))

    def sites(self) -> tuple[str, ...]:
        """Those that the next round has asked; who was lost before it was away in between."""
        away, self.lost = self.lost, set()
        return tuple(name for name in self.rounds[self.begun][0].asked if name not in away)

    def ask(self, verb: str, requests: Mapping[str, bytes], timeout: float) -> Mapping[str, bytes | Failure]:
        here = InProcess(self.handlers)
        if verb == REGISTER:
            return here.ask(verb, requests, timeout)
        if verb == TRAIN:
            self.left, self.begun = iter(self.rounds[self.begun]), self.begun + 1
        expected = next(self.left)
        assert (verb, sorted(requests)) == (expected.verb, sorted(expected.asked))
        self.lost |= set(expected.asked) - set(expected.answered)
        answers = here.ask(verb, {name: requests[name] for name in expected.answered}, timeout)
        return {name: answers.get(name, Failure("absent")) for name in requests}
