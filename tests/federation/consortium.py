"""A federation in one process, for several tests: files of a few sites, a plan that all accept, and its server."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import acme
from tacit.core import files
from tacit.data.encoding import Encoding, TargetColumn
from tacit.federation import messages as wire
from tacit.federation.plan import entry_points
from tacit.federation.plan.directory import SERVER_KEY, Directory, new_identity, read_identity, write_directory
from tacit.federation.plan.plan import FederationPlan, read_plan
from tacit.federation.server.server import FederationServer
from tacit.federation.site.accepted_plan import Secrets, SiteProgress, fresh_secrets, seeded_secrets
from tacit.federation.site.files import read_site
from tacit.federation.site.service import Site
from tacit.federation.transport.endpoints import InProcess, Transport
from tacit.protocols import crypto

MODEL = "acme:net"
SERVER = bytes(range(1, 33))  # the server's secret key
NAMES = tuple(f"site-{number}" for number in range(8))


def toml(value: object) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f'"{key}" = {toml(item)}' for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def table(content: Mapping[str, object]) -> str:
    return "".join(f"{key} = {toml(value)}\n" for key, value in content.items())


def allow(**changes: object) -> dict[str, object]:
    defaults: dict[str, object] = {
        "methods": ["fedavg", "fl-std", "fl-std-dp", "fl-top", "geyer", "ifca"],
        "models": {MODEL: entry_points.pin(MODEL, "the model")},
        "channels": ["plain", "secure-sum/active_server"],
        "epsilon": float("inf"),
        "delta": 1e-5,
        "min_cohort": 3,
        "metrics": "plain",
        "trust_server": True,
    }
    return {**defaults, **changes}


@dataclass(frozen=True)
class Consortium:
    """Folders of a server and of sites, with a directory that lists all of them."""

    folder: Path
    count: int

    @classmethod
    def at(cls, folder: Path, count: int = 5, held_out: float = 0.0, **policy: object) -> "Consortium":
        self = cls(folder, count)
        keys = {name: new_identity(self.home(name) / "identity.key") for name in NAMES[:count]}
        directory = Directory(keys, crypto.public_identity(SERVER))
        for number, name in enumerate(NAMES[:count]):
            write_directory(self.home(name) / "directory.toml", directory)
            content = {"data": f"acme:load_{number}", "held_out": held_out}
            text = table(content) + "\n[allow]\n" + table(allow(**policy))
            (self.home(name) / "site.toml").write_text(text)
        write_directory(folder / "directory.toml", directory)
        files.write(folder / SERVER_KEY, SERVER.hex().encode(), private=True)
        return self

    @property
    def names(self) -> tuple[str, ...]:
        return NAMES[: self.count]

    def home(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def give_tables(self, *lines: str) -> None:
        """Let sites read their samples from tables, in which two rows after each other are one person's."""
        for number, name in enumerate(self.names):
            x, y = acme.samples(number)
            header = ",".join([*(f"x{column}" for column in range(x.shape[1])), "person_id", "outcome"])
            rows = (
                ",".join([*map(repr, values), f"P{row // 2}", str(label)])
                for row, (values, label) in enumerate(zip(x.tolist(), y.tolist(), strict=True))
            )
            (self.home(name) / "visits.csv").write_text("\n".join([header, *rows]))
            self.change(name, f'data = "acme:load_{number}"', "\n".join(['data = "visits.csv"', *lines]))

        (self.folder / "encoding.json").write_bytes(visits_encoding().to_bytes())

    def change(self, name: str, old: str, new: str) -> None:
        """Change a site's file."""
        path = self.home(name) / "site.toml"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def plan(self, method: str = "fl-std", name: str = "plan.toml", **changes: Any) -> FederationPlan:
        """The plan as its author has it, who trusts the code that it names."""
        return read_plan(self.write_plan(method, name, **changes), trusted=True)

    def write_plan(self, method: str, name: str = "plan.toml", **changes: Any) -> Path:
        args = {**({"rounds": 2} if method else {}), **changes.pop("args", {})}
        content = {"method": method, "args": args, "model": MODEL, "sites": "directory.toml", "seed": acme.SEED}
        (self.folder / name).write_text(table({**content, "evaluate_every": 0, **changes}))
        return self.folder / name

    def accept(self, plan: FederationPlan, *names: str) -> None:
        for name in names or self.names:
            site = read_site(self.home(name) / "site.toml")
            site.record(plan, accepted=True, outcome=site.review(plan))

    def site(self, name: str, *, seeded: bool = False) -> Site:
        keys: Secrets = seeded_secrets(acme.SEED, self.names.index(name)) if seeded else fresh_secrets
        return Site.open(self.home(name) / "site.toml", keys)

    def sites(self, *, seeded: bool = False) -> dict[str, Site]:
        return {name: self.site(name, seeded=seeded) for name in self.names}

    def identity(self, name: str) -> bytes:
        return read_identity(self.home(name) / "identity.key")


def visits_encoding() -> Encoding:
    """How the tables of `give_tables` become the inputs and classes of the consortium's model."""
    target = TargetColumn("outcome", ("0", "1", "2"))
    return Encoding(numbers={f"x{column}": (-4.0, 4.0) for column in range(12)}, indicators=(), target=target)


def transport(sites: Mapping[str, Site]) -> InProcess:
    return InProcess({name: site.handle for name, site in sites.items()})


def as_server(site: Site, verb: str, request: wire.Request) -> bytes:
    """The request as bytes, as the server signs it for this site, with the site's ticket for its run."""
    if isinstance(request, wire.SiteRequest | wire.Preparation):
        path = site.files.state / "runs" / request.plan.hex()[:32] / "progress.json"
        progress = SiteProgress.read(path, site.files.identity)
        ticket = progress.ticket(site.files.identity, request.plan, request.run)
        request = msgspec.structs.replace(request, ticket=ticket)
    return signed_by_server(verb, request, site.name)


def signed_by_server(verb: str, request: wire.Request, name: str) -> bytes:
    """The request as bytes, as the server signs it for the site of this name, whatever its ticket."""
    return wire.pack(wire.sign_request(verb, request, NAMES.index(name), SERVER))


def send(site: Site, verb: str, request: wire.Request) -> bytes:
    """A site's reply to a request of the server."""
    return site.handle(verb, as_server(site, verb, request))


def server(plan: FederationPlan, way: Transport, *, seeded: bool = False, **options: Any) -> FederationServer:
    return FederationServer(
        plan, way, SERVER, randomness="seeded" if seeded else "secret", sleep=lambda _: None, **options
    )
