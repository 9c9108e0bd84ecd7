"""The manifest of a run: everything that determines its result; of the machine, only its type of CPU."""

import hashlib
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal, Self

import torch

from tacit import __version__
from tacit.core import Method, Randomness
from tacit.core.plain_form import canonical
from tacit.core.prices import ClientUnits, Unit
from tacit.core.schema import Options
from tacit.core.serialization import Source, read_json
from tacit.core.worker_choice import Waves
from tacit.data import Task
from tacit.data.table_task import TableModel
from tacit.errors import RunError, UserError
from tacit.privacy.ledger_head import LedgerHead
from tacit.runs import data_key

MANIFEST_FORMAT = 2
NEW_RUN = "Start a new run, or use the version of Tacit that wrote this one."
Status = Literal["running", "interrupted", "failed", "finished"]


@dataclass(frozen=True, kw_only=True)
class MethodEntry:
    """A method in a manifest.

    Attributes:
        name: the method's name.
        args: the arguments of its factory; None if it was not made by name.
        form: the method in its canonical form, with all of its pieces.
        nominal: privacy figures that its paper states, which are not a guarantee.
    """

    name: str
    args: Options | None
    form: Mapping[str, object]
    nominal: Mapping[str, float] = field(default_factory=dict)

    @property
    def canonical(self) -> str:
        """The text of the form, by which methods are compared."""
        return canonical(dict(self.form))

    def read(self) -> Method | None:
        """The method; None if it has pieces that are not Tacit's own, or that this version does not know."""
        try:
            return Method.from_plain(self.form)
        except UserError:
            return None


@dataclass(frozen=True, kw_only=True)
class TaskEntry:
    """A task in a manifest.

    Attributes:
        name: the task's name.
        args: the arguments of its factory; None if it was not made by name.
        clients: the number of clients.
        samples: the number of training samples of all clients; 0 where noise hides who they are, and so how many.
        parameters: the number of trainable parameters of the model.
        loss: the loss's `repr`.
        data: a digest of all samples, including held-out ones, and of who owns them, with the key of their owner
            (`data_key`).
        not_covered: what no guarantee of a run on the task covers, as sentences.
        sizes: the number of records of every client, if a guarantee depends on it and lists it, else 1; empty: no
            records are protected.
        unit: what `sizes` count: records, or persons where the task assigns records to them.
        clients_per_person: the most clients at which one person has records, if known; otherwise 0.
        encoding: the digest of the encoding of its table, which is beside the manifest; empty: there is none.
        model: the built-in model of its table; None: it has another one.
    """

    name: str
    args: Options | None
    clients: int
    samples: int
    parameters: int
    loss: str
    data: str
    not_covered: tuple[str, ...] = field(default=(), repr=False)  # the name of a run does not depend on it
    sizes: tuple[int, ...] = field(default=(), repr=False)
    unit: Unit = field(default=Unit.RECORD, repr=False)
    clients_per_person: int = field(default=0, repr=False)
    encoding: str = field(default="", repr=False)
    model: TableModel | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        task: Task,
        args: Options | None,
        parameters: int,
        *,
        units: ClientUnits | None = None,
        counted: bool = True,
    ) -> Self:
        """The entry of a task; `units`: the public ones within clients, if any are protected."""
        population = task.population
        others = [*(task.public or ()), *(task.test or ())]
        others += [each for each in (task.owners, population.persons) if each is not None]
        return cls(
            name=task.name,
            args=args,
            clients=len(population),
            samples=len(population.sample_indices) if counted else 0,
            parameters=parameters,
            loss=repr(task.loss),
            data=data_key.data_digest(
                data_key.load(), population.x, population.y, population.sample_indices, population.offsets, *others
            ),
            not_covered=task.not_covered,
            sizes=() if units is None else units.sizes,
            unit=population.unit,
            clients_per_person=0 if units is None else units.clients,
            encoding="" if task.encoding is None else task.encoding.digest,
            model=task.model if isinstance(task.model, TableModel) else None,
        )

    @property
    def units(self) -> ClientUnits | None:
        """The units within clients; None: no guarantee depends on them."""
        return ClientUnits(self.sizes, self.unit, self.clients_per_person) if self.sizes else None


@dataclass(frozen=True, kw_only=True)
class FederationEntry:
    """The federation of a run, as its server knows it.

    Attributes:
        plan: the digest of the plan, which names everything that sites accept.
        sites: the names of the enrolled sites, in the order of their numbers.
        keys: their public keys.
        server: that of the server.
        records: the fewest records, or persons, that any site has, as the plan declares; 0: not declared.
        min_cohort: the fewest sites with which a round ends.
        evaluate_every: rounds between evaluations on the sites' held-out data; 0: never.
    """

    plan: str
    sites: tuple[str, ...]
    keys: tuple[str, ...]
    server: str
    records: int
    min_cohort: int
    evaluate_every: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What was run. Two runs with seeded noise whose manifests differ only in status and ledger give the same results.

    `caveat` is the warning that the method's channel attaches to every result; empty: none. `noise` is `seeded` for a
    simulation with reproducible noise, which protects against nobody who knows the seed. `key` is the digest of the
    run's secret key, which reveals nothing of it; empty if the noise is seeded. `ledger` is
    the head of the privacy ledger when the manifest was last written, to detect a ledger that was rolled back since.
    `federation` describes the sites of a run between sites; None: it is a simulation.
    """

    method: MethodEntry
    task: TaskEntry
    seed: int
    device: str
    evaluate_every: int
    versions: Mapping[str, str]
    caveat: str = ""
    randomness: Randomness = "seeded"
    waves: Waves = "fitting"
    key: str = ""
    format: int = MANIFEST_FORMAT
    status: Status = "running"
    ledger: LedgerHead | None = None
    federation: FederationEntry | None = None

    @property
    def run(self) -> str:
        """The run's name in a ledger: equal for repetitions of the same run, whose noise is the same."""
        decisive = {name: value for name, value in self._decisive().items() if name != "noise"}
        text = json.dumps({**decisive, "key": self.key} if self.key else decisive, default=str, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def to_bytes(self) -> bytes:
        """The manifest as indented JSON."""
        return (json.dumps(asdict(self), indent=2, default=str) + "\n").encode()

    @classmethod
    def from_bytes(cls, content: bytes, file: Path) -> Self:
        """The manifest in a JSON document; raises `RunError` for anything else and for another format."""
        source = Source(label=f"the manifest {file}", error=RunError, advice=NEW_RUN)
        manifest = read_json(content, cls, source, version=MANIFEST_FORMAT)
        if not data_key.key_name(manifest.task.data):  # else, whoever knows all rows but one could test the last
            raise source.problem(f"Expected data of {source.label} to be a digest with a key, got another text.")
        if manifest.federation is not None and len(manifest.federation.sites) != manifest.task.clients:
            raise source.problem(f"Expected as many sites as clients in {source.label}.")
        try:
            manifest.method.canonical  # noqa: B018, which is computed here
        except ValueError:
            raise source.problem(f"Expected finite numbers in the method of {source.label}.") from None
        return manifest

    def check_versions(self, path: Path) -> None:
        """Raise `RunError` unless the run was started with the present versions of Tacit and PyTorch."""
        installed = versions()
        for name in ("tacit", "torch"):
            recorded = self.versions.get(name)
            if recorded != installed[name]:
                raise RunError(
                    f"The run in {path} was started with another version, {name} {recorded}; this is "
                    f"{installed[name]}. Use that version, or start a new run."
                )

    def check_same(self, other: "Manifest", path: Path) -> None:
        """Raise `RunError` unless the other manifest describes the same run, however method and task were made."""
        mine, theirs = self._decisive(), other._decisive()
        for name in mine | theirs:
            if mine.get(name) == theirs.get(name):
                continue
            if name == "task" and replace(self.task, data=other.task.data) == other.task:
                self._check_data_key(path)
            if name == "method" and self.method.read() is None:
                raise RunError(
                    f"The run in {path} has a method that this version of Tacit cannot read: {self.method.canonical}. "
                    "It was written by another version. Use that version, or start a new run."
                )
            if name == "task" and self.task.encoding != other.task.encoding:
                raise RunError(
                    f"The run in {path} has another encoding of its table than the present data and options give. "
                    "Give the same, or start a new run."
                )
            raise RunError(
                f"The run in {path} has another {name}: {mine.get(name)}, not {theirs.get(name)}. "
                "Give the same, or start a new run."
            )

    def _check_data_key(self, path: Path) -> None:
        """Raise `RunError` unless the digest of the data was computed with the user's present key."""
        recorded, present = data_key.key_name(self.task.data), data_key.load().digest[:8]
        if recorded != present:
            raise RunError(
                f"The run in {path} was started with the {data_key.WHAT} {recorded}, but that in {data_key.place()} is "
                f"{present}: whether these are the same data cannot be checked. Restore that key, or set "
                f"{data_key.VARIABLE} to its file; if it is lost, start a new run, which is charged anew."
            )

    def _decisive(self) -> dict[str, object]:
        return {
            "method": self.method.canonical,
            "task": replace(self.task, args=None, not_covered=()),
            "seed": self.seed,
            "device": self.device,
            "evaluate_every": self.evaluate_every,
            "randomness": self.randomness,
            "waves": self.waves,
            **({} if self.federation is None else {"plan": self.federation.plan}),
        }


def versions() -> dict[str, str]:
    """Versions of the software and the type of CPU, on which the last digits of a result depend.

    Builds of the same version count as equal. The commit is that of a checkout; it is missing in an installed package.
    """
    return {
        "tacit": __version__,
        "torch": torch.__version__.partition("+")[0],
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("numpy", "scipy")},
        "cpu": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        **({"commit": _commit()} if _commit() else {}),
    }


@cache
def _commit() -> str:
    """The commit of the checkout that this file is part of, with a + if it was changed since; empty outside of one."""
    folder = Path(__file__).parent
    command = ["git", "-C", str(folder), "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    tracked = ["git", "-C", str(folder), "ls-files", "--error-unmatch", Path(__file__).name]
    try:
        subprocess.run(tracked, capture_output=True, check=True, timeout=10)
        return subprocess.run(command, capture_output=True, check=True, timeout=10, text=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
