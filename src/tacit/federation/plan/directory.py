"""The directory of a federation: the public keys of server and sites, pinned at every site.

::

    server = "7f1c0c6f9c0b0e3a5d0f8a1b6f0c2d9e4b7a8c5d6e1f2031425364758697a8b9"

    [sites]
    hospital-a = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    hospital-b = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"

Protocols identify a site by its number, which is its place in the order of names. A site answers only requests that
are signed with the server's key, and server and other sites believe only replies that are signed with the site's.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from tacit.core import files, secret_file
from tacit.core.serialization import read_toml
from tacit.errors import UserError, expect
from tacit.protocols import crypto

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SERVER_KEY = "server.key"  # in the folder of a federation
_Key = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z", description="a public key as 64 hexadecimal digits")]


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    server: _Key
    sites: Mapping[str, _Key]


@dataclass(frozen=True)
class Directory:
    """The enrolled sites and their public identities (Ed25519), by name, and that of the server.

    Example:
        >>> directory = Directory({"b": bytes(31) + b"1", "a": bytes(31) + b"2"}, server=bytes(31) + b"3")
        >>> directory.names, directory.number("b")
        (('a', 'b'), 1)
    """

    identities: Mapping[str, bytes]
    server: bytes

    def __post_init__(self) -> None:
        expect(len(self.identities) > 0, "a directory with at least one site, got none")
        for name, identity in self.identities.items():
            expect(
                _NAME.fullmatch(name) is not None, f"a site's name of letters, digits, dots and dashes, got {name!r}"
            )
            expect(len(identity) == crypto.KEY, f"a public key of {crypto.KEY} bytes for {name}, got {len(identity)}")
        expect(len(self.server) == crypto.KEY, f"a public key of {crypto.KEY} bytes for the server")
        if len({self.server, *self.identities.values()}) < len(self.identities) + 1:
            raise UserError("Expected different public keys of the server and of every site, but two share one.")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All names, in the order of the sites' numbers."""
        return tuple(sorted(self.identities))

    def number(self, name: str) -> int:
        """The number of a site."""
        return self.names.index(name)

    def name_of(self, identity: bytes) -> str | None:
        """The name of the site with this public key; None: not enrolled."""
        return next((name for name, key in self.identities.items() if key == identity), None)

    @cached_property
    def by_number(self) -> dict[int, bytes]:
        """The public keys by number, for protocols."""
        return {number: self.identities[name] for number, name in enumerate(self.names)}

    def to_toml(self) -> str:
        """The directory as the content of its file."""
        head = f'server = "{self.server.hex()}"\n\n[sites]\n'
        return head + "".join(f'"{name}" = "{self.identities[name].hex()}"\n' for name in self.names)


def read_directory(path: Path) -> Directory:
    """The directory in a file."""
    table = read_toml(path, _Table)
    return Directory({name: bytes.fromhex(key) for name, key in table.sites.items()}, bytes.fromhex(table.server))


def write_directory(path: Path, directory: Directory) -> None:
    """Write the directory to a file."""
    files.write(path, directory.to_toml().encode())


def new_identity(path: Path) -> bytes:
    """Create a party's identity key, private to its user, or keep an existing one; returns the public half."""
    secret_file.make(path)
    return crypto.public_identity(read_identity(path))


def read_server_key(folder: Path) -> bytes:
    """The secret key with which the server of a federation's folder signs its requests."""
    path = folder / SERVER_KEY
    if not path.exists():
        raise UserError(
            f"Expected the server's secret key in {path}, which does not exist. tacit federation init makes one for a "
            "new federation; if it is lost, all sites need a new directory and a new plan."
        )
    return secret_file.read(path, "server's key")


def read_identity(path: Path) -> bytes:
    """A party's identity key; raises if others can read the file."""
    return secret_file.read(path, "identity key")
