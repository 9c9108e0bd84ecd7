"""Pads off the sum: seeds of those that delivered, keys of those that were lost (Bonawitz et al., Figure 4)."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tacit.protocols import crypto
from tacit.protocols.crypto import KEY
from tacit.protocols.secagg import ring, shamir
from tacit.protocols.secagg.errors import TooFewError
from tacit.protocols.secagg.messages import Kind
from tacit.protocols.secagg.recovery import Puzzle, solve
from tacit.protocols.secagg.statements import committed, own_pad, pair_pad
from tacit.wire.packing import Table

Part = tuple[Kind, shamir.Field]  # a share that was opened
Opened = Mapping[int, Mapping[int, Part]]  # by holder, then by the client whose secret it is of


@dataclass(frozen=True, eq=False)
class Hall:
    """What the server knows of everybody once the roster stands."""

    members: tuple[int, ...]
    digest: bytes
    keys: Table
    near: Mapping[int, frozenset[int]]
    threshold: int

    def around(self, client: int, present: Iterable[int]) -> frozenset[int]:
        """Who holds shares of this client, of those present: its neighbours and itself."""
        return (self.near[client] | {client}).intersection(present)


def unpad(hall: Hall, total: ring.Vector, opened: Opened, commitments: Table, survivors: frozenset[int]) -> None:
    """Take off, in place, the own pads of those that delivered, and their pads with those that were lost."""
    seeds, lost = _puzzles(hall, opened, commitments)
    if {puzzle.client for puzzle in seeds} != survivors:
        raise TooFewError("Nobody is left who holds shares of some client that delivered.")
    secrets = solve(seeds, hall.threshold)
    minus = [own_pad(secrets[j], hall.digest, j) for j in sorted(survivors)]
    plus: list[bytes] = []
    for gone, secret in solve(lost, hall.threshold).items():
        key = crypto.load(secret)
        for j in sorted(hall.near[gone] & survivors):
            pad = pair_pad(key, hall.keys[j][:KEY], hall.digest, gone, j)
            (minus if j > gone else plus).append(pad)  # the larger of a pair has added it
    ring.add_pads(total, plus, minus)


def _puzzles(hall: Hall, opened: Opened, commitments: Table) -> tuple[list[Puzzle], list[Puzzle]]:
    """Whose seed and whose key must be found, with the shares that came."""
    place = {client: at for at, client in enumerate(hall.members, 1)}
    found: dict[tuple[int, Kind], dict[int, shamir.Field]] = {}
    for holder, parts in opened.items():
        for j, (kind, share) in parts.items():
            found.setdefault((j, kind), {})[place[holder]] = share
    return (
        [Puzzle(j, s, _is_seed(hall, j, commitments[j])) for (j, kind), s in found.items() if kind is Kind.SEED],
        [Puzzle(j, s, _is_key(hall.keys[j][:KEY])) for (j, kind), s in found.items() if kind is Kind.KEY],
    )


def _is_seed(hall: Hall, client: int, commitment: bytes) -> Callable[[bytes], bool]:
    return lambda found: committed(hall.digest, client, found) == commitment


def _is_key(known: bytes) -> Callable[[bytes], bool]:
    return lambda found: crypto.public(crypto.load(found)) == known
