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
from tacit.protocols.secagg import graph, pads, shares
from tacit.protocols.secagg.graph import Circle, GraphParameters
from tacit.protocols.secagg.parameters import Parameters
from tacit.protocols.secagg.secagg_client import roster_binding
from tacit.protocols.secagg.shares import LIMBS, NOISE_LIMBS, NOISE_SHARE, SHARE, Dealing, Field
from tacit.wire.packing import Reader


@dataclass(frozen=True)
class Misbehaviour:
    """The certain liars, if at most the declared fraction of clients lie.

    Attributes:
        dealers: clients that shared inconsistent secrets, or a key other than the announced one.
        holders: clients that revealed wrong shares of others' secrets.
        disputed: (client, holder) of whom one lies; which is unknown.
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
    """The server's knowledge once the roster is fixed: clients, their neighbours, and the binding of later messages."""

    context: bytes
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


@dataclass(frozen=True, eq=False)
class PaddedUpload:
    """What is sent with a vector.

    Attributes:
        signature: on the sharers, on a sparse graph.
        escrowed: the secrets of pads, each encrypted with a share of the neighbour's secret.
        spares: the secrets of pads with neighbours whose shares are disputed, shared once more.
    """

    signature: bytes
    escrowed: Mapping[int, bytes]
    spares: Mapping[int, Dealing]


@dataclass(frozen=True, eq=False)
class Revealed:
    """What a client revealed: shares of seeds, of dropouts' secrets, of noise seeds, and of spares by both clients."""

    seeds: Mapping[int, Field]
    pads: Mapping[int, Field]
    noise: Mapping[int, Field]
    spares: Mapping[tuple[int, int], Field]


def read_revealed(
    p: Parameters, reader: Reader, about: list[int], survivors: frozenset[int], spares: list[tuple[int, int]]
) -> Revealed:
    """What a client revealed about these clients, and of these spares."""
    level = shares.level_of(p, len(survivors))
    seeds, pad_secrets, noise = dict[int, Field](), dict[int, Field](), dict[int, Field]()
    for j in about:
        (seeds if j in survivors else pad_secrets)[j] = shares.from_bytes(reader.take(SHARE), LIMBS)
        if j in survivors and level:
            noise[j] = shares.from_bytes(reader.take(NOISE_SHARE), NOISE_LIMBS)
    opened = {pair: shares.from_bytes(reader.take(SHARE), LIMBS) for pair in spares}
    return Revealed(seeds, pad_secrets, noise, opened)


def lies_in_answers(
    p: Parameters, around: RosterGraph, dealings: Mapping[int, Dealing], given: Mapping[int, Mapping[int, Field]]
) -> tuple[Misbehaviour, frozenset[int]]:
    """The lies that holders' answers show, and the clients excluded because their shares do not fit."""
    excluded, named, disputes, suspects = set[int](), set[int](), set[tuple[int, int]](), Counter[int]()
    for client, each in dealings.items():
        answers = {j: given[j][client] for j in each.holders if j in given}
        corrections = shares.answers(each.corrections, around.challenge, around.binding)
        wrong = each.wrong_holders(answers, corrections, around.parameters.max_wrong, frozenset(suspects))
        if wrong is None:
            excluded.add(client)
            if len(answers) >= each.threshold + 2 * around.parameters.max_wrong:
                named.add(client)
            continue
        suspects.update(wrong)
        named |= {client} & wrong  # its own share of its own secrets
        disputes |= {(client, holder) for holder in wrong - {client}}
    holders = frozenset(holder for holder, count in suspects.items() if count > p.colluding)
    disputed = frozenset(pair for pair in disputes if pair[1] not in holders)
    return Misbehaviour(frozenset(named), holders, disputed), frozenset(excluded)


class SecretRecovery:
    """Recovers the secrets that clients have opened, and who has lied about them."""

    def __init__(
        self,
        p: Parameters,
        around: RosterGraph,
        dealings: Mapping[int, Dealing],
        misbehaviour: Misbehaviour,
        uploads: Mapping[int, PaddedUpload],
        revealed: Mapping[int, Revealed],
    ) -> None:
        self._p, self._around, self._dealings, self._uploads = p, around, dealings, uploads
        self._survivors = frozenset(uploads)
        self._revealed, self.misbehaviour = revealed, misbehaviour
        self._suspects: frozenset[int] = misbehaviour.holders

    def pads(self, sharers: frozenset[int]) -> tuple[list[bytes], list[bytes]]:
        """The keys of the pads that remain in the sum: of those added, and of those subtracted."""
        binding = self._around.binding
        seeds = self._recover({i: each.seeds for i, each in self._revealed.items()}, shares.SEED)
        added = [pads.own_pad_key(shares.secret_of(seeds[j]), binding, j) for j in sorted(self._survivors)]
        subtracted: list[bytes] = []
        lost = sharers - self._survivors
        pad_shares = {i: each.pads for i, each in self._revealed.items()}
        for dropout in sorted(lost):
            for j, secret in sorted(self._pairs(dropout, pad_shares).items()):
                key = pads.pair_pad_key(secret, binding, dropout, j)
                (added if j > dropout else subtracted).append(key)  # the larger of a pair has added it
        return added, subtracted

    def _pairs(self, dropout: int, given: Mapping[int, Mapping[int, Field]]) -> dict[int, bytes]:
        """A dropout's secrets with survivors: by its own key, or if it shared a wrong one, by what they escrowed."""
        around, each = self._around, self._dealings[dropout]
        corrections = shares.secret_part(each.corrections, shares.PAD)
        right = self._right(given, dropout, shares.PAD)
        private = pads.pad_private_key(shares.secret_of(each.recover(right, corrections)), around.context, dropout)
        near = around.neighbours[dropout] & self._survivors
        if crypto.public_key(private) == around.announced[dropout].keys[:KEY]:
            keys = {j: around.announced[j].keys[:KEY] for j in near}
            return {j: pads.pair_secret(private, key, around.binding, dropout, j) for j, key in keys.items()}
        self._name(dealer=dropout)
        holdings = each.holdings(right, corrections)
        return {j: self._escrowed(dropout, j, holdings[j]) for j in near}

    def _escrowed(self, dropout: int, client: int, held: Field) -> bytes:
        """The secret of a survivor with a dropout that has lied; what a survivor lies about it falsifies its vector."""
        upload = self._uploads[client]
        if dropout in upload.spares:
            return self._spare(dropout, client, upload.spares[dropout])
        return shares.escrow(upload.escrowed[dropout], held, self._around.binding, dropout, client)

    def _spare(self, dropout: int, client: int, spare: Dealing) -> bytes:
        by_holder = {
            j: each.spares[client, dropout]
            for j, each in self._revealed.items()
            if (client, dropout) in each.spares and (client, j) not in self.misbehaviour.disputed
        }
        liars = self._around.parameters.max_wrong
        wrong = spare.wrong_holders(by_holder, spare.corrections, liars, self._suspects)
        if wrong is not None:
            return shares.secret_of(
                spare.recover({j: share for j, share in by_holder.items() if j not in wrong}, spare.corrections)
            )
        if len(by_holder) < spare.threshold + 2 * liars:
            raise TooFewClientsError(f"The shares of client {client} are too few or inconsistent: there is no sum.")
        self._name(dealer=client)
        return bytes(shares.SECRET)

    def noise_seeds(self) -> dict[int, bytes]:
        """The seed of every survivor at the level that is opened; empty if none is."""
        level = shares.level_of(self._p, len(self._survivors))
        if not level:
            return {}
        noise_shares = {i: each.noise for i, each in self._revealed.items()}
        limbs = self._recover(noise_shares, shares.NOISE + level - 1)
        return {j: shares.secret_of(limbs[j], KEY) for j in sorted(self._survivors)}

    def _recover(self, given: Mapping[int, Mapping[int, Field]], place: int) -> dict[int, list[int]]:
        """The limbs of each survivor's secret, from the holders' shares; holders whose shares are wrong are named."""
        limbs = {}
        for client in sorted(self._survivors):
            corrections = shares.secret_part(self._dealings[client].corrections, place)
            limbs[client] = self._dealings[client].recover(self._right(given, client, place), corrections)
        return limbs

    def _right(self, given: Mapping[int, Mapping[int, Field]], client: int, place: int) -> dict[int, Field]:
        """The right shares of a client's secret; holders whose shares are wrong are named."""
        each = self._dealings[client]
        usable = {
            j: given[j][client]
            for j in each.holders
            if j in given and client in given[j] and (client, j) not in self.misbehaviour.disputed
        }
        corrections = shares.secret_part(each.corrections, place)
        wrong = each.wrong_holders(usable, corrections, self._around.parameters.degree, self._suspects)
        if wrong is None:
            raise TooFewClientsError(f"The shares of client {client} are too few or inconsistent: there is no sum.")
        self._suspects |= wrong
        self.misbehaviour = Misbehaviour(
            self.misbehaviour.dealers, self.misbehaviour.holders | wrong, self.misbehaviour.disputed
        )
        return {j: share for j, share in usable.items() if j not in wrong}

    def _name(self, *, dealer: int) -> None:
        self.misbehaviour = Misbehaviour(
            self.misbehaviour.dealers | {dealer}, self.misbehaviour.holders, self.misbehaviour.disputed
        )
