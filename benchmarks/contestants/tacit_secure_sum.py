"""Tacit's secure sum: the whole conversation in one process, every message and every desk as bytes.

Pads are timed where they are made and added (`ring.add_pads`); agreeing on their keys is not a part of that.
"""

import sys
import time
from fractions import Fraction

import numpy as np
from stopwatch import Stopwatch
from talk import commands, ready, say

from sums import CASES, TINY, Case
from tacit.protocols.secagg import ring, server
from tacit.protocols.secagg.local import play
from tacit.protocols.secagg.parameters import Level, Parameters, Wiring
from tacit.protocols.secagg.session import Session

CORRUPT = Fraction(1, 10)


class Conversation:
    """Plays rounds of one case, and times them."""

    def __init__(self, case: Case) -> None:
        self.case, self.rounds = case, 0
        self.vectors = {client: case.integers(client) for client in case.delivering}
        self.pads, self.clients_pads = Stopwatch(), 0.0
        self.parameters = Parameters(
            cohort=case.clients,
            dim=case.dim,
            level=Level[case.level.upper()],
            corrupt=CORRUPT,
            dropout=Fraction(case.lost, case.clients),
        )
        assert self.parameters.wiring(case.clients) == Wiring(case.neighbours, case.threshold)

    def watch(self) -> None:
        """Pads that are made before the server begins to take them off are the clients'."""
        self.pads.watch(ring, "add_pads")
        unpad = server.unpad

        def marked(*args: object) -> None:
            self.clients_pads = self.pads.read()
            unpad(*args)  # type: ignore[arg-type]

        server.unpad = marked  # type: ignore[assignment]

    def play(self) -> dict[str, float]:
        """One round: its seconds, those of them for pads, and how wrong the sum is."""
        self.rounds += 1
        session = Session(
            run=bytes(16), round=self.rounds, model=bytes(32), config=bytes(32), parameters=self.parameters
        )
        lost = range(len(self.vectors), self.case.clients)
        begin, busy = time.perf_counter(), time.process_time()
        outcome = play(session, self.vectors, lost)
        seconds, busy = time.perf_counter() - begin, time.process_time() - busy
        return {
            "seconds": seconds,
            "processor": busy,
            "pads_of_a_client": self.clients_pads / len(self.vectors),
            "pads_of_the_server": self.pads.read(),
            "error": int(np.abs(outcome.total.astype(np.int64) - self.case.total()).max()),
        }


def main() -> None:
    """A small round to warm up, then as told."""
    Conversation(TINY).play()
    conversation = Conversation(CASES[sys.argv[1]])
    conversation.watch()
    ready("tacit", "cryptography", "numpy")
    for _ in commands():
        say(**conversation.play())


if __name__ == "__main__":
    main()
