"""The server's recovery of secrets from shares, and the identification of clients that lie about them.

`secagg_server` leads the conversation; it calls this once holders have answered the challenge, and once they have
opened their shares.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from tacit.errors import TooFewClientsError
from tacit.protocols import crypto
from tacit.protocols.secagg import graph, pads, shares
from tacit.protocols.secagg.graph import Circle, GraphParameters
from tacit.protocols.secagg.parameters import Parameters
from tacit.protocols.secagg.secagg_client import roster_binding
from tacit.protocols.secagg.shares import LIMBS, SHARE, Dealing, Field, Shared
from tacit.wire.packing import Reader


@dataclass(frozen=True)
class Misbehaviour:
    """The certain liars, if at most the declared fraction of clients lie.

    Attributes:
        dealers: clients that shared inconsistent secrets.
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

    key: bytes
    committed: bytes
    signature: bytes
    nonce: bytes = b""

    @property
    def entry(self) -> bytes:
        return self.key + self.nonce + self.signature

    @property
    def leaf(self) -> bytes:
        return graph.roster_leaf(self.key, self.committed)


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

    def corrects_all(self, p: Parameters) -> bool:
        """Whether wrong shares of all that may lie are corrected; else a liar may make an honest client look so."""
        return bool(self.parameters.distances) or self.parameters.max_wrong >= p.colluding

    @cached_property
    def own_pads(self) -> Mapping[int, list[int]]:
        """The neighbours of each client with which it owns the pad."""
        return {client: self.circle.own_pads(client, near) for client, near in self.neighbours.items()}

    def holders(self, client: int, present: Iterable[int]) -> frozenset[int]:
        """The present holders of shares of this client's secrets: its neighbours and itself."""
        return (self.neighbours[client] | {client}).intersection(present)


@dataclass(frozen=True, eq=False)
class PaddedUpload:
    """The fields of an upload beside its vector.

    Attributes:
        escrowed: the secrets of owned pads, each encrypted with a share of the neighbour's secret.
        spares: the secrets of pads with neighbours whose shares are disputed, shared once more.
        noise: the seed of the client's noise, encrypted; empty if nobody will remove it.
    """

    escrowed: Mapping[int, bytes]
    spares: Mapping[int, Dealing]
    noise: bytes


@dataclass(frozen=True, eq=False)
class Revealed:
    """A client's revealed shares: of seeds, of dropouts' secrets, of noise seeds, and of spares by both clients."""

    seeds: Mapping[int, Field]
    pads: Mapping[int, Field]
    noise: Mapping[int, Field]
    spares: Mapping[tuple[int, int], Field]


def read_revealed(
    p: Parameters, reader: Reader, about: list[int], survivors: frozenset[int], spares: list[tuple[int, int]]
) -> Revealed:
    """Read the shares that a client revealed about these clients, and of these spares."""
    removed = shares.noise_removed(p, survivors)
    seeds, pad_secrets, noise = dict[int, Field](), dict[int, Field](), dict[int, Field]()
    for j in about:
        (seeds if j in survivors else pad_secrets)[j] = shares.from_bytes(reader.take(SHARE), LIMBS)
        if j in removed:
            noise[j] = shares.from_bytes(reader.take(SHARE), LIMBS)
    opened = {pair: shares.from_bytes(reader.take(SHARE), LIMBS) for pair in spares}
    return Revealed(seeds, pad_secrets, noise, opened)


def lies_in_answers(
    p: Parameters, around: RosterGraph, dealings: Mapping[int, Dealing], given: Mapping[int, Mapping[int, Field]]
) -> tuple[Misbehaviour, frozenset[int]]:
    """The lies that holders' answers show, and the clients excluded because their shares do not fit."""
    excluded, named, disputes, suspects = set[int](), set[int](), set[tuple[int, int]](), Counter[int]()
    for client, each in dealings.items():
        answers = {j: given[j][client] for j in each.holders if j in given}
        corrections = shares.answers(each.corrections(), around.challenge, around.binding)
        wrong = each.wrong_holders(answers, corrections, around.parameters.max_wrong, frozenset(suspects))
        if wrong is None:
            excluded.add(client)
            if len(answers) >= each.threshold + 2 * around.parameters.max_wrong and around.corrects_all(p):
                named.add(client)
            continue
        suspects.update(wrong)
        named |= {client} & wrong  # its own share of its own secrets
        disputes |= {(client, holder) for holder in wrong - {client}}
    holders = frozenset(holder for holder, count in suspects.items() if count > p.colluding)
    disputed = frozenset(pair for pair in disputes if pair[1] not in holders)
    return Misbehaviour(frozenset(named), holders, disputed), frozenset(excluded)


class SecretRecovery:
    """Recovers the secrets that clients have opened in a round, and who has lied about them."""

    def __init__(
        self,
        p: Parameters,
        turn: int,
        binding: bytes,
        around: RosterGraph,
        dealings: Mapping[int, Dealing],
        misbehaviour: Misbehaviour,
        uploads: Mapping[int, PaddedUpload],
        revealed: Mapping[int, Revealed],
        certain: int,
        *,
        final: bool = True,
    ) -> None:
        """`certain`: how many shares of a secret must fit; `final`: nobody is left who could be asked for others."""
        self._p, self._turn, self._binding = p, turn, binding
        self._around, self._dealings, self._uploads = around, dealings, uploads
        self._survivors = frozenset(uploads)
        self._revealed, self.misbehaviour, self._certain = revealed, misbehaviour, certain
        self._final = final
        self._suspects: frozenset[int] = misbehaviour.holders

    def pads(self, sharers: frozenset[int]) -> tuple[list[bytes], list[bytes]]:
        """The keys of the pads that remain in the sum: of those added, and of those subtracted."""
        binding = self._binding
        seeds = self._recover({i: each.seeds for i, each in self._revealed.items()}, self._survivors, Shared.SEED)
        added = [pads.own_pad_key(seeds[j], binding, j) for j in sorted(self._survivors)]
        subtracted: list[bytes] = []
        lost = sharers - self._survivors
        pad_shares = {i: each.pads for i, each in self._revealed.items()}
        for dropout in sorted(lost):
            for j, secret in sorted(self._pairs(dropout, pad_shares).items()):
                key = pads.pair_pad_key(secret, binding, dropout, j)
                (added if j > dropout else subtracted).append(key)  # the larger of a pair has added it
        return added, subtracted

    def _pairs(self, dropout: int, given: Mapping[int, Mapping[int, Field]]) -> dict[int, bytes]:
        """The secrets of a dropout's pads with survivors: from their shares of its secret, or encrypted with them."""
        right, corrections = self._right(given, dropout, Shared.PAD), self._corrections(dropout, Shared.PAD)
        holdings = self._dealings[dropout].holdings(right, corrections)
        near = self._around.neighbours[dropout] & self._survivors
        return {j: self._pair_secret(dropout, j, holdings[j]) for j in near}

    def _pair_secret(self, dropout: int, client: int, held: Field) -> bytes:
        """The secret of a survivor with a dropout; what a survivor lies about it falsifies its own vector."""
        upload = self._uploads[client]
        if dropout in upload.spares:
            return self._spare(dropout, client, upload.spares[dropout])
        if dropout not in upload.escrowed:
            return shares.pair_secret(held, self._binding, dropout, client)
        return shares.escrow(upload.escrowed[dropout], held, self._binding, dropout, client)

    def _spare(self, dropout: int, client: int, spare: Dealing) -> bytes:
        by_holder = {
            j: each.spares[client, dropout]
            for j, each in self._revealed.items()
            if (client, dropout) in each.spares and (client, j) not in self.misbehaviour.disputed
        }
        liars = self._around.parameters.max_wrong
        wrong = spare.wrong_holders(by_holder, spare.corrections(), liars, self._suspects)
        if wrong is not None and len(by_holder) - len(wrong) >= self._certain:
            right = {j: share for j, share in by_holder.items() if j not in wrong}
            return spare.recover(right, spare.corrections())
        if not self._final or len(by_holder) < spare.threshold + 2 * liars:
            raise TooFewClientsError(f"The shares of client {client} are too few or inconsistent: there is no sum.")
        if self._around.corrects_all(self._p):
            self._name(dealer=client)
        return bytes(shares.SECRET)

    def noise_seeds(self) -> dict[int, bytes]:
        """The seeds of the noise that is removed, by client."""
        noise_shares = {i: each.noise for i, each in self._revealed.items()}
        keys = self._recover(noise_shares, shares.noise_removed(self._p, self._survivors), Shared.NOISE)
        return {j: shares.wrap(self._uploads[j].noise, key, self._binding, j) for j, key in keys.items()}

    def _recover(
        self, given: Mapping[int, Mapping[int, Field]], clients: frozenset[int], secret: Shared
    ) -> dict[int, bytes]:
        """These clients' secrets, from the holders' shares; holders whose shares are wrong are named."""
        secrets = {}
        for client in sorted(clients):
            corrections = self._corrections(client, secret)
            secrets[client] = self._dealings[client].recover(self._right(given, client, secret), corrections)
        return secrets

    def _corrections(self, client: int, secret: Shared) -> Field:
        return self._dealings[client].corrections(shares.place_of(self._p, secret, self._turn))

    def _right(self, given: Mapping[int, Mapping[int, Field]], client: int, secret: Shared) -> dict[int, Field]:
        """The right shares of a client's secret; holders whose shares are wrong are named."""
        each = self._dealings[client]
        usable = {
            j: given[j][client]
            for j in each.holders
            if j in given and client in given[j] and (client, j) not in self.misbehaviour.disputed
        }
        corrections = self._corrections(client, secret)
        wrong = each.wrong_holders(usable, corrections, self._around.parameters.degree, self._suspects)
        if wrong is None or len(usable) - len(wrong) < self._certain:
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
