"""Tacit's secure sum: the whole conversation in one process, every message and every client state as bytes.

Clients set up once for an epoch of `EPOCH` rounds, whose CPU time is apart from that of a round. Pads are timed where
they are generated and added (`pads.add_pads`), without the agreement on their keys.
"""

import sys
import time
from fractions import Fraction

import numpy as np
from messages import Stopwatch, commands, send, send_ready

from sum_cases import CASES, TINY, Case
from tacit.protocols.secagg import LocalEpoch, Parameters, SecaggSession, ThreatModel, pads

CORRUPT = Fraction(1, 10)
EPOCH = 50


class SecureSum:
    """Runs and times rounds of one case."""

    def __init__(self, case: Case) -> None:
        self.case, self.rounds = case, 0
        self.vectors = {client: case.integers(client) for client in case.surviving}
        self.pads, self.client_pads = Stopwatch(), 0.0
        self.parameters = Parameters(
            cohort=case.clients,
            dim=case.dim,
            threat_model=ThreatModel[case.threat_model.upper()],
            corrupt=CORRUPT,
            dropout=Fraction(case.dropouts, case.clients),
            rounds=EPOCH,
        )
        graph = self.parameters.graph(case.clients)
        assert (graph.degree, graph.threshold) == (case.neighbours, case.threshold)

    def watch(self) -> None:
        """Time pads; those generated before the server removes any are the clients'."""
        self.pads.watch(pads, "add_pads")
        remove_pads = pads.remove_pads

        def marked(*args: object) -> None:
            self.client_pads = self.pads.read()
            remove_pads(*args)  # type: ignore[arg-type]

        pads.remove_pads = marked  # type: ignore[assignment]

    def run_round(self) -> dict[str, float]:
        """One round: its seconds, those spent on pads, those of the epoch's set-up, and the error of the sum."""
        turn = self.rounds % EPOCH
        session = SecaggSession(
            run=bytes(16), round=self.rounds, model=bytes(32), config=bytes(32), parameters=self.parameters
        )
        if turn == 0:
            begin = time.process_time()
            self.epoch = LocalEpoch(session, range(self.case.clients))
            self.set_up = time.process_time() - begin
        self.rounds += 1
        begin, cpu_begin = time.perf_counter(), time.process_time()
        outcome = self.epoch.sum(session, self.vectors, turn=turn)
        return {
            "set_up": self.set_up,
            "seconds": time.perf_counter() - begin,
            "cpu_seconds": time.process_time() - cpu_begin,
            "client_pads": self.client_pads / len(self.vectors),
            "server_pads": self.pads.read(),
            "error": int(np.abs(outcome.result.astype(np.int64) - self.case.total()).max()),
        }


def main() -> None:
    """A small round to warm up, then one for every command."""
    SecureSum(TINY).run_round()
    secure_sum = SecureSum(CASES[sys.argv[1]])
    secure_sum.watch()
    send_ready("tacit-fl", "cryptography", "numpy")
    for _ in commands():
        send(**secure_sum.run_round())


if __name__ == "__main__":
    main()
