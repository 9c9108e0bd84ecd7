"""A site's file and its folder.

::

    site.toml                 the site's data and policy
    identity.key              its secret identity, readable by its user only
    directory.toml            everybody's public keys, pinned out of band
    state/
      log.jsonl               requests, answers, charges and refusals
      ledger.db               the privacy spent on these data
      last-error.txt          the last unexpected error, for the site's operator: it may quote data
      reviews/<plan>.json     accepted and refused plans, each signed by the site
      runs/<plan>/            private state between messages of a plan
"""

import json
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct, to_builtins

from tacit.core import Budget, files
from tacit.core.files import ChainedFile
from tacit.core.serialization import Source, read_json, read_toml
from tacit.errors import DataError, ProtocolError, StorageError, UserError
from tacit.federation.journal import JOURNAL, AuditLog
from tacit.federation.plan.directory import Directory, new_identity, read_directory, read_identity
from tacit.federation.plan.plan import FederationPlan
from tacit.federation.site.data import SiteData, SiteSource, hold_out, read_source
from tacit.federation.site.policy import Review, SitePolicy, review, unit_objections
from tacit.protocols import crypto

if TYPE_CHECKING:
    from tacit.privacy.accountants import Accountant
    from tacit.privacy.ledger import Ledger
    from tacit.privacy.ledger_head import LedgerHead
    from tacit.privacy.unit_accounting import Charge

_TEMPLATE = """\
# A site of a federation: what it has, and what it allows. Read docs/guides/federation.md.

data = "patients.csv"              # a CSV or Parquet file or a folder of them, whose columns the plan's encoding reads;
                                   # or package.module:function of an installed package that returns a table or (x, y)
# person = "person_id"            # of a table: the column that says which rows are one person's; then persons are
                                   # protected, and only by plans with unit = "person"
held_out = 0.1                     # the fraction of the samples on which the model is evaluated, never trained
identity = "identity.key"          # this site's secret key
directory = "directory.toml"       # everybody's public keys, pinned out of band; never taken from the server
state = "state"                    # the log, the privacy ledger and accepted plans

[allow]
methods = ["dp-fedsgd", "fl-top-record-dp"]
models = {}                        # beside built-in ones: { "acme.models:net" = "sha256:…" }, tacit site pin
# columns = ["age", "outcome"]     # of a table, which plans may read; by default all but person
channels = ["secure-sum/active_server"]
epsilon = 4.0                      # of all plans together, for each unit, against the server, which knows who took part
delta = 1e-5
min_cohort = 5                   # the fewest sites in a sum
metrics = "secure-sum"             # or "none", or "plain"

# [allow.attestation]              # which enclaves are accepted, where channels has "enclave"; by default none
# measurements = []                # of trusted code, as in the policy of tacit enclave verify
"""


class SiteTable(Struct, frozen=True):
    """A site's file."""

    data: str
    allow: SitePolicy
    person: str = ""
    held_out: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    identity: Path = Path("identity.key")
    directory: Path = Path("directory.toml")
    state: Path = Path("state")


class Verdict(Struct, frozen=True):
    """A stored verdict: the plan, whether it was accepted, and the site's signature over both."""

    plan: str
    accepted: bool
    signature: str
    objections: tuple[str, ...] = ()
    name: str = ""


class _Reviewed(Struct, frozen=True):
    """The plan beside a stored verdict, in its canonical form."""

    content: dict[str, Any]


@dataclass(frozen=True)
class SiteFiles:
    """A site's file and folder.

    Attributes:
        path: the file.
        table: its content.
    """

    path: Path
    table: SiteTable

    @property
    def allow(self) -> SitePolicy:
        return self.table.allow

    @property
    def state(self) -> Path:
        return self.path.parent / self.table.state

    @property
    def ledger(self) -> Path:
        return self.state / "ledger.db"

    @property
    def has_ledger(self) -> bool:
        """Whether there are charges; an empty file after a crash is not a ledger yet."""
        return self.ledger.exists() and self.ledger.stat().st_size > 0

    @property
    def log(self) -> Path:
        return self.state / "log.jsonl"

    @cached_property
    def identity(self) -> bytes:
        return read_identity(self.path.parent / self.table.identity)

    @cached_property
    def directory(self) -> Directory:
        return read_directory(self.path.parent / self.table.directory)

    @cached_property
    def name(self) -> str:
        """The site's name in the directory, by its public key."""
        name = self.directory.name_of(crypto.public_identity(self.identity))
        if name is None:
            raise UserError(
                f"{self.path.parent / self.table.directory} does not list the public key of this site, "
                f"{crypto.public_identity(self.identity).hex()}. Ask who keeps the directory to add it."
            )
        return name

    @property
    def number(self) -> int:
        return self.directory.number(self.name)

    def journal(self) -> AuditLog:
        """The site's log, open for writing."""
        return AuditLog(self.log)

    def note_error(self, error: Exception) -> None:
        """Store the last unexpected error for the site's operator; it may quote data."""
        text = "".join(traceback.format_exception(error))
        with suppress(StorageError):
            files.make_private(self.state)
            files.write(self.state / "last-error.txt", text.encode("utf-8", "replace"), private=True)

    def folder_of(self, plan: bytes) -> Path:
        """The folder of the site's state under a plan."""
        folder = self.state / "runs" / plan.hex()[:32]
        files.make_private(folder)
        return folder

    def charges(self) -> "list[tuple[str, Charge]]":
        """The charges in the site's ledger, each with the name of its run."""
        noted = self.noted_charges
        if noted is None and not self.has_ledger:
            return []
        with self.open_ledger(noted) as ledger:
            return [(entry.run, entry.charge) for entry in ledger.entries]

    @property
    def noted_charges(self) -> "LedgerHead | None":
        """The ledger's head as the log has it: a ledger without these charges was restored, or is missing."""
        from tacit.privacy.ledger_head import LedgerHead

        if not self.log.exists():
            return None
        noted = [entry for entry in ChainedFile(self.log, JOURNAL).each_entry() if entry["event"] == "charged"]
        return LedgerHead(noted[-1]["ledger"], noted[-1]["row"], noted[-1]["head"]) if noted else None

    def open_ledger(
        self, noted: "LedgerHead | None", accountant: "Accountant | None" = None, limit: Budget | None = None
    ) -> "Ledger":
        """The site's ledger, which has all charges that its log has."""
        from tacit.privacy.ledger import Ledger
        from tacit.privacy.ledger_head import NotedHead

        known = None if noted is None else NotedHead(noted, str(self.log))
        return Ledger.open(self.ledger, None, accountant, limit=limit, noted=known)

    def review(self, plan: FederationPlan) -> Review:
        """Review a plan's cost and disclosures here; refuse a plan for another directory.

        The plan's code is imported only if the policy allows it.
        """
        plan = plan.allow(self.allow.code)
        problems = tuple(self.source.problems(plan))
        needs_data = plan.has_readable_method and not problems and plan.method.terms.protects_records
        data = self.load_data(plan) if needs_data else None
        result = review(plan, self.allow, self.charges(), 0 if data is None else data.units)
        others = [] if data is None else [*self.unit_objections(plan, data)]
        if plan.directory != self.directory:
            others.insert(0, "The plan's sites and keys are not those of this site's pinned directory.")
        result = replace(result, objections=(*others, *result.objections), problems=problems)
        if not problems:
            result = replace(result, remarks=tuple(self.source.remarks(plan)))
        if result.accepted:  # so all of its code is allowed
            train = (data or self.load_data(plan)).train
            result = replace(result, problems=tuple(plan.misfits(train, "this site's data")))
        return result

    def unit_objections(self, plan: FederationPlan, data: SiteData) -> Iterator[str]:
        """Objections to a plan whose unit differs from that of the site's data or of its ledger, or counts too many."""
        yield from unit_objections(plan, data.unit, data.units)
        charged = (charge.unit for _, charge in self.charges())
        other = next((unit for unit in charged if unit.within_client and unit is not plan.unit), None)
        if plan.method.terms.protects_records and other is not None:
            yield (
                f"This site's ledger has charges for {other}s, and the plan would charge {plan.unit}s: each account "
                f"would miss what the other released. Use plans for {other}s, or another state folder for data that "
                "no earlier plan has used."
            )

    def record(self, plan: FederationPlan, *, accepted: bool, outcome: Review) -> Verdict:
        """Store the site's verdict on a plan, signed, with the plan itself."""
        if accepted and not outcome.accepted:
            raise UserError(f"This site's {outcome.refusal}: {' '.join((*outcome.objections, *outcome.problems))}")
        signature = crypto.sign(self.identity, _verdict_statement(plan.digest, accepted=accepted))
        verdict = Verdict(plan.digest.hex(), accepted, signature.hex(), outcome.objections, plan.method_name)
        document = {**to_builtins(verdict), "content": json.loads(plan.canonical)}
        path = self._review_file(plan.digest)
        files.make_private(path.parent)
        files.write(path, (json.dumps(document, indent=2) + "\n").encode(), private=True)
        self.journal().append("accepted" if accepted else "refused", plan=plan.digest.hex(), method=plan.method_name)
        return verdict

    def verdict(self, plan: bytes) -> Verdict | None:
        """The site's verdict on the plan with this digest, if there is one; raises if its signature is invalid."""
        path = self._review_file(plan)
        if not path.exists():
            return None
        verdict = read_json(files.read(path), Verdict, Source(label=str(path), closed=False))
        statement = _verdict_statement(plan, accepted=verdict.accepted)
        try:
            crypto.verify(crypto.public_identity(self.identity), bytes.fromhex(verdict.signature), statement)
        except (ProtocolError, ValueError):
            raise UserError(f"{path} is not signed by this site. Review the plan again.") from None
        return verdict if verdict.plan == plan.hex() else None

    def accepted_plan(self, plan: bytes) -> FederationPlan | None:
        """The plan with this digest, if this site accepted it, with the code that its policy now allows."""
        verdict = self.verdict(plan)
        if verdict is None or not verdict.accepted:
            return None
        path = self._review_file(plan)
        stored = read_json(files.read(path), _Reviewed, Source(label=str(path), closed=False))
        candidate = FederationPlan.with_digest(plan, stored.content)
        return None if candidate is None else candidate.allow(self.allow.code)

    @cached_property
    def source(self) -> SiteSource:
        """The source of the site's samples, read once."""
        return read_source(self.table.data, self.path.parent, self.table.person)

    def load_data(self, plan: FederationPlan) -> SiteData:
        """The site's training and held-out data under a plan; raises `DataError` if they do not fit it."""
        problems = [*self.source.problems(plan)]
        if problems:
            raise DataError(" ".join(problems))
        own, held_out = self.source.load(plan)
        if held_out is None:
            fraction = 0.0 if plan.analysis else self.table.held_out  # every row counts, and nothing is evaluated
            return hold_out(own, fraction, self.identity, self.table.data)
        return SiteData.of(own, held_out, self.table.data)

    def problems(self) -> Iterator[str]:
        """Accepted plans that the data no longer fit, with reasons, as sentences."""
        for path in sorted((self.state / "reviews").glob("*.json")):
            digest = bytes.fromhex(read_json(files.read(path), Verdict, Source(label=str(path), closed=False)).plan)
            plan = self.accepted_plan(digest)
            for problem in () if plan is None else self.source.problems(plan):
                yield f"The plan {digest.hex()[:16]} is not trained here: {problem}"

    def _review_file(self, plan: bytes) -> Path:
        return self.state / "reviews" / f"{plan.hex()[:32]}.json"


def read_site(path: Path) -> SiteFiles:
    """The site in a file; errors for unknown keys and wrong types say what to write."""
    return SiteFiles(path, read_toml(path, SiteTable))


def init_site(path: Path) -> bytes:
    """Write a commented file and the site's identity key, if they do not exist; returns the public key.

    Only their user can read them, and the folder, if it is new.
    """
    if not path.exists():
        files.write(path, _TEMPLATE.encode(), parents=True, private=True)
    return new_identity(path.parent / read_site(path).table.identity)


def _verdict_statement(plan: bytes, *, accepted: bool) -> bytes:
    return crypto.digest("federation review", plan, b"accepted" if accepted else b"refused")
