"""A run as values: the spec, with everything that determines its result, and the run so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from tacit.core import Method, Randomness, Report, State, files
from tacit.core.keys import RANDOMNESS
from tacit.core.prices import ClientUnits, Unit
from tacit.core.schema import Options
from tacit.core.state import MAX_DROPPED, count_dropped, final_weights, out_of_patience
from tacit.core.worker_choice import Waves
from tacit.data import Samples, Task
from tacit.data.adapted import own_module
from tacit.engine import Simulation
from tacit.errors import CompositionError, UserError, expect, one_of, whole
from tacit.privacy.guarantee import AnyGuarantee, Guarantee
from tacit.privacy.leakage import LeakageAccounting
from tacit.privacy.ledger_head import LedgerUse
from tacit.runs.bandwidth import Bandwidth, Savings
from tacit.runs.fitting import describe_descent, fit_defaults, fit_task
from tacit.runs.manifest import FederationEntry, Manifest, MethodEntry, TaskEntry, versions
from tacit.runs.model_export import ExportedModel, choose_model, encoding_beside, form_of
from tacit.runs.predict import predict_rows
from tacit.runs.presentation import as_html, as_text, presenter, rows_of
from tacit.runs.probing import check_declared

if TYPE_CHECKING:
    from tacit.privacy.charging import Charges
    from tacit.privacy.ledger import Ledger

SEEDED = (
    "This is a simulation with reproducible noise: cohorts and noise derive from the seed. What is said here holds "
    "only for a secret key, not against anyone who knows the seed."
)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RunSpec:
    """Everything that determines a run's result. Noise that depends on a budget is calibrated here.

    Attributes:
        method: what clients and server do.
        task: the model and the data.
        seed: decides what may be public.
        device: where to compute.
        evaluate_every: evaluate on held-out data every `n` rounds.
        randomness: whether cohorts, batches and noise come from a `secret` key of the run's own or are `seeded`.
        waves: whether a simulation trains clients in waves that fit the cache (`fitting`), or a `single` one at a time.
        args: the arguments of the method's factory, if the method was made by name.
        task_args: the same for the task.
        federation: the sites between which it runs; None: a simulation.
    """

    method: Method
    task: Task
    seed: int = 0
    device: str = "cpu"
    evaluate_every: int = 1
    randomness: Randomness = "secret"
    waves: Waves = "fitting"
    args: Options | None = None
    task_args: Options | None = None
    federation: FederationEntry | None = None

    def __post_init__(self) -> None:
        advice = "Make one by name: tacit.methods.fedavg(rounds=100)."
        expect(isinstance(self.method, Method), f"a method, got {_brief(self.method)}", advice)
        advice = 'Give it a model and data, or make one by name: tacit.tasks.make_task("digits").'
        expect(isinstance(self.task, Task), f"a Task, got {_brief(self.task)}", advice)
        expect(isinstance(self.seed, Integral), f"seed={_brief(self.seed)} to be a whole number")
        whole(1, evaluate_every=self.evaluate_every)
        one_of(RANDOMNESS, randomness=self.randomness)
        _check_device(self.device)
        if self.method.patience is not None and self.task.test is None:
            raise UserError(
                f"Expected held-out data for {self.method.name}: patience={self.method.patience} refers to the loss on "
                "them. Give the task test data, or leave patience out."
            )
        check_declared(self.method)
        check_records(self.method, self.task)
        _check_budget(self.method)
        task = fit_task(self.method, self.task)
        method, population = fit_defaults(self.method, task), task.population
        object.__setattr__(self, "task", replace(task, notes=(*task.notes, *describe_descent(method))))
        within = population.client_units if any(unit.within_client for unit in method.terms.uncalibrated) else None
        object.__setattr__(self, "method", calibrate_method(method, len(population), within))

    def __repr__(self) -> str:
        return f"RunSpec(method={self.method.name!r}, task={self.task!r}, seed={self.seed}, {self.randomness!r})"

    @cached_property
    def simulation(self) -> Simulation:
        """The method on the task, on this machine; the model is built here, once."""
        return Simulation(self.method, self.task, seed=self.seed, device=self.device, waves=self.waves)

    @cached_property
    def manifest(self) -> Manifest:
        """The spec as it is written to the run's directory; computed once, because it includes a digest of all data."""
        terms = self.method.terms
        return Manifest(
            method=MethodEntry(
                name=self.method.name,
                args=self.args,
                form=self.method.to_plain(),
                nominal=dict(self.method.terms.prices[Unit.CLIENT].figures),
            ),
            task=TaskEntry.of(
                self.task,
                self.task_args,
                self.simulation.layout.dim,
                units=terms.public_units(self.task.population.client_units) if terms.protects_records else None,
                counted=not terms.adds_noise,
            ),
            seed=self.seed,
            device=self.device,
            evaluate_every=self.evaluate_every,
            versions=versions(),
            caveat=self.method.channel.caveat,
            randomness=self.randomness,
            waves=self.waves,
            federation=self.federation,
        )


def _check_budget(method: Method) -> None:
    """Raise `CompositionError` for a budget that cannot be kept, because nothing is proved."""
    terms = method.terms
    reason = next(filter(None, (terms.prices[unit].reason for unit in terms.units)), "")
    if method.budget is None or not reason:
        return
    noise = ", and set its noise multiplier" * bool(terms.uncalibrated)
    raise CompositionError(
        f"{method.name}: a budget of {method.budget} cannot be kept, because nothing is proved: {reason}. Use pieces "
        f"whose sensitivity is proved or declared, or leave the budget out{noise} (budget=none): then the run has no "
        "guarantee. Nothing was released."
    )


@dataclass(frozen=True)
class Sparsity:
    """A pruned layer: how many weights it has, how many of them a client sends, and how many are non-zero."""

    weights: int
    sent: int
    held: int


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Run:
    """A run so far.

    Attributes:
        spec: what is run.
        state: the server's state.
        history: one report per round.
        directory: where the run's files are; None: it writes none.
        charges: the charges of each unit so far, if the method has an (ε, δ) accounting for it; never added up.
        leakage: the leakage of each client (d-privacy); None: the method has no such accounting.
        diverged: whether the next round led to a model that is not finite, so that the run ended with this one.
    """

    spec: RunSpec
    state: State
    history: tuple[Report, ...] = ()
    directory: Path | None = None
    charges: "Mapping[Unit, Charges]" = field(default_factory=dict)
    leakage: LeakageAccounting | None = None
    diverged: bool = False

    @classmethod
    def begin(
        cls, spec: RunSpec, state: State, history: tuple[Report, ...] = (), directory: Path | None = None
    ) -> Self:
        """The run after these rounds, before anything is charged."""
        leakage = LeakageAccounting.of(spec.method, state.dim, len(spec.task.population), history)
        return cls(spec=spec, state=state, history=history, directory=directory, leakage=leakage)

    @property
    def model(self) -> nn.Module:
        """The trained model; of several hypotheses, `models` has all."""
        if len(self.models) > 1:
            raise UserError(
                f"Expected one model, but {self.spec.method.name} trains {len(self.models)}. Use run.models, or "
                "run.model_for((x, y)) for the one that fits these samples best."
            )
        return self.models[0]

    @cached_property
    def models(self) -> tuple[nn.Module, ...]:
        """The trained hypotheses: with early stopping the best on held-out data, otherwise the last."""
        return tuple(map(own_module, self._adapted))

    @cached_property
    def _adapted(self) -> tuple[nn.Module, ...]:
        """The trained hypotheses as the engine calls them."""
        weights = final_weights(self.state).view(-1, self.state.dim)
        return tuple(self.spec.simulation.module(hypothesis) for hypothesis in weights)

    def export(self, path: Path | str, model: int | None = None) -> Path:
        """Write the trained model to a file for other programs; its ending decides the format.

        Args:
            path: `.safetensors`, `.pt` (a `state_dict`), `.onnx` (needs `tacit-fl[onnx]`), or `.pt2` (`torch.export`).
            model: which one, from 0, if the run trained several.

        Returns:
            The file. It is written whole or not at all. How rows of a table become its inputs is in a file beside it,
            such as `model.encoding.json`.
        """
        path = Path(path)
        write, number = form_of(path), choose_model(len(self._adapted), model, "model=")
        caveat = self.spec.method.channel.caveat
        files.write(path, write(ExportedModel(self._adapted[number], self.spec.task, caveat)), parents=True)
        if self.spec.task.encoding is not None:
            files.write(encoding_beside(path), self.spec.task.encoding.to_bytes())
        return path

    def predict(self, rows: Any, model: int | None = None) -> dict[str, list[Any]]:
        """The trained model's predictions for new rows of a table, by column, in their order.

        Missing values and unknown categories are treated as in training; `task.encoding.remarks(rows)` lists them.
        `tacit predict` does the same from the run's directory alone.

        Args:
            rows: a file, a frame or a dictionary of columns with the inputs of the task; other columns are not used.
            model: which one, from 0, if the run trained several.

        Returns:
            `predicted TARGET`, and for classes `probability TARGET=VALUE` of each: lists, as `pandas.DataFrame` takes
            them.
        """
        number = choose_model(len(self._adapted), model, "model=")
        return predict_rows(self.spec.task.encoding, self._adapted[number], rows)

    @torch.no_grad()
    def model_for(self, samples: Samples) -> nn.Module:
        """The hypothesis with the smallest loss on these samples: the model of a client that has them."""
        task = replace(self.spec.task, test=samples, test_overlap="intended", owners=None)
        (x, y), loss = task.test, task.loss
        return own_module(
            min(self._adapted, key=lambda model: float(loss.from_mean(loss.per_sample(model(x), y).double().mean())))
        )

    def __repr__(self) -> str:
        return as_text("Run", rows_of(self))

    def _repr_html_(self) -> str:
        return as_html("Run", rows_of(self))

    def plot(self) -> Any:
        """A picture of metrics and ε over rounds: notebooks show it, `save(path)` writes it; needs `tacit-fl[plot]`."""
        return presenter().plot(self)

    def report(self, path: Path | str | None = None) -> Path:
        """Write the page of the run, as `tacit report` does; returns its file.

        Args:
            path: the file; None: `report.html` in the run's directory or, if it has none, in the current folder.
        """
        written: Path = presenter().write_page(self, None if path is None else Path(path))
        return written

    @cached_property
    def bytes(self) -> Bandwidth:
        """The bandwidth report of all rounds."""
        return Bandwidth.of(self.history)

    @cached_property
    def savings(self) -> Savings:
        """How many times fewer bytes were sent than if whole models had been sent both ways, as fl-std does."""
        participations = sum(len(report.clients) for report in self.history)
        weights = self.state.weights.view(-1, self.state.dim)[0]
        return Savings.of(self.bytes, messages=participations, weights=weights)

    @property
    def privacy(self) -> AnyGuarantee:
        """What is proved: (ε, δ) or d-privacy with its assumptions and against whom; or none, and why.

        It is that of clients, if the method adds noise for them or for nobody, and otherwise that of records. A method
        may give both: see `guarantees`.
        """
        return next(iter(self.guarantees.values()))

    @cached_property
    def guarantees(self) -> dict[Unit, AnyGuarantee]:
        """What is proved about each unit that the method adds noise for, clients first; never added up."""
        spec = self.spec
        return guarantees_of(
            spec.method,
            spec.task.population.unit,
            self.history,
            self.charges,
            self.leakage,
            not_covered=spec.task.not_covered,
            seeded=spec.randomness == "seeded",
            sites=() if spec.federation is None else spec.federation.sites,
        )

    @property
    def epsilons(self) -> dict[Unit, float]:
        """The ε of each unit so far, at the method's δ; empty if none is accounted for."""
        return {unit: charges.epsilon for unit, charges in self.charges.items()}

    @property
    def charged_ledger(self) -> "Ledger | None":
        """The ledger to which its rounds are charged, of its own or shared; None if there is none."""
        return next((charges.ledger for charges in self.charges.values()), None)

    @property
    def ledger(self) -> LedgerUse | None:
        """What all runs together have used of a shared ledger; None if the run has a ledger of its own, or none."""
        ledger = self.charged_ledger
        if ledger is None or (self.directory is not None and ledger.path.parent == self.directory):
            return None
        return ledger.use

    @property
    def rounds(self) -> int:
        """The number of rounds, by the method and its budget."""
        return min((each.rounds_allowed for each in self.charges.values()), default=self.spec.method.rounds)

    @cached_property
    def sparsity(self) -> Mapping[str, "Sparsity"]:
        """Every pruned layer by its name: what clients send of it, and what the model has."""
        parameters = dict(self.models[0].named_parameters())
        kept = self.spec.method.trainer.weight_counts(
            tuple(tuple(parameter.shape) for parameter in parameters.values())
        )
        if not kept:
            return {}
        return {
            name: Sparsity(parameter.numel(), count, int(parameter.count_nonzero()))
            for (name, parameter), count in zip(parameters.items(), kept, strict=True)
            if count is not None
        }

    @property
    def metrics(self) -> dict[str, float]:
        """The held-out metrics of the trained model: the last ones or, with early stopping, the best."""
        return final_metrics(self.spec.method, self.history)

    @property
    def disrupted(self) -> bool:
        """Whether the sums of several rounds in a row were longer than honest clients can make them."""
        return count_dropped(self.state) >= MAX_DROPPED

    @property
    def ended(self) -> bool:
        """Whether no round is left: all were played, patience ran out, it diverged, was disrupted, or all decline."""
        played = self.state.round >= self.rounds or out_of_patience(self.spec.method.patience, self.state)
        return played or self.diverged or self.disrupted or (self.leakage is not None and self.leakage.exhausted)

    @property
    def seconds(self) -> float:
        """The wall-clock time of all rounds."""
        return sum(report.seconds for report in self.history)

    @property
    def timings(self) -> dict[str, float]:
        """Seconds by part of a round, where the channel measured them."""
        names = dict.fromkeys(name for report in self.history for name in report.timings)
        return {name: sum(report.timings.get(name, 0.0) for report in self.history) for name in names}


def calibrate_method(method: Method, clients: int, within: ClientUnits | None = None) -> Method:
    """The method for this many clients: noise that depends on the budget gets its noise multiplier.

    `within` are the clients' records, or persons, on which noise for these depends.
    """
    for unit in reversed(method.terms.uncalibrated):
        from tacit.privacy.planned_charges import calibrate  # which imports dp_accounting

        units = within if unit.within_client else ClientUnits.whole(clients)
        if units is None:
            raise UserError(f"Expected the number of every client's records: the noise of {method.name} depends on it.")
        method = calibrate(method, units)
    return method


def check_records(method: Method, task: Task) -> None:
    """Raise `CompositionError` if the gradient of a record's loss depends on the other records of its batch."""
    if not method.terms.protects_records and method.terms.record_sum is None:
        return
    if task.population.unit is Unit.PERSON:
        check_draws_persons(method)
    mean = torch.tensor([0.25, 4.0])
    if not torch.equal(task.loss.from_mean(mean), mean):
        raise CompositionError(
            f"{method.name}: {type(task.loss).__name__} is a function of the mean loss of a batch, so that what one "
            "record adds to the gradient depends on the others and cannot be clipped. Use a loss that is a mean over "
            "records, such as MeanSquared or CrossEntropy."
        )


def check_draws_persons(method: Method) -> None:
    """Raise `CompositionError` if the method's trainer draws single records where persons are to be protected."""
    if not method.trainer.draws_persons:
        raise CompositionError(
            f"{method.name}: the task says which records are one person's (person), but "
            f"{type(method.trainer).__name__} draws and clips single records, so that nothing is proved about a person "
            "with several. Use DpSgd or RecordGradient, or a trainer that declares draws_persons."
        )


def guarantees_of(
    method: Method,
    within: Unit,
    history: Sequence[Report],
    charges: "Mapping[Unit, Charges]",
    leakage: LeakageAccounting | None,
    *,
    not_covered: Sequence[str] = (),
    seeded: bool = False,
    sites: Sequence[str] = (),
) -> dict[Unit, AnyGuarantee]:
    """What is proved about each unit that the method adds noise for, after these rounds.

    Args:
        method: what was run.
        within: the unit that clients' data consist of.
        history: the rounds.
        charges: each unit's charges for them.
        leakage: the leakage of clients (d-privacy); None: the method has no such accounting.
        not_covered: further limits, from the task.
        seeded: whether cohorts and noise derive from the seed.
        sites: the names of the clients, in a federation.
    """
    caveats = (SEEDED if seeded and method.terms.adds_noise else "", method.channel.caveat)

    def guarantee(unit: Unit) -> AnyGuarantee:
        if leakage is not None and not unit.within_client:
            leakage_guarantee = leakage.guarantee(early_stopping=method.patience is not None)
            return leakage_guarantee.with_limits(*not_covered)
        if unit in charges:
            host = "" if unit.within_client else _host_of_enclave(method, len(charges[unit].units.sizes))
            proved = charges[unit].guarantee(history).with_limits(*not_covered, host)
            worst = proved.worst_client
            return proved if worst is None or not sites else replace(proved, worst_name=sites[worst])
        reason = method.terms.prices[Unit.RECORD if unit.within_client else unit].reason
        return Guarantee.none(reason or "nothing was charged", len(history), unit)

    return {unit: guarantee(unit).with_limits(*reversed(caveats)) for unit in method.terms.units_with(within)}


def _host_of_enclave(method: Method, population: int) -> str:
    """What does not hold against the host of an enclave, which forwards the messages of a cohort; empty: nothing."""
    if method.channel.messages_seen_by != "enclave" or method.sampler.sampling(population, 0).rate == 1:
        return ""
    return "The host of the enclave knows who takes part in a round: against it, sampling does not amplify privacy."


def final_metrics(method: Method, history: Sequence[Report]) -> dict[str, float]:
    """The held-out metrics of the model that these rounds give: the last ones or, with early stopping, the best."""
    evaluated = [report.metrics for report in history if report.metrics]
    if evaluated and method.patience is not None:
        return dict(min(evaluated, key=lambda metrics: metrics["loss"]))
    return dict(evaluated[-1]) if evaluated else {}


def _brief(value: object) -> str:
    """A value in a message."""
    return repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # PyTorch built without it, or none in this machine
        raise UserError(
            f"Expected a device that PyTorch can use here, got {device!r}. Leave it out for cpu."
        ) from error
