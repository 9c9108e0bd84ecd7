"""A plan from a finished simulation: its method, encoding and model, for the sites of a directory.

Settings that do not fit this many sites change, with a notice; a warning lists what the encoding reveals of rows.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tacit import methods
from tacit.core import Method, files
from tacit.core.prices import Unit
from tacit.data.encoding import ENCODING, Encoding
from tacit.data.table_task import TableModel
from tacit.errors import TacitError, UserError, expect
from tacit.federation.channels.interface import channel_of
from tacit.federation.plan.directory import Directory
from tacit.federation.plan.encoded_columns import describe_public
from tacit.federation.plan.plan import FederationPlan, Timeouts, adapt_to_sites
from tacit.runs.directory import read_encoding, read_manifest
from tacit.runs.manifest import Manifest

EVALUATE_EVERY = 10
RETRIES = 10


@dataclass(frozen=True)
class PlanFromRun:
    """A plan, and its differences from the run.

    Attributes:
        plan: the plan.
        encoding: its encoding.
        changes: changes for these sites, with reasons, as sentences.
        warnings: what to consider before sharing the plan, as sentences.
    """

    plan: FederationPlan
    encoding: Encoding
    changes: tuple[str, ...]
    warnings: tuple[str, ...]

    def write(self, path: Path, run: Path, sites: Path) -> Path:
        """Write the plan, and beside it the encoding, whose path is returned; raises if a file exists."""
        encoding = path.parent / ENCODING
        for file in (path, encoding):
            expect(not file.exists(), f"no {file} yet", "Remove it, or write the plan into another folder.")
        files.write(encoding, self.encoding.to_bytes(), parents=True)
        relative = os.path.relpath(sites, path.parent)
        files.write(path, self.to_toml(run, relative, encoding.name).encode())
        return encoding

    def to_toml(self, run: Path, sites: str, encoding: str) -> str:
        """The content of the plan's file, with its encoding beside it."""
        plan, timeouts = self.plan, self.plan.timeouts
        comments = "".join(f"# {sentence}\n" for sentence in (*self.changes, *self.warnings))
        lines = {
            "method": (_toml(plan.method_name), ""),
            "args": (_table(plan.args), ""),
            "model": (_toml(plan.model), "built in; or package.module:function of an installed package"),
            **({"model_args": (_table(plan.model_args), "")} if plan.model_args else {}),
            "encoding": (_toml(encoding), "how columns of the sites' tables become numbers: known to all sites"),
            **({"loss": (_toml(plan.loss), "")} if plan.loss else {}),
            "sites": (_toml(sites), "everybody's public keys"),
            "unit": (_toml(plan.unit.value), "whose data the guarantee is about, where the method protects records"),
            **({"records": (_toml(plan.records), "that every site has at least")} if plan.records else {}),
            "seed": (_toml(plan.seed), "decides what may be public, such as the first weights"),
            "min_cohort": (_toml(plan.min_cohort), "the fewest sites in a sum; a site may require more"),
            "evaluate_every": (_toml(plan.evaluate_every), "rounds; on what sites hold out"),
            "timeouts": (_table({"train": timeouts.train, "message": timeouts.message}), "seconds"),
        }
        settings = "".join(f"{key} = {value}{f'  # {why}' if why else ''}\n" for key, (value, why) in lines.items())
        return f"# A plan from the run {run}. Explained by: tacit federation explain.\n{comments}\n{settings}"


def plan_from_run(run: Path, directory: Directory) -> PlanFromRun:
    """The plan to train a finished run's model at the sites of a directory.

    Raises `UserError`, with a sentence, for a run whose method, model or data cannot be named in a plan.
    """
    manifest = read_manifest(run)
    encoding, model = _encoding_and_model(run, manifest)
    sites = len(directory.names)
    args, changes = _adapt_args(manifest, sites)
    method = methods.make(manifest.method.name, args)
    loss = manifest.task.loss
    plan = FederationPlan(
        method_name=manifest.method.name,
        model=model.name,
        directory=directory,
        args=args,
        model_args={"hidden": model.hidden} if model.name == "mlp" else {},
        loss="" if loss == repr(encoding.known_target.loss) else loss,
        public="",
        seed=manifest.seed,
        evaluate_every=EVALUATE_EVERY,
        min_cohort=_min_cohort(method, sites),
        retries=RETRIES,
        records=min(manifest.task.sizes) if method.terms.protects_records and method.terms.record_bound is None else 0,
        unit=manifest.task.unit if method.terms.protects_records else Unit.RECORD,
        timeouts=Timeouts(),
        encoding=encoding,
    )
    plan.check_channel()
    _ = plan.run_spec().simulation.initial_state  # a plan that cannot run is not written
    return PlanFromRun(plan, encoding, tuple(changes), tuple(_warnings(plan, encoding, manifest.task.args or {})))


def _encoding_and_model(run: Path, manifest: Manifest) -> tuple[Encoding, TableModel]:
    """The encoding and the model of a run; raises `UserError` if a plan cannot describe it."""
    if manifest.status != "finished":
        raise UserError(f"Expected a finished run, got {run}, which is {manifest.status}. Resume it first.")
    if not manifest.task.encoding:
        raise UserError(
            f"Expected a run that was trained on a table (tacit run --data), got {run} on the task "
            f"{manifest.task.name}, which no encoding describes to sites."
        )
    if manifest.task.model is None:
        raise UserError(
            f"Expected a run with a built-in model, logistic or mlp, got {run} with a model of its own. Write the plan "
            'by hand: model = "package.module:function" of a package that all sites install.'
        )
    if manifest.method.args is None:
        raise UserError(f"Expected a run of a method by name, got {run}, whose method was made in Python.")
    methods.check_registered(manifest.method.name)
    return read_encoding(run, manifest), manifest.task.model


def _adapt_args(manifest: Manifest, sites: int) -> tuple[dict[str, object], list[str]]:
    """The run's method arguments for this many sites, and their changes, as sentences."""
    name, args, changes = manifest.method.name, dict(manifest.method.args or {}), []
    if args.pop("patience", None) is not None:
        changes.append("patience was left out: the server of a federation has no held-out data to stop early by.")
    method = methods.make(name, args)
    fitted = manifest.method.read()
    if "size" in methods.options(name) and "size" not in args and fitted is not None and fitted.server.counts:
        args["size"] = round(fitted.server.counts[0][0])  # the manifest has no other numbers of records
        changes.append(f"size = {args['size']}: the mean number of {manifest.task.unit}s of a client of the run.")
        method = methods.make(name, args)
    if not _samples(method, sites):
        args["cohort"] = sites
        changes.append(f"cohort = {sites}: the run sampled more clients in a round than there are sites.")
        method = methods.make(name, args)
    try:
        channel_of(method)
    except UserError:
        args["channel"] = "SecureSum()"
        changes.append(f'channel = "SecureSum()": nobody computes {type(method.channel).__name__} between sites.')
        method = methods.make(name, args)
    adapted = adapt_to_sites(method, sites)
    if adapted.channel != method.channel or adapted.mechanism != method.mechanism:
        changes.append(
            f"Channel and noise are those for {sites} sites, of which a round needs {_min_cohort(method, sites)}: what "
            "suits many clients would survive no loss among few. Neither ε nor the noise of a sum changes by that."
        )
    return args, changes


def _samples(method: Method, sites: int) -> bool:
    """Whether the method's cohorts can be drawn from this many sites."""
    try:
        method.sampler.sampling(sites, 0)
    except TacitError:
        return False
    return True


def _min_cohort(method: Method, sites: int) -> int:
    """The sites left after as many dropouts as the channel tolerates."""
    adapted = adapt_to_sites(method, sites)
    cohort = math.floor(adapted.sampler.sampling(sites, 0).mean_cohort(sites))
    return max(cohort - channel_of(adapted).survival(cohort, 1).losses, 1)


def _warnings(plan: FederationPlan, encoding: Encoding, given: Mapping[str, object]) -> Iterator[str]:
    yield from filter(None, (describe_public(encoding),))
    if plan.records:
        yield f"records = {plan.records} is the smallest client of the simulation: write the smallest of the sites."
    if "size" in methods.options(plan.method_name):
        yield "size, in args, is the mean number of records of a client: write that of the sites."
    if given.get("public"):
        yield 'The run used public rows. Without public = "package.module:function", the server uses random ones.'


def _toml(value: object) -> str:
    """A number, a text or a list of them in TOML, which differs from JSON in infinity and none."""
    if value == math.inf:
        return "inf"
    return json.dumps("none" if value is None else value, ensure_ascii=False)


def _table(values: Mapping[str, object]) -> str:
    """An inline table of TOML."""
    keys = {key: key if key.isidentifier() and key.isascii() else json.dumps(key) for key in values}
    return f"{{ {', '.join(f'{keys[key]} = {_toml(value)}' for key, value in values.items())} }}"
