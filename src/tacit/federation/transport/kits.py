"""Kits: what a site and a server need to recognise each other. Secret keys never leave the machine that made them.

::

    at a site                                    at the server
    kit/                                         consortium/
      tls/*.pem       its TLS keys                 server/tls/*.pem    its TLS keys
      enrolment.toml  for the server's operator    server.toml         for the operator of every site
      server.toml     received from the server     sites/NAME.toml     received: the sites that may connect

Both sides make their certificates themselves and exchange public files; no authority signs them. Each file is signed
with the key by which the directory knows its party, so that nobody can exchange certificates. Who may connect is read
from `sites/` at each connection. During a renewal, two certificates of a party are valid.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Self

from msgspec import Meta, Struct

from tacit.core import files
from tacit.core.serialization import read_toml
from tacit.errors import ProtocolError, UserError, expect, one_line, whole
from tacit.federation.plan.directory import SERVER_KEY, new_identity, read_directory, read_identity, read_server_key
from tacit.protocols import crypto
from tacit.protocols.certificates import MAX_PEM, Certificate, CertificateKey, certificate_name, make_certificate

SERVER_FOLDER, SERVER_FILE, SITES, TLS_FOLDER, ENROLMENT = "server", "server.toml", "sites", "tls", "enrolment.toml"
PORT, DAYS, MAX_DAYS = 8002, 360, 3660
MAX_CERTIFICATES = 4  # of a party: that in use, and those of renewals
DAYS_TO_CHANGE = 7  # before the server's certificate expires, it presents the next one
DAYS_TO_WARN, SECONDS_BETWEEN_WARNINGS = 30, 24 * 3600.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST = re.compile(r"[A-Za-z0-9:][A-Za-z0-9.:-]{0,252}")
_Hex = Annotated[
    str, Meta(pattern=r"^([0-9a-f]{2})+\Z", max_length=2 * crypto.SIGNATURE, description="hexadecimal digits")
]
_Pem = Annotated[str, Meta(max_length=MAX_PEM, description="a certificate in PEM")]


class _Enrolment(Struct, frozen=True, forbid_unknown_fields=True):
    identity: _Hex
    certificates: Annotated[list[_Pem], Meta(min_length=1, max_length=MAX_CERTIFICATES)]
    signature: _Hex


class _Server(Struct, frozen=True, forbid_unknown_fields=True):
    host: str
    port: int
    identity: _Hex
    signature: _Hex
    certificates: Annotated[list[_Pem], Meta(min_length=1, max_length=MAX_CERTIFICATES)]


@dataclass(frozen=True)
class Enrolment:
    """What a server must have of a site: its identity's public half, and its certificates.

    Attributes:
        identity: the public key.
        certificates: newest first.
    """

    identity: bytes
    certificates: tuple[Certificate, ...]

    @property
    def ends(self) -> datetime:
        """When the last certificate expires."""
        return max(each.ends for each in self.certificates)

    def _statement(self) -> bytes:
        """What the site signs."""
        return crypto.digest("federation enrolment", self.identity, *(each.der for each in self.certificates))

    @classmethod
    def read(cls, path: Path) -> Self:
        """The enrolment in a file; refused unless the site's identity key has signed it."""
        table = read_toml(path, _Enrolment)
        enrolment = cls(bytes.fromhex(table.identity), tuple(map(Certificate, table.certificates)))
        _check_signed(path, "the site's identity key", enrolment.identity, table.signature, enrolment._statement())
        return enrolment

    def to_toml(self, identity: bytes) -> str:
        """The content of the file, signed."""
        return (
            "# A site's enrolment, for the operator of its federation's server. Nothing here is secret.\n"
            f'identity = "{self.identity.hex()}"\n'
            f'signature = "{crypto.sign(identity, self._statement()).hex()}"\n{_list(self.certificates)}'
        )


@dataclass(frozen=True)
class ServerAddress:
    """Where a site finds the server, and how it recognises it.

    Attributes:
        host: the server's name or address in the network.
        port: its port.
        identity: the public half of the server's key, which signs its requests.
        certificates: newest first; the server has one of them.
    """

    host: str
    port: int
    identity: bytes
    certificates: tuple[Certificate, ...]

    def __post_init__(self) -> None:
        expect(bool(_HOST.fullmatch(self.host)), "host to be the server's name in the network, or its address")
        whole(1, 65535, port=self.port)

    @property
    def name(self) -> str:
        """The name in the certificates, also where the server is reached under another one."""
        return self.certificates[0].name

    @property
    def target(self) -> str:
        """Host and port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def on_this_machine(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in ("localhost", "127.0.0.1", "::1")

    @classmethod
    def read(cls, path: Path) -> Self:
        """The address in a file; refused unless the server's key has signed its certificates."""
        table = read_toml(path, _Server)
        certificates = tuple(map(Certificate, table.certificates))
        described = cls(table.host, table.port, bytes.fromhex(table.identity), certificates)
        _check_signed(path, "the server's key", described.identity, table.signature, described._statement())
        return described

    def _statement(self) -> bytes:
        """What the server signs; a site may reach it under another name."""
        return crypto.digest("federation server", self.identity, *(each.der for each in self.certificates))

    def to_toml(self, key: bytes) -> str:
        """The content of the file, signed with the server's secret key."""
        return (
            "# Where the server of a federation is, for the operators of its sites. Nothing here is secret. A site\n"
            "# compares identity with the server's key in its directory.toml; host and port may be edited.\n"
            f'host = "{self.host}"\nport = {self.port}\nidentity = "{self.identity.hex()}"\n'
            f'signature = "{crypto.sign(key, self._statement()).hex()}"\n{_list(self.certificates)}'
        )


def _check_signed(path: Path, what: str, identity: bytes, signature: str, statement: bytes) -> None:
    try:
        crypto.verify(identity, bytes.fromhex(signature), statement)
    except ProtocolError:
        raise UserError(
            f"Expected {path} to be signed by {what}, {identity.hex()[:16]}, but it is not. Ask for the file again."
        ) from None


def _list(certificates: Sequence[Certificate]) -> str:
    return "certificates = [\n" + "".join(f'"""\n{each.text}""",\n' for each in certificates) + "]\n"


@dataclass(frozen=True)
class Keyring:
    """A party's TLS keys with their certificates, in a folder that its user alone can read.

    Attributes:
        folder: one file for each.
    """

    folder: Path

    def make(self, name: str, days: int, *, only: bool = False) -> None:
        """Make a new key and certificate; with `only`, remove all earlier ones, otherwise those that have expired."""
        whole(1, MAX_DAYS, days=days)
        files.make_private(self.folder)
        made = make_certificate(name, days)
        for path, earlier in self._all():
            if only or earlier.certificate.ends < datetime.now(UTC):
                path.unlink()
        if len([*self._all()]) == MAX_CERTIFICATES:
            oldest, _ = min(self._all(), key=lambda item: item[1].certificate.made)
            oldest.unlink()
        files.write(self.folder / f"{made.certificate.fingerprint[:16]}.pem", made.pem.encode(), private=True)

    def keys(self) -> list[CertificateKey]:
        """Those that have not expired, newest first."""
        now = datetime.now(UTC)
        valid = [key for _, key in self._all() if key.certificate.ends > now]
        return sorted(valid, key=lambda key: key.certificate.made, reverse=True)

    def to_present(self) -> CertificateKey:
        """The one that a server presents: the oldest, until a few days before it expires."""
        keys, soon = self.keys(), datetime.now(UTC) + timedelta(days=DAYS_TO_CHANGE)
        if not keys:
            raise UserError(f"Expected a valid certificate in {self.folder}, got none. Run tacit federation renew.")
        return next((key for key in reversed(keys) if key.certificate.ends > soon), keys[0])

    def certificates(self) -> tuple[Certificate, ...]:
        """The public halves, newest first."""
        return tuple(key.certificate for key in self.keys())

    def _all(self) -> Iterator[tuple[Path, CertificateKey]]:
        for path in sorted(self.folder.glob("*.pem")):
            if path.stat().st_mode & 0o077:
                raise UserError(f"Expected {path} to be readable by its user only. Use chmod 600 {path}.")
            yield path, CertificateKey(files.read(path, "the TLS key", limit=2 * MAX_PEM).decode("ascii", "replace"))


@dataclass(frozen=True)
class SiteKit:
    """A site's kit.

    Attributes:
        folder: the kit.
    """

    folder: Path

    @property
    def keyring(self) -> Keyring:
        """The site's TLS keys."""
        return Keyring(self.folder / TLS_FOLDER)

    @property
    def enrolment(self) -> Path:
        """The file for the server's operator."""
        return self.folder / ENROLMENT

    def make(self, identity: bytes, *, days: int = DAYS, renew: bool = False, only: bool = False) -> None:
        """Make a certificate, unless the kit has one, and the enrolment; `renew`: make a further one in any case.

        Args:
            identity: the site's secret identity key.
            days: how long the certificate is valid.
            renew: whether to make one even if there is one.
            only: whether the earlier ones become invalid, because others may have them.
        """
        files.make_private(self.folder)
        public = crypto.public_identity(identity)
        if renew or not self.keyring.keys():
            self.keyring.make(public.hex(), days, only=only)
        enrolment = Enrolment(public, self.keyring.certificates())
        files.write(self.enrolment, enrolment.to_toml(identity).encode())

    def server(self) -> ServerAddress:
        """The address of the server."""
        path = self.folder / SERVER_FILE
        if not path.exists():
            raise UserError(
                f"Expected {SERVER_FILE} of the federation's server in {self.folder}, got none. Ask the server's "
                f"operator for it, and send {self.enrolment} in return."
            )
        return ServerAddress.read(path)

    def validate(self, identity: Path, server: bytes | None = None) -> None:
        """Raise `UserError` unless a site can connect with this kit.

        Args:
            identity: the file of its identity key.
            server: the server's public key in its directory; None: not compared.
        """
        actual = self.server().identity
        if server not in (None, actual):
            raise UserError(
                f"Expected {self.folder / SERVER_FILE} of the server {server.hex()[:16]} in this site's directory, got "
                f"that of {actual.hex()[:16]}. Ask the server's operator which one is right, and replace that file."
            )
        if not self.keyring.keys():
            raise UserError(
                f"Expected a valid certificate of this site in {self.keyring.folder}, got none. Run tacit site renew, "
                f"and send {self.enrolment} to the server's operator."
            )
        if Enrolment.read(self.enrolment).identity != crypto.public_identity(read_identity(identity)):
            raise UserError(
                f"Expected the kit of this site in {self.folder}, got that of another one. Give the folder that "
                "tacit site init made with --kit."
            )


@dataclass(frozen=True)
class ServerKit:
    """The folder of a federation, on the server's machine.

    Attributes:
        folder: the folder.
    """

    folder: Path

    @property
    def private(self) -> Path:
        """The folder of its process, for its user only."""
        return self.folder / SERVER_FOLDER

    @property
    def keyring(self) -> Keyring:
        """The server's TLS keys."""
        return Keyring(self.private / TLS_FOLDER)

    @property
    def address_file(self) -> Path:
        """The file for the operators of all sites."""
        return self.folder / SERVER_FILE

    def make(self, host: str, port: int, days: int = DAYS) -> None:
        """Make the server's certificate, unless there is one, and the file for its sites."""
        whole(1, MAX_DAYS, days=days)
        whole(1, 65535, port=port)
        expect(bool(_HOST.fullmatch(host)), f"--host to be the server's name in the network, got {host!r}")
        for folder in (self.private, self.folder / SITES):
            files.make_private(folder)
        if not self.keyring.keys():
            self.keyring.make(certificate_name(host), days)
        self._write(host, port)

    def renew(self, days: int = DAYS, *, only: bool = False) -> None:
        """Make a further certificate of the server, and list it for its sites; `only`: the earlier ones end now."""
        address = self.address()
        self.keyring.make(address.name, days, only=only)
        self._write(address.host, address.port)

    def _write(self, host: str, port: int) -> None:
        public = new_identity(self.folder / SERVER_KEY)
        address = ServerAddress(host, port, public, self.keyring.certificates())
        files.write(self.address_file, address.to_toml(read_server_key(self.folder)).encode())

    def address(self) -> ServerAddress:
        """Where the server is reached."""
        if not self.address_file.exists():
            raise UserError(
                f"Expected {self.folder} to be the folder of a federation, but it has no {SERVER_FILE}. "
                "Give the folder that tacit federation init made."
            )
        return ServerAddress.read(self.address_file)

    def enrolments(self) -> dict[str, Enrolment]:
        """The sites that may connect, by name."""
        return {path.stem: Enrolment.read(path) for path in sorted((self.folder / SITES).glob("*.toml"))}

    def add(self, name: str, file: Path) -> Enrolment:
        """Let a site connect, or replace the certificates of one that may; its process need not restart."""
        self.address()
        expect(bool(_NAME.fullmatch(name)), f"a site's name of letters, digits, dots and dashes, got {name!r}")
        new, enrolled = Enrolment.read(file), self.enrolments()
        own = enrolled.pop(name, new)
        if own.identity != new.identity:
            raise UserError(
                f"Expected the enrolment of {name}, whose public key is {own.identity.hex()[:16]}, got that of "
                f"{new.identity.hex()[:16]}. If {name} has a new identity key, run tacit federation remove first."
            )
        for other, enrolment in enrolled.items():
            if enrolment.identity == new.identity:
                raise UserError(f"Expected a new site, but this one is enrolled as {other}. Remove it first.")
        self._check_directory(name, new.identity)
        files.write(self.folder / SITES / f"{name}.toml", files.read(file))
        return new

    def remove(self, name: str) -> None:
        """Let a site connect no longer, and close its connection."""
        path = self.folder / SITES / f"{name}.toml"
        if not _NAME.fullmatch(name) or not path.exists():
            raise UserError(f"Expected one of the enrolled sites {', '.join(self.enrolments())}, got {one_line(name)}.")
        path.unlink()

    def _check_directory(self, name: str, identity: bytes) -> None:
        """Raise `UserError` if the directory in this folder lists the site with another key."""
        path = self.folder / "directory.toml"
        listed = read_directory(path).identities.get(name, identity) if path.exists() else identity
        if listed != identity:
            raise UserError(
                f"Expected {name} to have the public key of {path}, {listed.hex()[:16]}, got {identity.hex()[:16]}. "
                "Ask the site, over a channel that you trust, which one is right."
            )


@dataclass
class Guests:
    """The sites that may connect, read again whenever the folder has changed.

    Attributes:
        kit: the server's kit.
        state: changes with the files.
    """

    kit: ServerKit
    state: object = None
    _by_fingerprint: Mapping[str, tuple[str, bytes]] = field(default_factory=dict)
    _enrolments: Mapping[str, Enrolment] = field(default_factory=dict)

    def refresh(self) -> None:
        """Read the folder again, if it has changed."""
        state = _state(self.kit.folder / SITES), _state(self.kit.keyring.folder)
        if state == self.state:
            return
        self._enrolments = self.kit.enrolments()
        self._by_fingerprint = {
            certificate.fingerprint: (name, enrolment.identity)
            for name, enrolment in self._enrolments.items()
            for certificate in enrolment.certificates
        }
        self.state = state

    @property
    def enrolments(self) -> Mapping[str, Enrolment]:
        """By name."""
        return self._enrolments

    def find(self, fingerprint: str) -> tuple[str, bytes] | None:
        """The name and the public key of the site with this certificate."""
        return self._by_fingerprint.get(fingerprint)


def _state(folder: Path) -> list[tuple[str, int, int]]:
    stats = ((path.name, path.stat()) for path in sorted(folder.iterdir()))
    return [(name, stat.st_mtime_ns, stat.st_ino) for name, stat in stats]


def warn_of_expiry(kept: Mapping[str, datetime], now: datetime | None = None) -> Iterator[str]:
    """Sentences on certificates, by their owner's name, that expire soon."""
    for name, ends in kept.items():
        days = (ends - (now or datetime.now(UTC))).days
        if days < DAYS_TO_WARN:
            yield f"The certificate of {name} expires in {max(days, 0)} days, on {ends:%Y-%m-%d}. Renew it."
