"""Seeds of surplus noise, which the holders of a client's shares can open from one component on, and no earlier one.

A client's seeds are a chain (`tacit.core.surplus`). Each is shared like the seed of its pad: `threshold` holders can
recover it, fewer learn nothing. Sending a share of every seed to every holder would take t times the bytes of a pad's,
so nothing is sent to holders: a holder's share is pseudorandom, from a key that it already has in common with the
client. A polynomial through the seed and the shares of m holders has degree m; the client publishes m + 1 − threshold
of its values, with which any `threshold` shares determine it.

Which seed a holder opens follows from the survivors that were agreed upon, never from the server's request. The secrets
here are others than those of pads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tacit.core.keys import Key
from tacit.core.surplus import seed_after
from tacit.protocols import crypto
from tacit.protocols.crypto import KEY
from tacit.protocols.secagg import shamir
from tacit.protocols.secagg.pads import ShareGraph
from tacit.protocols.secagg.parameters import Parameters
from tacit.protocols.secagg.shamir import LIMBS, SHARE, Field, ShareSet
from tacit.wire.packing import Reader

_PUBLISHED = 1 << 15  # from here on, points are those of published values; holders' points are below


def level_of(p: Parameters, survivors: int) -> int:
    """The first component that is removed if this many clients of the cohort survive; 0: none is."""
    level = p.cohort - survivors + 1
    return level if level <= p.surplus else 0


def holder_key(shared: bytes, binding: bytes, client: int, holder: int) -> bytes:
    """From which a holder's shares of a client's seeds derive; `shared` is known to these two alone."""
    return crypto.derive(shared, "surplus", binding, client, holder)


def holder_share(key: bytes, binding: bytes, level: int) -> Field:
    """A holder's share of a client's seed at this level."""
    generator = crypto.keystream(crypto.derive(key, "surplus share", binding, level))
    return shamir.uniform(LIMBS, lambda count: generator.update(bytes(count)))


def dealing_size(levels: int, published: int) -> int:
    """The length of `deal` in bytes, with this number of published values at every level."""
    return KEY + levels * published * SHARE if levels else 0


def deal(seed: bytes, keys: Mapping[int, bytes], p: Parameters, threshold: int, binding: bytes) -> bytes:
    """What a client publishes about its seeds: a commitment to all of them, and values of every level's polynomial.

    Args:
        seed: of component 1.
        keys: of the holders, by their points.
        p: of the protocol.
        threshold: number of holders that can open a level.
        binding: the roster's digest.
    """
    if not p.surplus:
        return b""
    seeds, levels = [Key(seed)], range(1, p.surplus + 1)
    for _ in levels:
        seeds.append(seed_after(seeds[-1]))
    rows = [[shamir.to_limbs(each.value) for each in seeds[:-1]]]
    rows += [[holder_share(key, binding, level).tolist() for level in levels] for key in keys.values()]
    places = [_PUBLISHED + place for place in range(len(rows) - threshold)]
    values = shamir.interpolate([0, *keys], np.array(rows, np.uint64), places)
    return _commitment(seeds[-1], binding) + shamir.to_bytes(values.swapaxes(0, 1))


@dataclass(frozen=True, eq=False)
class Dealing:
    """What a client published about its seeds."""

    commitment: bytes
    values: Field  # (levels, published values, limbs)

    @classmethod
    def read(cls, reader: Reader, p: Parameters, published: int) -> "Dealing":
        commitment = reader.take(KEY) if p.surplus else b""
        values = [shamir.from_bytes(reader.take(SHARE)) for _ in range(p.surplus * published)]
        return cls(commitment, np.array(values, np.uint64).reshape(p.surplus, published, LIMBS))

    def published(self, level: int) -> dict[int, Field]:
        """The published values of one level's polynomial, by their points."""
        return {_PUBLISHED + place: value for place, value in enumerate(self.values[level - 1])}


def recover_seeds(
    graph: ShareGraph,
    p: Parameters,
    dealings: Mapping[int, Dealing],
    revealed: Mapping[int, Mapping[int, Field]],
    survivors: frozenset[int],
) -> dict[int, bytes]:
    """The seed of every survivor at the level that is opened; empty if none is.

    Args:
        graph: of the clients that announced.
        p: of the protocol.
        dealings: of the clients, as they published them.
        revealed: the shares of this level, by holder, then by client.
        survivors: the clients in the sum.

    Raises:
        TooFewClientsError: a seed cannot be recovered.
    """
    level = level_of(p, len(survivors))
    if not level:
        return {}
    point = {client: place for place, client in enumerate(graph.members, 1)}
    share_sets = []
    for client in sorted(survivors):
        shares = {point[holder]: parts[client] for holder, parts in revealed.items() if client in parts}
        shares |= dealings[client].published(level)
        is_seed = _is_seed(dealings[client].commitment, p.surplus + 1 - level, graph.digest)
        share_sets.append(ShareSet(client, shares, is_seed))
    return shamir.recover_secrets(share_sets, graph.degree + 2)


def _commitment(last: Key, binding: bytes) -> bytes:
    return crypto.digest("surplus", binding, last.value)


def _is_seed(commitment: bytes, steps: int, binding: bytes) -> Callable[[bytes], bool]:
    return lambda secret: _commitment(seed_after(Key(secret), steps), binding) == commitment
