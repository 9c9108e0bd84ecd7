"""Measures one round of secure aggregation with thousands of clients and long vectors, in little memory.

    python benchmarks/secure_sum_at_size.py --clients 1000 --dim 1000000 --workers 2
    python benchmarks/secure_sum_at_size.py --table      # what was measured before, beside the formulas

A whole conversation against an active server: every message is packed, sent and parsed, and a tenth of the clients is
lost before their uploads. Clients answer one after the other, and the server reads one upload at a time, so that one
vector of each is in memory. The pads that two survivors have in common cancel in the sum; they are left out of the
uploads (but for `--whole`), and a few whole uploads are timed instead. The sum is compared with that of the vectors.
"""

import argparse
import hashlib
import json
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from unittest.mock import patch

import numpy as np

from reporting import circumstances, positive_integer
from tacit.protocols import crypto
from tacit.protocols.kit import Requests
from tacit.protocols.pad_processes import PadProcesses
from tacit.protocols.secagg import (
    Parameters,
    Phase,
    SecaggClientState,
    SecaggOutcome,
    SecaggPolicy,
    SecaggSession,
    Vector,
    answer,
    cohort_bytes,
    converse,
    join_round,
    secagg_client,
    set_vector,
)
from tacit.protocols.secagg.pads import remove_pads
from tacit.protocols.secagg.secagg_messages import Direction, pack
from tacit.wire.packing import Table

LATEST = Path(__file__).resolve().parent / "results" / "secure-sum-at-size.json"
TENTH = Fraction(1, 10)
WHOLE = 3  # uploads that are timed with all their pads
PADDED = secagg_client.pad_vector
HEADER = (
    "| clients × numbers | lost | pads of a client | its time for them | for keys and shares | up | down "
    "| server, without pads | pads removed | by formula, one core | measured, in processes | memory |"
)


def noise(*seed: object) -> crypto.Entropy:
    """The same bytes for the same seed, so that a client's first states need not be stored."""
    return lambda count: hashlib.shake_256(repr(seed).encode()).digest(count)


@dataclass
class Population:
    """Clients that are computed when they are asked.

    Attributes:
        session: the round.
        lost: who is lost before its upload.
        seconds: CPU time of all clients by phase.
        stored: states by client, once they have shared their secrets.
        uploads: seconds of uploads with all their pads.
        directory: the clients' identities.
        roster: the digest of the roster, once an order is drawn.
    """

    session: SecaggSession
    lost: frozenset[int]
    seconds: defaultdict[Phase, float] = field(default_factory=lambda: defaultdict(float))
    stored: dict[int, bytes] = field(default_factory=dict)
    uploads: list[float] = field(default_factory=list)
    directory: dict[int, bytes] = field(default_factory=dict)
    roster: bytes = b""

    def __post_init__(self) -> None:
        for j in range(self.session.parameters.cohort):
            self.directory[j] = crypto.public_identity(noise("identity", j)(32))

    def vector(self, client: int) -> Vector:
        p = self.session.parameters
        return np.random.default_rng(client).integers(0, 1 << p.bits, p.dim, dtype=np.uint32)

    def replies(self, requests: Requests) -> Iterator[tuple[int, bytes]]:
        """The replies, each computed when the server reads it."""
        phase = Phase(next(iter(requests.values()))[5])
        for client, request in requests.items():
            if phase >= Phase.UPLOAD and client in self.lost:
                continue
            began = time.process_time()
            reply = self._reply(phase, client, request)
            self.seconds[phase] += time.process_time() - began
            yield client, reply

    def _reply(self, phase: Phase, client: int, request: bytes) -> bytes:
        state = self._state(phase, client)
        if phase is Phase.UPLOAD:
            state = set_vector(state, self.vector(client))
            if len(self.uploads) < WHOLE:
                began = time.process_time()
                binding = state.expected_binding
                PADDED(state, secagg_client._pair_secrets(state, state.circle.own_pads(client, state.near), binding))
                self.uploads.append(time.process_time() - began)
        after, reply = answer(state, request)
        if phase >= Phase.SHARE:
            self.stored[client] = after.to_bytes()
        return reply

    def _state(self, phase: Phase, client: int) -> SecaggClientState:
        """The state before a phase; up to the phase of shares it is computed from the beginning."""
        if phase > Phase.SHARE:
            return SecaggClientState.from_bytes(self.stored[client])
        state = join_round(
            self.session,
            client,
            SecaggPolicy(),
            identity=noise("identity", client)(32),
            directory=self.directory,
            entropy=noise("root", client),
        )
        if phase is Phase.ANNOUNCE:
            return state
        state = _replayed(state, Phase.ANNOUNCE, b"")
        drawn = phase is Phase.SHARE and self.session.parameters.draws
        return _replayed(state, Phase.DRAW, self.roster) if drawn else state

    def what_remains(self, state: SecaggClientState, secrets: Table) -> bytes:
        """A vector without the pads that cancel in the sum."""
        return PADDED(state, {j: secret for j, secret in secrets.items() if j in self.lost})


def _replayed(state: SecaggClientState, phase: Phase, body: bytes) -> SecaggClientState:
    """The state after an earlier request, whose reply is known."""
    return answer(state, pack(phase, Direction.REQUEST, state.session.round, state.client, state.binding, body))[0]


@dataclass(frozen=True)
class AtSize:
    """One round as measured; times are CPU seconds of one core unless they are called wall-clock."""

    clients: int
    dim: int
    lost: int
    workers: int
    neighbours: int
    client_seconds: float
    client_pads: int
    client_pad_seconds: float
    server_seconds: dict[str, float]
    server_pads: int
    unmask_wall: float
    up: dict[str, float]
    down: dict[str, float]
    peak_mib: int
    circumstances: dict[str, object]

    @property
    def pad_nanoseconds(self) -> float:
        """Of a client, for one number of one pad."""
        return 1e9 * self.client_pad_seconds / self.client_pads / self.dim


class Unmasking:
    """Removes pads, and measures it."""

    def __init__(self, workers: int) -> None:
        self.workers, self.pads, self.wall = workers, 0, 0.0

    def remove(self, total: Vector, added: Sequence[bytes], subtracted: Sequence[bytes]) -> None:
        self.pads = len(added) + len(subtracted)
        if self.workers == 1:
            began = time.perf_counter()
            remove_pads(total, added, subtracted)
            self.wall = time.perf_counter() - began
            return
        with PadProcesses(self.workers) as processes:
            processes.remove(np.zeros(8, np.uint32), added[:64], [])  # starts them
            began = time.perf_counter()
            processes.remove(total, added, subtracted)
            self.wall = time.perf_counter() - began


def measure(clients: int, dim: int, workers: int, *, whole: bool) -> AtSize:
    """Play one round."""
    p = Parameters(cohort=clients, dim=dim, corrupt=TENTH, dropout=TENTH)
    session = SecaggSession(run=bytes(16), round=0, model=bytes(32), config=bytes(32), parameters=p)
    lost = frozenset(np.random.default_rng(0).permutation(clients)[: clients // 10].tolist())
    population, removal = Population(session, lost), Unmasking(workers)
    server_seconds: defaultdict[str, float] = defaultdict(float)
    with nullcontext() if whole else patch.object(secagg_client, "pad_vector", population.what_remains):
        outcome = _play(population, removal, server_seconds)
    expected = np.zeros(dim, np.uint32)
    for client in set(range(clients)) - lost:
        expected += population.vector(client)
    if not np.array_equal(outcome.result, expected):
        raise RuntimeError("The sum is not that of the survivors' vectors.")
    graph, transcript = p.graph(clients), outcome.transcript
    return AtSize(
        clients=clients,
        dim=dim,
        lost=len(lost),
        workers=workers,
        neighbours=graph.degree,
        client_seconds=sum(s for phase, s in population.seconds.items() if phase is not Phase.UPLOAD) / clients,
        client_pads=graph.degree + 1,
        client_pad_seconds=min(population.uploads),
        server_seconds=dict(server_seconds),
        server_pads=removal.pads,
        unmask_wall=removal.wall,
        up={phase.name: sum(table.values()) / len(table) for phase, table in transcript.up.items()},
        down={phase.name: sum(table.values()) / len(table) for phase, table in transcript.down.items()},
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        circumstances=circumstances(),
    )


def _play(population: Population, removal: Unmasking, server_seconds: defaultdict[str, float]) -> SecaggOutcome:
    """A conversation; `server_seconds` receives the server's CPU time by phase."""
    p = population.session.parameters
    server = converse(
        population.session, range(p.cohort), population.directory, remove=removal.remove, entropy=noise("server")
    )
    began, clients = time.process_time(), 0.0
    requests: Requests = next(server)
    while True:
        phase = Phase(next(iter(requests.values()))[5])
        if phase is Phase.DRAW:
            population.roster = next(iter(requests.values()))[-32:]
        try:
            requests = server.send(population.replies(requests))
        except StopIteration as end:
            outcome: SecaggOutcome = end.value
            return outcome
        finally:
            spent = sum(population.seconds.values())
            server_seconds[phase.name] += time.process_time() - began - (spent - clients)
            began, clients = time.process_time(), spent
            print(f"{phase.name.lower()}: server {server_seconds[phase.name]:.1f} s", file=sys.stderr, flush=True)


def rows(measured: Sequence[AtSize]) -> Iterator[str]:
    """The results as Markdown."""
    yield HEADER
    yield "|" + "---|" * (HEADER.count("|") - 1)
    for m in measured:
        one_core = 1e-9 * m.pad_nanoseconds * m.server_pads * m.dim
        others = sum(m.server_seconds.values()) - (m.unmask_wall if m.workers == 1 else 0)
        cells = (
            f"{m.clients:,} × {m.dim:,}",
            f"{m.lost:,}",
            m.client_pads,
            f"{m.client_pad_seconds:.2f} s",
            f"{m.client_seconds:.2f} s",
            f"{sum(m.up.values()):,.0f}",
            f"{sum(m.down.values()):,.0f}",
            f"{others:.0f} s",
            f"{m.server_pads:,}",
            f"{one_core:.0f} s",
            f"{m.unmask_wall:.0f} s in {m.workers}",
            f"{m.peak_mib:,} MiB",
        )
        yield "| " + " | ".join(map(str, cells)) + " |"


def formulas(measured: Sequence[AtSize]) -> Iterator[str]:
    """Measured counts beside those that follow from the parameters."""
    for m in measured:
        p = Parameters(cohort=m.clients, dim=m.dim, corrupt=TENTH, dropout=TENTH)
        up = sum(size.up for size in cohort_bytes(p).values()) // m.clients
        survivors = m.clients - m.lost
        pads = survivors + m.lost * m.neighbours * survivors / (m.clients - 1)
        yield (
            f"{m.clients:,} × {m.dim:,}: {m.pad_nanoseconds:.2f} ns for a number of a pad; "
            f"up-link {up:,} bytes by formula ({sum(m.up.values()):,.0f} measured); "
            f"s + l k s / (n - 1) = {pads:,.0f} pads ({m.server_pads:,} measured)"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure a round, add it to the results, and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=positive_integer, default=1000, help="default %(default)s")
    parser.add_argument("--dim", type=positive_integer, default=1_000_000, help="default %(default)s")
    parser.add_argument("--workers", type=positive_integer, default=2, help="of the server (default %(default)s)")
    parser.add_argument("--whole", action="store_true", help="uploads with all their pads, also those that cancel")
    parser.add_argument("--table", action="store_true", help="measure nothing, print what was measured before")
    parser.add_argument("--out", type=Path, default=LATEST, help="file of results, as JSON")
    args = parser.parse_args(argv)
    results = [AtSize(**each) for each in json.loads(args.out.read_text())] if args.out.exists() else []
    if not args.table:
        new = measure(args.clients, args.dim, args.workers, whole=args.whole)
        same = {(new.clients, new.dim, new.workers)}
        results = [each for each in results if (each.clients, each.dim, each.workers) not in same] + [new]
        results.sort(key=lambda each: (each.clients, each.dim, each.workers))
        args.out.write_text(json.dumps([asdict(each) for each in results], indent=1) + "\n")
    print("\n".join((*rows(results), "", *formulas(results))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
