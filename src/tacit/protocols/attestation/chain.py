"""The enclave's own record of what it let out, as a chain of hashes whose head is attested.

The host can put back an older file, but not into the memory of its clients: each remembers the last head it saw and
wants to be led from there to the attested one. An enclave that forgot a release cannot.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tacit.errors import ProtocolError
from tacit.protocols import crypto

GENESIS = bytes(crypto.KEY)


def follow(head: bytes, links: Iterable[bytes]) -> bytes:
    """The head to which these links lead."""
    for link in links:
        head = crypto.digest("ledger", head, link)
    return head


@dataclass(frozen=True)
class Chain:
    """Digests of everything that was let out, and the head after each.

    Example:
        >>> chain = Chain().append(b"1" * 32).append(b"2" * 32)
        >>> follow(GENESIS, chain.since(GENESIS)) == chain.head, len(chain.since(chain.head))
        (True, 0)
    """

    links: tuple[bytes, ...] = ()
    heads: tuple[bytes, ...] = (GENESIS,)

    @classmethod
    def of(cls, links: Iterable[bytes]) -> "Chain":
        """The chain with these links."""
        chain = cls()
        for link in links:
            chain = chain.append(link)
        return chain

    @property
    def head(self) -> bytes:
        """Where it stands."""
        return self.heads[-1]

    def append(self, link: bytes) -> "Chain":
        """The chain one release later."""
        return Chain((*self.links, link), (*self.heads, follow(self.head, (link,))))

    def since(self, head: bytes) -> tuple[bytes, ...]:
        """The links from a head that somebody remembers; one that this chain never had is a `ProtocolError`."""
        if head not in self.heads:
            raise ProtocolError("A client remembers a ledger head that this enclave never had: it was rolled back.")
        return self.links[self.heads.index(head) :]
