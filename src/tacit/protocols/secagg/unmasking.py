"""What the server of secure aggregation recovers from shares, and who has lied about them.

`secagg_server` leads the conversation; it calls this once holders have answered the challenge, and once they have
opened their shares.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tacit.errors import TooFewClientsError
from tacit.protocols import crypto
from tacit.protocols.crypto import KEY
from tacit.protocols.secagg import dealing, graph, pads, shamir
from tacit.protocols.secagg.dealing import Dealing
from tacit.protocols.secagg.graph import Circle, GraphParameters
from tacit.protocols.secagg.parameters import Parameters
from tacit.protocols.secagg.secagg_client import roster_binding
from tacit.protocols.secagg.shamir import SHARE, Field
from tacit.wire.packing import Reader


@dataclass(frozen=True)
class Lies:
    """Who has lied, as far as it is certain if at most the declared fraction of clients did.

    Attributes:
        dealers: clients that shared inconsistent secrets, or a key other than the announced one.
        holders: clients that revealed wrong shares of others' secrets.
        disputed: (client, holder) of whom one lies; it cannot be said which.
    """

    dealers: frozenset[int] = frozenset()
    holders: frozenset[int] = frozenset()
    disputed: frozenset[tuple[int, int]] = frozenset()

    @property
    def named(self) -> frozenset[int]:
        """All clients that have certainly lied."""
        return self.dealers | self.holders


@dataclass(frozen=True)
class Announced:
    """What a client announced, and its nonce once it is drawn."""

    keys: bytes
    committed: bytes
    signature: bytes
    nonce: bytes = b""

    @property
    def entry(self) -> bytes:
        return self.keys + self.nonce + self.signature

    @property
    def digest(self) -> bytes:
        return graph.keys_digest(self.keys) + self.nonce


@dataclass(frozen=True, eq=False)
class RosterGraph:
    """What the server knows once the roster is fixed: clients, their neighbours, and what binds all that follows."""

    circle: Circle
    roster: bytes
    challenge: bytes
    announced: Mapping[int, Announced]
    neighbours: Mapping[int, frozenset[int]]

    @property
    def members(self) -> tuple[int, ...]:
        return self.circle.members

    @property
    def parameters(self) -> GraphParameters:
        return self.circle.parameters

    @property
    def committed_challenge(self) -> bytes:
        return crypto.digest("challenge", self.challenge)

    @property
    def binding(self) -> bytes:
        return roster_binding(self.roster, self.circle.order, self.committed_challenge)

    def holders(self, client: int, present: Iterable[int]) -> frozenset[int]:
        """Who of those present holds shares of this client's secrets: its neighbours and itself."""
        return (self.neighbours[client] | {client}).intersection(present)


@dataclass(frozen=True)
class Revealed:
    """What a client revealed: shares of seeds, of pad keys and of noise seeds, and keys of its pads with dropouts."""

    seeds: Mapping[int, Field]
    keys: Mapping[int, Field]
    noise: Mapping[int, Field]
    pads: Mapping[int, bytes]


def read_revealed(p: Parameters, reader: Reader, about: list[int], survivors: frozenset[int]) -> Revealed:
    """What a client revealed about these clients."""
    level, seeds, keys, noise = (
        dealing.level_of(p, len(survivors)),
        dict[int, Field](),
        dict[int, Field](),
        dict[int, Field](),
    )
    pad_keys: dict[int, bytes] = {}
    for j in about:
        share = shamir.from_bytes(reader.take(SHARE))
        if j in survivors:
            seeds[j] = share
        else:
            keys[j], pad_keys[j] = share, reader.take(KEY)
        if j in survivors and level:
            noise[j] = shamir.from_bytes(reader.take(SHARE))
    return Revealed(seeds, keys, noise, pad_keys)


def lies_in_answers(
    p: Parameters, around: RosterGraph, dealings: Mapping[int, Dealing], given: Mapping[int, Mapping[int, Field]]
) -> tuple[Lies, frozenset[int]]:
    """What holders' answers show: lies, and the clients that cannot take part because their shares do not fit."""
    excluded, named, disputes, suspects = set[int](), set[int](), set[tuple[int, int]](), Counter[int]()
    for client, each in dealings.items():
        answered = {j: given[j][client] for j in each.holders if j in given}
        corrections = dealing.answers(each.corrections, around.challenge, around.binding)
        wrong = each.liars(answered, corrections, around.parameters.liars, frozenset(suspects))
        if wrong is None:
            excluded.add(client)
            if len(answered) >= each.threshold + 2 * around.parameters.liars:
                named.add(client)
            continue
        suspects.update(wrong)
        disputes |= {(client, holder) for holder in wrong}
    holders = frozenset(holder for holder, count in suspects.items() if count > p.colluding)
    disputed = frozenset(pair for pair in disputes if pair[1] not in holders)
    return Lies(frozenset(named), holders, disputed), frozenset(excluded)


class Reconstruction:
    """Recovers the secrets that clients have opened, and who has lied about them."""

    def __init__(
        self,
        p: Parameters,
        around: RosterGraph,
        dealings: Mapping[int, Dealing],
        lies: Lies,
        survivors: frozenset[int],
        revealed: Mapping[int, Revealed],
    ) -> None:
        self._p, self._around, self._dealings, self._survivors = p, around, dealings, survivors
        self._revealed, self.lies = revealed, lies
        self._suspects: frozenset[int] = lies.holders

    def pads(self, sharers: frozenset[int]) -> tuple[list[bytes], list[bytes]]:
        """The keys of the pads that remain in the sum: of those added, and of those subtracted."""
        binding = self._around.binding
        seeds = self._recover({i: each.seeds for i, each in self._revealed.items()}, self._survivors, dealing.SEED)
        added = [pads.own_pad_key(dealing.seed_of(seeds[j]), binding, j) for j in sorted(self._survivors)]
        subtracted: list[bytes] = []
        lost = sharers - self._survivors
        keys = self._recover({i: each.keys for i, each in self._revealed.items()}, lost, dealing.PAD_KEY)
        for dropout in sorted(lost):
            for j, key in sorted(self._pads_with(dropout, dealing.seed_of(keys[dropout])).items()):
                (added if j > dropout else subtracted).append(key)  # the larger of a pair has added it
        return added, subtracted

    def _pads_with(self, dropout: int, secret: bytes) -> dict[int, bytes]:
        """The keys of a dropout's pads with survivors: by its own key, or if it has shared a wrong one, by theirs."""
        around, private = self._around, crypto.load_key(secret)
        near = around.neighbours[dropout] & self._survivors
        if crypto.public_key(private) == around.announced[dropout].keys[:KEY]:
            keys = {j: around.announced[j].keys[:KEY] for j in near}
            return {j: pads.pair_pad_key(private, key, around.binding, dropout, j) for j, key in keys.items()}
        self.lies = Lies(self.lies.dealers | {dropout}, self.lies.holders, self.lies.disputed)
        if not near <= self._revealed.keys():
            raise TooFewClientsError(
                f"Client {dropout} shared a wrong key and dropped out, and so did a neighbour: there is no sum."
            )
        return {j: self._revealed[j].pads[dropout] for j in near}

    def noise_seeds(self) -> dict[int, bytes]:
        """The seed of every survivor at the level that is opened; empty if none is."""
        level = dealing.level_of(self._p, len(self._survivors))
        if not level:
            return {}
        given = {i: each.noise for i, each in self._revealed.items()}
        limbs = self._recover(given, self._survivors, dealing.NOISE + level - 1)
        return {j: dealing.seed_of(limbs[j]) for j in sorted(self._survivors)}

    def _recover(
        self, given: Mapping[int, Mapping[int, Field]], clients: frozenset[int], place: int
    ) -> dict[int, list[int]]:
        """The limbs of each client's secret, from what holders gave; holders whose shares are wrong are named."""
        found = {}
        for client in sorted(clients):
            each = self._dealings[client]
            corrections = dealing.secret_part(each.corrections, place)
            usable = {
                j: given[j][client]
                for j in each.holders
                if j in given and client in given[j] and (client, j) not in self.lies.disputed
            }
            wrong = each.liars(usable, corrections, self._around.parameters.degree, self._suspects)
            if wrong is None:
                raise TooFewClientsError(f"The shares of client {client} are too few or inconsistent: there is no sum.")
            self._suspects |= wrong
            self.lies = Lies(self.lies.dealers, self.lies.holders | wrong, self.lies.disputed)
            found[client] = each.recover({j: share for j, share in usable.items() if j not in wrong}, corrections)
        return found
