"""Pads: one-time masks on vectors of integers modulo 2^b, added by clients and removed from the sum by the server.

Each upload carries its client's own pad and one pad per neighbour; the pads of a pair cancel in the sum. The server
removes the rest: own pads of the survivors, by their seeds, and pads shared with dropouts, by the dropouts' keys
(Bonawitz et al., Figure 4). All arithmetic is that of uint32, which wraps around at 2^32; as 2^b divides 2^32, it is
enough to reduce once at the end.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import ProtocolError, TooFewClientsError
from tacit.protocols import crypto
from tacit.protocols.crypto import KEY, PrivateKey
from tacit.protocols.secagg import shamir
from tacit.protocols.secagg.shamir import ShareSet, recover_secrets
from tacit.wire.packing import Table, pack_number, packed_size

Vector = NDArray[np.uint32]
CHUNK = 1 << 16  # words added at a time: 256 KiB stay in the cache between cipher and sum
_WHOLE: dict[int, Any] = {8: np.dtype("u1"), 16: np.dtype("<u2"), 32: np.dtype("<u4")}
_BLOCK = 1 << 16  # values of other widths packed at a time; a multiple of 8, so blocks end at whole bytes


class ShareKind(IntEnum):
    """Which of a client's two secrets a share belongs to."""

    SEED = 1  # of its own pad: opened if it uploaded
    KEY = 2  # of its pads with neighbours: opened if it dropped out


RevealedShare = tuple[ShareKind, shamir.Field]
RevealedShares = Mapping[int, Mapping[int, RevealedShare]]  # by holder, then by the client whose secret it belongs to


# Keys of pads


def own_pad_key(seed: bytes, binding: bytes, client: int) -> bytes:
    """The key of a client's own pad."""
    return crypto.derive(seed, "own pad", binding, client)


def pair_pad_key(secret: PrivateKey, other: bytes, binding: bytes, client: int, neighbour: int) -> bytes:
    """The key of the pad that two neighbours share: the one with the larger number adds it, the other subtracts it."""
    return crypto.derive(crypto.agree(secret, other), "pair pad", binding, *sorted((client, neighbour)))


def seed_commitment(binding: bytes, client: int, seed: bytes) -> bytes:
    """By which the server verifies a recovered seed; it reveals nothing about 256 random bits."""
    return crypto.digest("seed", binding, pack_number(client), seed)


# Vectors


def add_pads(total: Vector, added: Sequence[bytes], subtracted: Sequence[bytes] = ()) -> None:
    """Add the pads of some keys to `total`, and subtract those of others, in place."""
    zeros = bytes(4 * min(CHUNK, total.size))
    pad = bytearray(len(zeros) + 15)  # the cipher's interface requires a spare block
    adding = [(crypto.keystream(key), np.add) for key in added]
    subtracting = [(crypto.keystream(key), np.subtract) for key in subtracted]
    for start in range(0, total.size, CHUNK):
        chunk = total[start : start + CHUNK]
        for generator, fold in adding + subtracting:
            generator.update_into(zeros[: 4 * chunk.size], pad)
            fold(chunk, np.frombuffer(pad, "<u4", chunk.size), out=chunk)


def reduce(total: Vector, bits: int) -> Vector:
    """Each value modulo 2^bits, in place."""
    return np.bitwise_and(total, np.uint32((1 << bits) - 1), out=total)


def pack_vector(vector: Vector, bits: int) -> bytes:
    """Values below 2^bits, with `bits` bits each, least significant first."""
    if bits in _WHOLE:
        return vector.astype(_WHOLE[bits]).tobytes()
    return b"".join(_pack_block(vector[start : start + _BLOCK], bits) for start in range(0, vector.size, _BLOCK))


def unpack_vector(data: bytes | memoryview, dim: int, bits: int) -> Vector:
    """The inverse of `pack_vector`; a wrong length, or bits beyond the last value, are rejected."""
    if len(data) != packed_size(dim, bits):
        raise ProtocolError(f"Expected a vector of {packed_size(dim, bits)} bytes, got {len(data)}.")
    if bits in _WHOLE:
        return np.frombuffer(data, _WHOLE[bits]).astype(np.uint32)
    if dim * bits % 8 and data[-1] >> dim * bits % 8:
        raise ProtocolError("A vector has bits beyond its last value.")
    vector = np.empty(dim, np.uint32)
    for start in range(0, dim, _BLOCK):
        vector[start : start + _BLOCK] = _unpack_block(data[start * bits // 8 :], min(_BLOCK, dim - start), bits)
    return vector


def _pack_block(block: Vector, bits: int) -> bytes:
    unpacked = np.unpackbits(block.astype("<u4").view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    return np.packbits(unpacked[:, :bits], bitorder="little").tobytes()


def _unpack_block(data: bytes | memoryview, count: int, bits: int) -> Vector:
    unpacked = np.zeros((count, 32), np.uint8)
    raw = np.frombuffer(data, np.uint8, packed_size(count, bits))
    unpacked[:, :bits] = np.unpackbits(raw, bitorder="little", count=count * bits).reshape(count, bits)
    return np.packbits(unpacked, axis=1, bitorder="little").view("<u4").ravel().astype(np.uint32)


# The server's side


@dataclass(frozen=True, eq=False)
class ShareGraph:
    """What the server knows once the roster is fixed.

    Attributes:
        members: clients that announced, in ascending order.
        digest: of the roster.
        keys: each client's public pad key and channel key.
        neighbours: of each client, without itself.
        threshold: shares that recover a secret.
    """

    members: tuple[int, ...]
    digest: bytes
    keys: Table
    neighbours: Mapping[int, frozenset[int]]
    threshold: int

    @property
    def degree(self) -> int:
        """Neighbours of each client."""
        return len(self.neighbours[self.members[0]])

    def holders(self, client: int, present: Iterable[int]) -> frozenset[int]:
        """Who of those present holds shares of this client's secrets: its neighbours and itself."""
        return (self.neighbours[client] | {client}).intersection(present)


def remove_pads(
    graph: ShareGraph, total: Vector, revealed: RevealedShares, commitments: Table, survivors: frozenset[int]
) -> None:
    """Remove, in place, the own pads of the survivors and their pads with clients that dropped out.

    Raises:
        TooFewClientsError: a secret cannot be recovered.
    """
    seed_shares, key_shares = _share_sets(graph, revealed, commitments)
    if {each.client for each in seed_shares} != survivors:
        raise TooFewClientsError("No holder of a survivor's shares remains: its pad cannot be removed.")
    seeds = recover_secrets(seed_shares, graph.threshold)
    subtracted = [own_pad_key(seeds[j], graph.digest, j) for j in sorted(survivors)]
    added: list[bytes] = []
    for dropout, secret in recover_secrets(key_shares, graph.threshold).items():
        key = crypto.load_key(secret)
        for j in sorted(graph.neighbours[dropout] & survivors):
            pad = pair_pad_key(key, graph.keys[j][:KEY], graph.digest, dropout, j)
            (subtracted if j > dropout else added).append(pad)  # the larger of a pair has added it
    add_pads(total, added, subtracted)


def _share_sets(
    graph: ShareGraph, revealed: RevealedShares, commitments: Table
) -> tuple[list[ShareSet], list[ShareSet]]:
    """The shares of seeds, and those of pad keys, by client."""
    point = {client: place for place, client in enumerate(graph.members, 1)}
    shares: dict[tuple[int, ShareKind], dict[int, shamir.Field]] = {}
    for holder, parts in revealed.items():
        for j, (kind, share) in parts.items():
            shares.setdefault((j, kind), {})[point[holder]] = share
    return (
        [ShareSet(j, s, _is_seed(graph, j, commitments[j])) for (j, k), s in shares.items() if k is ShareKind.SEED],
        [ShareSet(j, s, _is_key(graph.keys[j][:KEY])) for (j, k), s in shares.items() if k is ShareKind.KEY],
    )


def _is_seed(graph: ShareGraph, client: int, commitment: bytes) -> Callable[[bytes], bool]:
    return lambda secret: seed_commitment(graph.digest, client, secret) == commitment


def _is_key(announced: bytes) -> Callable[[bytes], bool]:
    return lambda secret: crypto.public_key(crypto.load_key(secret)) == announced
