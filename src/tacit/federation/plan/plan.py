"""The plan of a federated run: the model, the method, the sites, and timeouts. All sites see the same plan.

::

    method = "fl-top-record-dp"
    args = { rounds = 100, ratio = 0.02, epsilon = 3, delta = 1e-5 }
    model = "mlp"                           # a built-in one, or package.module:function of an installed package
    model_args = { hidden = 32 }            # of a built-in model
    encoding = "encoding.json"              # how rows of the sites' tables become numbers; none: sites have tensors
    sites = "directory.toml"                # the enrolled sites and their public keys
    unit = "person"                         # where sites know which records are one person's; otherwise "record"
    timeouts = { train = 3600, message = 120 } # seconds

A plan may ask an analysis instead of training a model::

    analysis = "survival"                   # or describe, with an encoding that declares ranges and categories
    args = { time = "days", event = "died", by = "arm", epsilon = 1, delta = 1e-5, units = 5000 }
    encoding = "encoding.json"
    sites = "directory.toml"

A plan is identified by the digest of its canonical form, which includes the public keys of the server and of all sites,
and the encoding.
Any change makes another plan, which no site has accepted.

A plan is untrusted input. It names registered methods and installed functions; third-party code among them is imported
only after the plan's reader has allowed it (`code`).
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta, Struct
from msgspec import field as member
from torch import nn

from tacit import core, methods
from tacit.core import Key, Loss, Method, Randomness
from tacit.core.losses import CrossEntropy, MeanSquared
from tacit.core.prices import ClientUnits, Unit
from tacit.core.schema import list_names
from tacit.core.serialization import Source, convert, load_toml, read_json, write_json
from tacit.core.value_text import dataclasses_of, parse
from tacit.data import Population, Samples, Task
from tacit.data.encoding import Encoding, Preprocessing
from tacit.data.table_task import TABLE_MODELS, build_model, public_samples
from tacit.data.task import TestOverlap
from tacit.errors import DataError, PublicDataError, TacitError, UserError, expect
from tacit.federation.channels.interface import Arrangement, FederatedChannel, arrangements, channel_of
from tacit.federation.plan import entry_points
from tacit.federation.plan.analysis import SUM_MODEL_NAME, analysis_method, analysis_model, check_analysis
from tacit.federation.plan.directory import Directory, read_directory
from tacit.federation.plan.encoded_columns import check_encoding, table_model
from tacit.federation.plan.entry_points import NO_CODE, AllowedCode
from tacit.protocols import crypto
from tacit.runs.experiment import flat_args
from tacit.runs.fitting import Sizes, fit_descent
from tacit.runs.manifest import FederationEntry
from tacit.runs.run import RunSpec, calibrate_method, check_draws_persons

FORMAT = 3
MAX_REVIEWED_ROUNDS = 10_000  # of a plan: the cost of each is computed
EXACT_BELOW = 2.0**53  # below it, a float has the digits of the whole number that it equals
Seconds = Annotated[float, Meta(gt=0, le=30 * 86_400)]  # a month: longer waits overflow the clocks of threads


class Timeouts(Struct, frozen=True):
    """Seconds that the server waits for a round's first answers (`train`), and for all others (`message`)."""

    train: Seconds = 3600.0
    message: Seconds = 120.0


class _Canonical(Struct, frozen=True, kw_only=True):
    """A plan without its sites."""

    method: str = ""
    model: str = ""
    analysis: str = ""
    args: Mapping[str, object] = member(default_factory=dict)
    model_args: Mapping[str, int] = member(default_factory=dict)
    loss: str = ""
    public: str = ""
    seed: int = 0
    evaluate_every: Annotated[int, Meta(ge=0)] = 10
    min_cohort: Annotated[int, Meta(ge=1)] = 3
    retries: Annotated[int, Meta(ge=0)] = 10
    records: Annotated[int, Meta(ge=0)] = 0
    unit: Literal["record", "person"] = "record"
    timeouts: Timeouts = member(default_factory=Timeouts)


class _Table(_Canonical, frozen=True, kw_only=True):
    """A plan as written in TOML."""

    sites: Path
    encoding: Path | None = None


_SAME = tuple(name for name in _Canonical.__struct_fields__ if name != "method")  # fields of a plan, too
_STORED = Source(label="a stored plan", advice="Review the plan again.")


@dataclass(frozen=True, kw_only=True)
class FederationPlan:
    """What a federation trains, or asks.

    Attributes:
        method_name: the name of a registered method, or of the analysis.
        model: the name of a built-in model of tables, or a function that makes a model, `package.module:function`.
        directory: the enrolled sites.
        args: the arguments of the method.
        model_args: those of a built-in model.
        loss: what clients minimise, in Python syntax; empty: the loss for the encoding's target, or cross-entropy.
        public: a function that returns public samples `(x, y)`, for methods that need them at the server; empty: random
            rows within the constants of the encoding, as in a simulation, or none.
        seed: decides what may be public, such as the first weights.
        evaluate_every: rounds between evaluations on the sites' held-out data, with one after the last; 0: never.
        min_cohort: the fewest sites with which a round ends and metrics are shown.
        retries: attempts that a run may take beyond one for each round.
        records: the least number of records, or persons, of any site, which scales the noise that sites add for them;
            0: unspecified, which suffices where all draw batches at the same rate.
        unit: the unit that a method that protects records protects within a site: records, or persons.
        timeouts: how long the server waits.
        encoding: how rows of the sites' tables become inputs and targets; None: sites have samples, not tables.
        analysis: the question to the sites' tables, instead of a method and a model; empty: there is none.
        arrangement: the plan's table for its channel, such as an enclave's; None: it has none.
        code: the third-party code that this party runs for the plan; not part of the digest.
    """

    method_name: str
    model: str
    directory: Directory
    args: Mapping[str, object]
    model_args: Mapping[str, int]
    loss: str
    public: str
    seed: int
    evaluate_every: int
    min_cohort: int
    retries: int
    records: int
    unit: Unit
    timeouts: Timeouts
    encoding: Encoding | None = None
    analysis: str = ""
    arrangement: Arrangement | None = None
    code: AllowedCode = field(default=NO_CODE, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.analysis:
            methods.check_registered(self.method_name)
            methods.validate(self.method_name, self.args)
        if self.encoding is not None:
            check_encoding(self.encoding, target=not self.analysis)
        if self.analysis:
            self._check_analysis()
        elif self.has_own_model:
            entry_points.check_name(self.model, f"the model as one of {', '.join(TABLE_MODELS)}, or")
            expect(not self.model_args, f"model_args only of a built-in model, got {list_names(self.model_args)}")
        else:
            table_model(self.model, self.model_args, self.encoding)
        if self.public:
            entry_points.check_name(self.public, "the public data")
        expect(
            self.min_cohort <= self.population,
            f"min_cohort={self.min_cohort} of at most {self.population} sites",
        )

    def _check_analysis(self) -> None:
        """Raise `UserError` for an analysis with something that only training has, or without an encoding."""
        if self.encoding is None:
            raise UserError(
                f'Expected encoding = "encoding.json" for the analysis {self.analysis}, which declares ranges and '
                "categories."
            )
        trained = {
            "model": self.model != SUM_MODEL_NAME,
            "model_args": self.model_args,
            "loss": self.loss,
            "public": self.public,
        }
        given = [name for name, value in trained.items() if value]
        expect(not given, f"no {list_names(given)} with analysis = {self.analysis!r}: nothing is trained")
        check_analysis(self.analysis, self.args, self.encoding)

    def allow(self, code: AllowedCode) -> "FederationPlan":
        """The same plan, for a party that runs this code."""
        return replace(self, code=code)

    def trust(self) -> "FederationPlan":
        """The same plan, for a party that trusts all code that it names."""
        named = () if self.analysis else (self.method_name,)
        return self.allow(AllowedCode(dict.fromkeys(self.functions.values(), ""), named))

    @property
    def functions(self) -> dict[str, str]:
        """The functions of installed packages that the plan names, by their roles."""
        named = {"the model": self.model if self.has_own_model else "", "the public data": self.public}
        return {what: name for what, name in named.items() if name}

    @property
    def has_own_model(self) -> bool:
        """Whether the model is a function of an installed package, not a built-in one."""
        return not self.analysis and self.model not in TABLE_MODELS

    @property
    def refused_code(self) -> tuple[str, ...]:
        """The plan's code that this party does not run, as sentences. Imports nothing."""
        problems = (self.code.function_problem(name, what) for what, name in self.functions.items())
        return tuple(filter(None, (self._method_problem, *problems)))

    @property
    def _method_problem(self) -> str:
        """Why this party may not build the method, a sentence; empty: it may, as any analysis."""
        return "" if self.analysis else self.code.method_problem(self.method_name)

    @property
    def has_readable_method(self) -> bool:
        """Whether this party may build the plan's method, to describe it."""
        return not self._method_problem

    def check_trusted(self, named_in: Path) -> None:
        """Raise `UserError`, which names the option, unless this party runs all code of the plan."""
        if self.refused_code:
            ours = self.analysis or methods.is_ours(self.method_name)
            names = [*self.functions.values(), *([] if ours else [f"the method {self.method_name}"])]
            raise UserError(
                f"{named_in} names code, which would be imported and called: {', '.join(names)}. Nothing was run. Read "
                "that code, and if you trust it, add --trust."
            )

    @cached_property
    def population(self) -> int:
        """The number of enrolled sites."""
        return len(self.directory.names)

    @cached_property
    def plain_args(self) -> dict[str, object]:
        """The method's arguments with one form of each number: 5 and 5.0 are the same plan."""
        return {name: _plain_number(value) for name, value in self.args.items()}

    @cached_property
    def canonical(self) -> bytes:
        """The plan as canonical JSON: equal plans have equal bytes, on every machine.

        The encoding is a string in it, because the order of its columns matters.
        """
        content = {
            **{name: getattr(self, name) for name in _SAME if name != "analysis" or self.analysis},
            "format": FORMAT,
            "method": self.method_name,
            "args": self.plain_args,
            "model_args": dict(self.model_args),
            "encoding": "" if self.encoding is None else write_json(self.encoding.to_plain()).decode(),
            "sites": {name: key.hex() for name, key in self.directory.identities.items()},
            "server": self.directory.server.hex(),
            "timeouts": {"train": float(self.timeouts.train), "message": float(self.timeouts.message)},
            "unit": self.unit.value,
        }
        if self.arrangement is not None:
            content[self.arrangement.name] = self.arrangement.canonical()
        return _canonical(content)

    @classmethod
    def from_canonical(cls, content: Mapping[str, Any]) -> "FederationPlan":
        """The plan with this canonical form, in plain values."""
        tables = arrangements(content)
        expect(content.get("format") == FORMAT, f"format {FORMAT} of a stored plan, got {content.get('format')!r}")
        fields = {key: content[key] for key in content if key not in ("format", "sites", "server", "encoding", *tables)}
        identities = {name: bytes.fromhex(key) for name, key in content["sites"].items()}
        arranged = [kind.from_canonical(content[key]) for key, kind in tables.items()]
        return cls(
            directory=Directory(identities, bytes.fromhex(content["server"])),
            encoding=read_json(content["encoding"].encode(), Encoding, _STORED) if content["encoding"] else None,
            arrangement=_only(arranged),
            **_arguments(convert(fields, _Canonical, _STORED)),
        )

    @classmethod
    def with_digest(cls, digest: bytes, content: Mapping[str, Any]) -> "FederationPlan | None":
        """The plan with this digest, if these plain values are its canonical form; others are not interpreted."""
        try:
            same = _digest(_canonical(content)) == digest
        except ValueError:  # an infinite number, which a plan cannot have
            same = False
        return cls.from_canonical(content) if same else None

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that identify the plan to all parties."""
        return _digest(self.canonical)

    @property
    def entry(self) -> FederationEntry:
        """The federation in the manifest of a run."""
        return FederationEntry(
            plan=self.digest.hex(),
            sites=self.directory.names,
            keys=tuple(key.hex() for key in self.directory.by_number.values()),
            server=self.directory.server.hex(),
            records=self.records,
            min_cohort=self.min_cohort,
            evaluate_every=self.evaluate_every,
        )

    @cached_property
    def method(self) -> Method:
        """The method as sites run it, with its noise; raises `UserError` if it cannot run between them."""
        if problem := self._method_problem:
            raise UserError(problem)
        asked = analysis_method(self) if self.analysis else methods.make(self.method_name, self.plain_args)
        method = self._fit(adapt_to_sites(asked, self.population, self.min_cohort, self.arrangement))
        if self.unit is Unit.PERSON:
            _check_person_unit(method)
        if method.terms.protects_records and method.terms.record_bound is None and not self.records:
            raise UserError(
                f"{method.name} draws batches at a rate that depends on the number of a site's {self.unit}s. "
                "Give the plan the fewest that any site has, records = …"
            )
        if method.terms.uncalibrated and method.rounds > MAX_REVIEWED_ROUNDS:
            raise UserError(
                f"Expected at most {MAX_REVIEWED_ROUNDS} rounds in a plan whose noise follows from ε, got "
                f"{method.rounds}: every site would compute it for minutes. Give the noise, or make several plans."
            )
        return calibrate_method(
            method, self.population, ClientUnits((max(self.records, 1),) * self.population, self.unit)
        )

    def _fit(self, method: Method) -> Method:
        """The method with the settings that follow from public sizes: those of the plan."""
        if not method.server.follows_sizes:
            return method
        model = None if self.has_own_model else table_model(self.model, self.model_args, self.encoding)
        return fit_descent(method, Sizes(self.population, None), model, self.encoding, self.loss_record)

    @cached_property
    def channel(self) -> FederatedChannel:
        """The federated halves of the method's channel."""
        return channel_of(self.method)

    def check_channel(self) -> None:
        """Raise `UserError` unless the plan has its channel's table, if it needs one, and no other."""
        if problem := self.channel.problem(self):
            raise UserError(problem)

    @cached_property
    def max_answers(self) -> int:
        """How often a site trains under this plan, repeated attempts included."""
        return self.method.rounds + self.retries

    @cached_property
    def max_evaluations(self) -> int:
        """How often a site evaluates a model under this plan."""
        return -(-self.method.rounds // self.evaluate_every) + self.retries if self.evaluate_every else 0

    @cached_property
    def loss_record(self) -> Loss:
        """What clients minimise."""
        if not self.loss:
            if self.encoding is None:
                return CrossEntropy()
            target = self.encoding.target if self.analysis else self.encoding.known_target
            loss: Loss = MeanSquared() if target is None else target.loss
            return loss
        losses = {name: record for name, record in dataclasses_of(core).items() if hasattr(record, "per_sample")}
        parsed: Loss = parse(self.loss, losses, "a loss")  # type: ignore[assignment]  # as far as its interface shows
        if type(parsed) not in losses.values():
            raise UserError(f"Expected a loss such as CrossEntropy(), got {self.loss}.")
        return parsed

    def task_of(self, clients: Population, public: Samples | None = None) -> Task:
        """The task of one party: the model and the loss, with this party's data."""
        overlap: TestOverlap = "intended" if self.evaluate_every else "coincidental"  # sites evaluate on their own data
        return Task(
            model=self.make_model,
            clients=clients,
            public=public,
            loss=self.loss_record,
            name=self.model,
            test_overlap=overlap,
            encoding=self.encoding,
            preprocessing=Preprocessing() if self.encoding is None else self.encoding.preprocessing,
        )

    @cached_property
    def make_model(self) -> Callable[[], nn.Module]:
        """The model's factory; an encoding sets a built-in model's inputs and outputs."""
        if self.analysis:
            return analysis_model(self)
        if not self.has_own_model:
            return table_model(self.model, self.model_args, self.encoding)
        make = self.code.load(self.model, "the model")
        if self.encoding is None:
            return make
        return build_model(make, len(self.encoding.names), self.encoding.known_target.outputs)

    def misfits(self, samples: Samples, whose: str) -> Iterator[str]:
        """Why the model cannot be trained on these samples, a sentence; empty if it can."""
        x, y = samples
        if not len(y):
            yield f"Expected samples in {whose}, got none."
            return
        some = torch.tensor([0, int(y.argmax())] if y.ndim == 1 else [0])  # the largest class number is among them
        model = entry_points.try_call(self.make_model, self.model)
        if not isinstance(model, nn.Module):
            yield f"Expected {self.model} to return a torch.nn.Module, got {type(model).__name__}."
            return
        try:
            with torch.no_grad():
                model.eval()
                self.loss_record.per_sample(model(x[some]), y[some])
        except Exception as error:  # any failure of a model on data of another shape
            yield (
                f"The model {self.model} does not fit {whose}, whose inputs have the shape {tuple(x.shape[1:])}: "
                f"{str(error).splitlines()[0]}. Use the columns and classes that the plan's model expects."
            )

    def run_spec(self, randomness: Randomness = "secret") -> RunSpec:
        """The server's run: a model, the number of sites, and only public data."""
        public = self._public_samples()
        whose = f"the public data {self.public}" if self.public else "the encoding"
        problems = [] if public is None else [*self.misfits(public, whose)]
        if problems:
            raise DataError(problems[0])
        spec = RunSpec(
            method=self.method,
            task=self.task_of(Population.remote(self.population, public, self.records, self.unit), public),
            seed=self.seed,
            evaluate_every=max(self.evaluate_every, 1),
            args=self.args,
            randomness=randomness,
        )
        try:
            _ = spec.simulation.initial_state
        except PublicDataError:
            raise DataError(
                f"{self.method_name} needs public samples at the server, and the plan has none. Add "
                'public = "package.module:function", which returns (x, y), or use a method that needs none.'
            ) from None
        return spec

    def _public_samples(self) -> Samples | None:
        """The samples of the plan's function, or random rows of the encoding, as in a simulation, or None."""
        if self.public:
            samples = entry_points.try_call(self.code.load(self.public, "the public data"), self.public)
            return check_samples(samples, f"the public data {self.public}")
        if self.encoding is None or self.analysis:
            return None
        return public_samples(self.encoding, None, Key.from_seed(self.seed, "table"), self.loss_record)


def read_plan(path: Path, *, configured: bool = True, trusted: bool = False) -> FederationPlan:
    """The plan in a file; errors for unknown keys, wrong types and unknown names say what to write.

    Args:
        path: the file.
        configured: whether its arrangement, such as an enclave, is already configured.
        trusted: whether the code that it names may run; reading a plan runs none.
    """
    content, folder = load_toml(path), path.parent
    tables = arrangements(content)
    fields = {key: value for key, value in content.items() if key not in tables}
    arranged = [kind.read(content[key], path, configured=configured) for key, kind in tables.items()]
    table = convert(fields, _Table, Source(label=str(path)))
    plan = FederationPlan(
        directory=read_directory(folder / table.sites),
        encoding=None if table.encoding is None else Encoding.read(folder / table.encoding),
        arrangement=_only(arranged),
        **_arguments(table),
    )
    return plan.trust() if trusted else plan


def _only(arranged: Sequence[Arrangement]) -> Arrangement | None:
    if len(arranged) > 1:
        names = " and ".join(f"[{each.name}]" for each in arranged)
        raise UserError(f"Expected a table of at most one channel, got {names}. Keep that of the method's channel.")
    return arranged[0] if arranged else None


def adapt_to_sites(method: Method, sites: int, least: int = 1, arranged: Arrangement | None = None) -> Method:
    """The method as this many sites run it; raises `UserError` with a sentence if it cannot run.

    Example:
        >>> adapted = adapt_to_sites(methods.make("fl-std-dp", {"cohort": 8}), sites=8)
        >>> adapted.mechanism.single_draw, adapted.channel.dropout, adapted.mechanism.dropouts
        (False, 0.25, 0.25)
    """
    adapted = channel_of(method).adapt(method, sites, least, arranged)
    if adapted.patience is not None:
        raise UserError(
            f"{method.name} stops early by the loss on held-out data of the server, which has none in a federation. "
            "Leave patience out."
        )
    try:
        cohort = adapted.sampler.sampling(sites, 0).mean_cohort(sites)
        problem = channel_of(adapted).incompatibility(adapted, sites, cohort)
    except TacitError as error:
        raise UserError(f"{method.name} does not fit {sites} sites. {error}") from error
    if problem:
        raise UserError(problem)
    return adapted


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _plain_number(value: object) -> object:
    whole = isinstance(value, float) and value.is_integer() and abs(value) < EXACT_BELOW
    return int(value) if whole else value  # type: ignore[call-overload]  # mypy does not follow `whole`


def _digest(canonical: bytes) -> bytes:
    return crypto.digest("federation plan", canonical)


def _arguments(table: _Canonical) -> dict[str, Any]:
    analysis = table.analysis
    if analysis:
        expect(table.method in ("", analysis), f"either method or analysis, got {table.method!r} and {analysis!r}")
    else:
        lacking = [name for name in ("method", "model") if not getattr(table, name)]
        expect(not lacking, f"a plan with {list_names(lacking)}, or with analysis")
    trained = {"model": table.model or SUM_MODEL_NAME, "evaluate_every": 0} if analysis else {}
    return {
        **{name: getattr(table, name) for name in _SAME},
        **trained,
        "unit": Unit(table.unit),
        "method_name": analysis or table.method,
        "args": flat_args(table.args),
    }


def _check_person_unit(method: Method) -> None:
    """Raise `UserError` unless the method protects the persons of a site."""
    if not method.terms.protects_records:
        raise UserError(
            f'Expected a method that protects records for unit = "person", got {method.name}, which protects whole '
            "sites or nothing. Use dp-sgd, dp-fedsgd or fl-top-record-dp, or leave unit out."
        )
    check_draws_persons(method)


def check_samples(returned: object, what: str) -> Samples:
    """The samples, if this is a pair of tensors."""
    match returned:
        case (torch.Tensor() as x, torch.Tensor() as y):
            return x, y
    raise DataError(f"Expected {what} to return a pair of tensors (x, y), got {type(returned).__name__}.")
