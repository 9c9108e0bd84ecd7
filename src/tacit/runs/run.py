"""A run as records: the plan, with everything that decides about its result, and the run so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch
from torch import nn

from tacit.core import Method, Report, Samples, State, Task
from tacit.core.pieces import Prunes, nominal
from tacit.core.stopping import final_weights, out_of_patience
from tacit.engine import first_weights, module_at
from tacit.errors import UserError, expect
from tacit.privacy.leakage import LeakageAccounting
from tacit.runs.bandwidth import Bandwidth, Savings
from tacit.runs.manifest import Manifest, MethodEntry, Options, TaskEntry, versions

if TYPE_CHECKING:
    from tacit.privacy.charging import Charges
    from tacit.privacy.guarantee import Guarantee
    from tacit.privacy.leakage import LeakageGuarantee


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """Everything that decides about a run's result. Noise that is to be sized for a budget is sized here.

    `args` and `task_args` are those of the factories, where method and task were made by name.
    """

    method: Method
    task: Task
    seed: int = 0
    device: str = "cpu"
    evaluate_every: int = 1
    args: Options | None = None
    task_args: Options | None = None

    def __post_init__(self) -> None:
        expect(self.evaluate_every >= 1, f"evaluate_every={self.evaluate_every} >= 1")
        _check_device(self.device)
        if self.method.patience is not None and self.task.test is None:
            raise UserError(
                f"Expected held-out data for {self.method.name}, whose patience={self.method.patience} is with the "
                "loss on them. Give the task test data, or leave patience out."
            )
        object.__setattr__(self, "method", size_noise(self.method, len(self.task.population)))

    @cached_property
    def manifest(self) -> Manifest:
        """The plan in print; made once, because it has a digest of all data."""
        return Manifest(
            method=MethodEntry(
                name=self.method.name,
                args=self.args,
                repr=repr(self.method),
                nominal=dict(nominal(self.method.mechanism)),
            ),
            task=TaskEntry.of(self.task, self.task_args, first_weights(self.task, self.seed).numel()),
            seed=self.seed,
            device=self.device,
            evaluate_every=self.evaluate_every,
            versions=versions(),
            caveat=self.method.channel.caveat,
        )


@dataclass(frozen=True)
class Sparsity:
    """How many weights a layer has, how many of them a client sends, and how many the model has that are not zero."""

    weights: int
    sent: int
    held: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A run so far.

    Attributes:
        plan: what is run.
        state: where the server stands.
        history: one report per round.
        directory: where the run's files lie, if it has any.
        spending: what it has spent on privacy; None if its method is not priced in (ε, δ).
        leakage: what each client has leaked in the sense of d-privacy; None if its method is not priced that way.
    """

    plan: Plan
    state: State
    history: tuple[Report, ...] = ()
    directory: Path | None = None
    charges: "Charges | None" = None
    leakage: LeakageAccounting | None = None

    @classmethod
    def begin(cls, plan: Plan, state: State, history: tuple[Report, ...] = (), directory: Path | None = None) -> Self:
        """The run after these rounds, before anything is charged."""
        leakage = LeakageAccounting.of(plan.method, state.dim, len(plan.task.population), history)
        return cls(plan=plan, state=state, history=history, directory=directory, leakage=leakage)

    @property
    def model(self) -> nn.Module:
        """The model that the run leaves, ready to be used; of several hypotheses, `models` has all."""
        if len(self.models) > 1:
            raise UserError(
                f"Expected one model, but {self.plan.method.name} leaves {len(self.models)}. Use run.models, or "
                "run.model_for((x, y)) for the one that fits these samples best."
            )
        return self.models[0]

    @cached_property
    def models(self) -> tuple[nn.Module, ...]:
        """All hypotheses that the run leaves; with patience the best on held-out data, otherwise the last."""
        task, seed, dim = self.plan.task, self.plan.seed, self.state.dim
        return tuple(module_at(task, seed, weights) for weights in final_weights(self.state).view(-1, dim))

    @torch.no_grad()
    def model_for(self, samples: Samples) -> nn.Module:
        """The hypothesis that loses least on these samples: the model of a client that has them."""
        (x, y), loss = samples, self.plan.task.loss
        return min(self.models, key=lambda model: float(loss.of_mean(loss.per_sample(model(x), y).double().mean())))

    @cached_property
    def bytes(self) -> Bandwidth:
        """The bandwidth book of all rounds."""
        return Bandwidth.of(self.history)

    @cached_property
    def savings(self) -> Savings:
        """How many times fewer bytes travelled than if whole models had been sent both ways, as in FL-STD."""
        asked = sum(len(report.clients) for report in self.history)
        return Savings.of(self.bytes, messages=asked, weights=self.state.weights.view(-1, self.state.dim)[0])

    @cached_property
    def privacy(self) -> "Guarantee | LeakageGuarantee":
        """What is proved about privacy: (ε, δ) or d-privacy with all it rests on, against whom; or none, and why."""
        return guarantee_of(self.plan.method, self.history, self.charges, self.leakage)

    @property
    def rounds(self) -> int:
        """How many rounds there will be, as far as the method and its budget say."""
        return self.plan.method.rounds if self.charges is None else self.charges.allowed

    @cached_property
    def sparsity(self) -> Mapping[str, "Sparsity"]:
        """Of every layer that is pruned, by name: what clients send of it, and what the model has."""
        trainer = self.plan.method.trainer
        if not isinstance(trainer, Prunes):
            return {}
        parameters = dict(self.model.named_parameters())
        kept = trainer.kept(tuple(tuple(parameter.shape) for parameter in parameters.values()))
        return {
            name: Sparsity(parameter.numel(), count, int(parameter.count_nonzero()))
            for (name, parameter), count in zip(parameters.items(), kept, strict=True)
            if count is not None
        }

    @property
    def metrics(self) -> dict[str, float]:
        """The held-out figures of the model that the run leaves: measured last or, with patience, the best."""
        return final_metrics(self.plan.method, self.history)

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to play: all rounds are, patience is at its end, or everybody declines."""
        done = self.state.round >= self.rounds or out_of_patience(self.plan.method.patience, self.state)
        return done or (self.leakage is not None and self.leakage.exhausted)

    @property
    def seconds(self) -> float:
        """The wall-clock time of all rounds."""
        return sum(report.seconds for report in self.history)

    @property
    def parts(self) -> dict[str, float]:
        """Of these, what each part took, where the channel measured it."""
        names = dict.fromkeys(name for report in self.history for name in report.parts)
        return {name: sum(report.parts.get(name, 0.0) for report in self.history) for name in names}

    def after(self, state: State, report: Report, charges: "Charges | None") -> "Run":
        """The run one round later."""
        if charges is not None:
            report = replace(report, epsilon=charges.epsilon)
        leakage = None if self.leakage is None else self.leakage.after(report)
        if leakage is not None:
            report = replace(report, leakage=leakage.most)
        return replace(self, state=state, history=(*self.history, report), charges=charges, leakage=leakage)


def size_noise(method: Method, population: int) -> Method:
    """The method for so many clients: if its noise is to be sized for its budget, it is."""
    if not method.mechanism.needs_noise:
        return method
    from tacit.privacy.charging import sized

    return sized(method, population)


def guarantee_of(
    method: Method, history: Sequence[Report], charges: "Charges | None", leakage: LeakageAccounting | None
) -> "Guarantee | LeakageGuarantee":
    """What is proved about privacy after these rounds, by the book in which the method is priced."""
    from tacit.privacy.guarantee import Guarantee

    if leakage is not None:
        return leakage.guarantee(stops=method.patience is not None).but(method.channel.caveat)
    if charges is None:
        return Guarantee.none(method.mechanism.unproved, rounds=len(history)).but(method.channel.caveat)
    return charges.guarantee(history).but(method.channel.caveat)


def final_metrics(method: Method, history: Sequence[Report]) -> dict[str, float]:
    """The held-out figures of the model that these rounds leave: measured last or, with patience, the best."""
    measured = [report.metrics for report in history if report.metrics]
    if measured and method.patience is not None:
        return dict(min(measured, key=lambda metrics: metrics["loss"]))
    return dict(measured[-1]) if measured else {}


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # PyTorch built without it, or none in this machine
        raise UserError(
            f"Expected a device that PyTorch can use here, got {device!r}. Leave it out for cpu."
        ) from error
