"""Certificates and start-up kits from NVFLARE's provisioning, hardened.

Hardened means: jobs may name no class; sites launch no jobs and stream no logs; storage lies in the kit; folders are
private; and no role has a permission. Permissions alone protect nothing, because NVFLARE checks them only if a request
asks for it: `accepted_messages` decides what reaches server and sites.
"""

import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct
from nvflare.lighter.constants import CtxKey
from nvflare.lighter.impl.cert import CertBuilder
from nvflare.lighter.impl.static_file import StaticFileBuilder
from nvflare.lighter.impl.workspace import WorkspaceBuilder
from nvflare.lighter.provision import prepare_project
from nvflare.lighter.provisioner import Provisioner

from tacit.core import files
from tacit.core.serialization import Source, read_json, read_toml
from tacit.errors import StorageError, UserError, expect

PARTICIPANTS = "participants.toml"
SERVER_KIT, SITES, AUTHORITY = "server", "sites", "authority"
PROJECT = "tacit"
DAYS = 360
_COMPONENTS = "tacit.federation.transport.nvflare.components"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?")
_DOCUMENTS = Path(__file__).with_name("kit")  # no permissions; no local port in clear text; a bounded log
_JOBS = ("job_scheduler", "job_manager", "job_store")  # NVFLARE's server does not start without them
_SILENT = logging.Logger("kits", logging.CRITICAL + 1)  # hides NVFLARE's progress; its errors are raised
_RESOURCES = ("resource_manager", "resource_consumer")  # nor does its client without these


@dataclass(frozen=True)
class Participants:
    """The participants of a federation, from its file.

    Attributes:
        host: the server's host name, also in its certificate.
        port: its port.
        sites: the sites' names.
        days: how long certificates are valid.
    """

    host: str
    port: int
    sites: tuple[str, ...]
    days: int = DAYS

    def __post_init__(self) -> None:
        expect(bool(self.host), "host to be the server's name in the network")
        expect(0 < self.port < 65536, f"port={self.port} in 1 to 65535")
        expect(len(set(self.sites)) == len(self.sites) > 0, "sites to be a list of different names")
        for name in self.sites:
            expect(
                bool(_NAME.fullmatch(name)) and name not in (SERVER_KIT, self.host),
                f"a site's name of at most 50 lower-case letters, digits and hyphens, not the server's, got {name!r}",
            )
        expect(self.days > 0, f"days={self.days} > 0")

    @classmethod
    def load(cls, folder: Path) -> "Participants":
        """Read the file in the folder of a federation."""
        if not (folder / PARTICIPANTS).exists():
            raise UserError(
                f"Expected {folder} to be the folder of a federation, but it holds no {PARTICIPANTS}. "
                "Give the folder that tacit federation init made."
            )
        return read_toml(folder / PARTICIPANTS, cls)


TEMPLATE = """\
# Who takes part. Run `tacit federation init` again after a change: it makes the kits that do not exist yet.
host = "{host}"            # the server's name in the network, as sites reach it; its certificate carries it
port = {port}                   # the only port that must be open, and only at the server
sites = [{sites}]
# days = 360                  # how long certificates are valid
"""


def make_kits(folder: Path, admins: dict[str, str] | None = None) -> list[Path]:
    """Make the missing start-up kits: the server's, and one for each site.

    The authority's key stays in the federation's folder. The sites' TLS keys are created here, in their kits only.

    Args:
        folder: the folder with `participants.toml`.
        admins: additional NVFLARE users and their roles, for tests only.

    Returns:
        The folders of the new kits.
    """
    participants = Participants.load(folder)
    missing = [name for name in participants.sites if not (folder / SITES / name).exists()]
    new_server = not (folder / SERVER_KIT).exists()
    if not missing and not new_server and not admins:
        return []
    with _private(folder) as work:
        output = _provision(folder, work, participants, missing, admins or {})
        kits = {folder / SERVER_KIT: output / participants.host} if new_server else {}
        kits |= {folder / SITES / name: output / name for name in missing}
        kits |= {folder / "admins" / name: output / name for name in admins or {}}
        for target, source in kits.items():
            if "admins" not in target.parts:
                _harden(source)
            files.make_private(target.parent)
            shutil.move(source, target)
        _keep_authority(folder, work)
    return list(kits)


@contextmanager
def _private(folder: Path) -> Iterator[Path]:
    """A temporary folder; only its user can read files written in this block."""
    before = os.umask(0o077)
    try:
        with files.storage_errors(folder), tempfile.TemporaryDirectory(dir=folder, prefix=".kits-") as work:
            yield Path(work)
    finally:
        os.umask(before)


def _provision(
    folder: Path, work: Path, participants: Participants, missing: list[str], admins: dict[str, str]
) -> Path:
    """Let NVFLARE make certificates and kits; returns the folder with each participant's kit."""
    if (folder / AUTHORITY).exists():
        shutil.copytree(folder / AUTHORITY, work / PROJECT / "state")
    server = {"name": participants.host, "type": "server", "org": SERVER_KIT, "fed_learn_port": participants.port}
    clients = [{"name": name, "type": "client", "org": name.replace("-", "_")} for name in missing]  # without hyphens
    users = [{"name": name, "type": "admin", "org": SERVER_KIT, "role": role} for name, role in admins.items()]
    project = prepare_project(
        {
            "api_version": 3,
            "name": PROJECT,
            "description": "A federation of Tacit",
            "participants": [{**server, "connection_security": "mtls"}, *clients, *users],
        }
    )
    builders = [
        WorkspaceBuilder(),
        StaticFileBuilder(config_folder="config", scheme="grpc"),
        CertBuilder(root_valid_days=participants.days),
    ]
    context = Provisioner(str(work), builders).provision(project, logger=_SILENT)
    if context.get(CtxKey.BUILD_ERROR):
        raise StorageError(f"NVFLARE could not make the start-up kits: {'; '.join(context.get(CtxKey.ERRORS, []))}.")
    return Path(context[CtxKey.CURRENT_PROD_DIR])


def _keep_authority(folder: Path, work: Path) -> None:
    """Store the authority's certificate and key, and no others."""
    state = json.loads((work / PROJECT / "state" / "cert.json").read_text())
    authority = {name: value for name, value in state.items() if name.startswith("root_")}
    files.make_private(folder / AUTHORITY)
    files.write(folder / AUTHORITY / "cert.json", json.dumps(authority).encode(), private=True)


def _harden(kit: Path) -> None:
    """Restrict NVFLARE's kit to a federation's needs."""
    local = kit / "local"
    resources = json.loads((local / "resources.json.default").read_text())
    at_server = "servers" in resources
    kept, ours = (_JOBS, "ServerComponent") if at_server else (_RESOURCES, "SiteComponent")
    components = [part for part in resources["components"] if part["id"] in kept]
    components.append({"id": "tacit", "path": f"{_COMPONENTS}.{ours}", "args": {}})
    resources |= {"components": components, "class_allow_list": [], "class_list_enforcement_mode": "enforce"}
    resources |= {} if at_server else {"allow_log_streaming": False}
    (local / "resources.json").write_text(json.dumps(resources, indent=2))
    for document in _DOCUMENTS.glob("*.json"):
        shutil.copyfile(document, local / document.name)
    for unused in (
        *kit.glob("startup/*.sh"),
        *kit.glob("**/readme.txt"),
        *local.glob("*.default"),
        *local.glob("*.sample"),
    ):
        unused.unlink()


class _Named(Struct, frozen=True):
    fqsn: str


class _SiteKit(Struct, frozen=True):
    """The part of a site's fed_client.json that Tacit reads."""

    client: _Named


def name_in_kit(kit: Path) -> str:
    """The name of the site in a start-up kit."""
    if not (file := kit / "startup" / "fed_client.json").exists():
        what = "that of the server" if (kit / "startup" / "fed_server.json").exists() else "no startup/fed_client.json"
        raise UserError(
            f"Expected a site's start-up kit in {kit}, got {what}. Give the folder that you received with --kit."
        )
    return read_json(files.read(file), _SiteKit, Source(label=str(file), closed=False)).client.fqsn


def place_storage(kit: Path) -> None:
    """Set the server's storage to its kit's current place: NVFLARE takes absolute paths only."""
    file, store = kit / "local" / "resources.json", kit.absolute() / "store"
    resources = read_json(files.read(file), dict[str, Any], Source(label=str(file), closed=False))
    try:
        resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(store / "snapshots")
        for part in resources["components"]:
            if part["id"] == "job_manager":
                part["args"]["uri_root"] = str(store / "jobs")
    except (LookupError, TypeError) as error:
        raise UserError(f"Expected {file} as provisioning wrote it, got other content. Restore the kit.") from error
    files.write(file, json.dumps(resources, indent=2).encode(), private=True)
