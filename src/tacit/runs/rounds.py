"""The loop over charged rounds: `rounds` yields them to its caller, and `train` writes them.

Reserve, compute, settle, release: every round is charged before any of its noise is drawn, and a budget ends the loop
before the round that would exceed it. The source of the rounds is a parameter (`RoundSource`): the engine's simulation,
or the server of a federation. Neither knows about charges; only this module plays rounds for a caller that has a
budget.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch

from tacit.core import Budget, KeySource, Method, Randomness, Report, SecretKeys, SeededKeys, State
from tacit.core.keys import Ratchet
from tacit.core.prices import Unit
from tacit.core.worker_choice import Waves, Workers
from tacit.data import Task
from tacit.engine.simulation import draw
from tacit.errors import BudgetError, TooFewClientsError, TrainingError, UserError
from tacit.runs.data_key import client_identities
from tacit.runs.manifest import Manifest
from tacit.runs.run import Run, RunSpec

if TYPE_CHECKING:
    from tacit.privacy.accountants import Accountant
    from tacit.privacy.charging import Charges
    from tacit.privacy.ledger import Ledger
    from tacit.privacy.ledger_head import LedgerHead


class RoundSource(Protocol):
    """The source of a run's rounds."""

    @property
    def checkpoints_every_round(self) -> bool:
        """Whether every round is followed by a checkpoint, because repeating one is costly."""

    def keys(self, ratchet: Ratchet | None) -> KeySource:
        """The keys of the rounds to come; `ratchet` is the run's secret, None if its noise is seeded."""

    def ready(self) -> None:
        """Wait until a round can begin, before it is charged; raises `TooFewClientsError` if none can."""

    def rounds(self, state: State, last: int, keys: KeySource) -> Generator[tuple[State, Report]]:
        """The rounds from this state on, up to number `last`; `TooFewClientsError` if one ends without a sum."""

    def retry(self) -> KeySource | None:
        """Keys for another attempt at a round that ended without a sum; None: the run ends there."""


@dataclass(frozen=True)
class Simulated:
    """The rounds of a spec's simulation, which ends where a round ends without a sum: a repetition would do the same.

    Attributes:
        spec: what is run.
        workers: worker processes; None: one per processor; `ray`, `ray:4`, `ray://host:port`: actors of a Ray cluster.
    """

    spec: RunSpec
    workers: Workers = None
    checkpoints_every_round: ClassVar[bool] = False

    def keys(self, ratchet: Ratchet | None) -> KeySource:
        seed = self.spec.seed
        return SeededKeys(seed) if self.spec.randomness == "seeded" else SecretKeys(seed, ratchet)

    def ready(self) -> None:
        """A simulation is always ready."""

    def rounds(self, state: State, last: int, keys: KeySource) -> Generator[tuple[State, Report]]:
        every = self.spec.evaluate_every
        return self.spec.simulation.rounds(state, workers=self.workers, evaluate_every=every, last=last, keys=keys)

    def retry(self) -> None:
        return None


def rounds(
    method: Method,
    task: Task,
    *,
    seed: int = 0,
    workers: Workers = None,
    device: str = "cpu",
    evaluate_every: int = 1,
    ledger: Path | str | None = None,
    randomness: Randomness = "secret",
    waves: Waves = "fitting",
) -> Generator[tuple[State, Report]]:
    """Train a task's model with a method, round by round, charged and stopped exactly as by `train`.

    The arguments are those of `train`. Without a `ledger`, charges do not outlive the run.

    Yields:
        The state after each round, and the round's report with the ε or the leakage of all rounds so far. A method
        with a budget stops before the round that would exceed it. Close the generator to stop early: what was reserved
        remains charged. To continue a run later, use `train` with `out` and `resume`.

    Raises:
        BudgetError: not even the first round fits into the budget, or into what the ledger has left.

    Example:
        >>> import torch, tacit
        >>> parts = [(torch.randn(n, 3), torch.arange(n) % 2) for n in (8, 5, 9)]
        >>> task = tacit.Task(model=lambda: torch.nn.Linear(3, 2), clients=parts)
        >>> method = tacit.methods.geyer(rounds=200, cohort=3, noise=4.0, epsilon=3.0, delta=1e-3)
        >>> epsilons = [report.epsilons["client"] for _, report in tacit.rounds(method, task, workers=1)]
        >>> len(epsilons), round(epsilons[-1], 2)
        (14, 2.89)
    """
    spec = RunSpec(
        method=method,
        task=task,
        seed=seed,
        device=device,
        evaluate_every=evaluate_every,
        randomness=randomness,
        waves=waves,
    )
    _ = spec.simulation  # what does not fit the task is refused here, not at the first round
    return _states(spec, Simulated(spec, workers), None if ledger is None else Path(ledger))


def _states(spec: RunSpec, source: RoundSource, ledger: Path | None) -> Generator[tuple[State, Report]]:
    with closing(run_without_files(spec, source, ledger)) as runs:
        next(runs)  # the run as it starts
        for run in runs:
            if run.diverged:  # the last state was yielded before
                return
            yield run.state, run.history[-1]


def run_without_files(spec: RunSpec, source: RoundSource, ledger: Path | None) -> Generator[Run]:
    """A run without files: as it starts, and after every round."""
    run, ratchet = Run.begin(spec, spec.simulation.initial_state), new_ratchet(spec)
    name = "" if ledger is None else make_manifest(spec, ratchet).run
    with open_charges(run, ledger, name) as begun:
        yield from play_rounds(begun, source, source.keys(ratchet))


def play_rounds(run: Run, source: RoundSource, keys: KeySource) -> Generator[Run]:
    """The run as it starts, and after every remaining round; each attempt at one is charged before it is played."""
    yield run
    while not run.ended:
        try:
            yield from _play(run, source, keys)
            return
        except _FailedAttemptError as problem:
            again = source.retry()
            if again is None:
                raise problem.reason from None
            run, keys = problem.run, again


def _play(run: Run, source: RoundSource, keys: KeySource) -> Generator[Run]:
    """The run after every remaining round, until an attempt at one fails."""
    with closing(source.rounds(run.state, run.rounds, keys)) as steps:
        while not run.ended:
            source.ready()
            try:
                run = _step(run, steps, keys)
            except BudgetError:  # a shared ledger is used up, or too few clients added their share of the noise
                if run.state.round == 0:
                    raise
                return
            yield run


def _step(run: Run, steps: Generator[tuple[State, Report]], keys: KeySource) -> Run:
    """Reserve the round's charge, play the round, settle the charge by who took part, and release the model."""
    reserved = _reserve(run, keys) if run.charges else run
    try:
        state, report = next(steps)
    except TooFewClientsError as reason:
        raise _FailedAttemptError(_each(reserved, lambda charges: charges.fail()), reason) from reason
    settled = _each(reserved, lambda charges: charges.settle(report.turnout))
    if not bool(torch.isfinite(state.weights).all()):  # the round was charged, and its model is not released
        if run.state.round == 0:
            raise TrainingError(
                "The model is not finite after the first round: training diverged. "
                "Lower the learning rate, take fewer local steps, or clip."
            )
        return replace(settled, diverged=True)
    for charges in settled.charges.values():
        charges.release(state)
    return _after(settled, state, report)


def _reserve(run: Run, keys: KeySource) -> Run:
    """The run with its next round reserved; within clients, for its cohort, which the server's key decides.

    Where an enclave draws the cohort, all clients are charged: its choice is not known in advance.
    """
    method, population, index = run.spec.method, len(run.spec.task.population), run.state.round
    drawn, cohort = keys.keys(index), list[int]()
    if any(unit.within_client for unit in run.charges):
        by_enclave = method.channel.messages_seen_by == "enclave"
        cohort = [*range(population)] if by_enclave else draw(method, population, drawn, index)[0].tolist()
    return _each(run, lambda charges: charges.reserve(drawn.server.digest, cohort))


def _each(run: Run, step: "Callable[[Charges], Charges]") -> Run:
    """A step of each unit's charges, of those within clients first: what is released about clients derives from it."""
    done = {unit: step(run.charges[unit]) for unit in reversed(list(run.charges))}
    return replace(run, charges={unit: done[unit] for unit in run.charges})


class _FailedAttemptError(Exception):
    """An attempt at a round ended without a sum; it remains among the charges of `run`."""

    def __init__(self, run: Run, reason: TooFewClientsError) -> None:
        Exception.__init__(self)
        self.run, self.reason = run, reason


def _after(run: Run, state: State, report: Report) -> Run:
    """The run one round later."""
    report = replace(report, epsilons=run.epsilons)
    leakage = None if run.leakage is None else run.leakage.after(report)
    if leakage is not None:
        report = replace(report, leakage=leakage.maximum)
    return replace(run, state=state, history=(*run.history, report), leakage=leakage)


@contextmanager
def open_charges(
    run: Run,
    ledger: Path | None,
    name: str,
    noted: "Iterable[tuple[str, LedgerHead]]" = (),
    limit: float | None = None,
) -> Iterator[Run]:
    """The run with its privacy charges, and its ledger held open; none for a method without (ε, δ) accounting.

    Args:
        run: the run so far.
        ledger: the file of the ledger; None: nothing outlives the run.
        name: the run's name in the ledger.
        noted: heads of ledgers that were noted earlier, and where: the ledger must continue those that are its own.
        limit: the ε of a new ledger where the method has no budget; None: it must have one.
    """
    method = run.spec.method
    if not method.terms.accounted:
        if ledger is not None:
            by_client = "d-privacy is accounted for each client separately"
            why = by_client if method.terms.leakage is not None else "it adds no noise, so there is nothing to charge"
            raise UserError(f"Expected no ledger for {method.name}: {why}.")
        yield run
        return
    if ledger is None:
        yield _begin(run)
        return
    unproved = [price.reason for price in method.terms.prices.values() if price.accounted and price.reason]
    if unproved and limit is None:
        raise UserError(
            f"Expected no ledger of several runs for {method.name}: {unproved[0]}. What is not proved would count in "
            "the ε of all runs together, as if it were."
        )
    from tacit.privacy.ledger import Ledger

    with Ledger.open(ledger, *(() if ledger.exists() else _terms(run.spec, limit))) as open_ledger:
        for file, head in noted:
            if head.ledger == open_ledger.head.ledger:
                open_ledger.check_continues(head, file)
        yield _begin(run, open_ledger, name, shared=limit is None)


def _begin(run: Run, ledger: "Ledger | None" = None, name: str = "", *, shared: bool = False) -> Run:
    """The run with the charges of its rounds so far, for every unit that is accounted for.

    On a ledger of several runs, clients are known by the identities of their data.
    """
    from tacit.privacy.charging import begin_charges

    method, population = run.spec.method, run.spec.task.population
    units = population.client_units if Unit.RECORD in method.terms.accounted else None
    within = None if units is None else method.terms.public_units(units)
    if within is not None and shared:
        within = replace(within, identities=client_identities(population))
    return replace(run, charges=begin_charges(method, len(population), within, run.history, ledger, name))


def _terms(spec: RunSpec, limit: float | None) -> "tuple[Budget | None, Accountant | None]":
    """Budget and accountant of a new ledger."""
    from tacit.privacy.planned_charges import accountant_for

    method = spec.method
    budget = method.budget if method.budget is not None or limit is None else Budget(limit, method.delta)
    of_clients = Unit.CLIENT in method.terms.accounted
    return budget, accountant_for(method, len(spec.task.population)) if of_clients else None


def new_ratchet(spec: RunSpec) -> Ratchet | None:
    """A new secret for a run; None if its noise is seeded."""
    return Ratchet.fresh() if spec.randomness == "secret" else None


def make_manifest(spec: RunSpec, ratchet: Ratchet | None) -> Manifest:
    """The manifest of a new run, which names the run's secret key."""
    return spec.manifest if ratchet is None else replace(spec.manifest, key=ratchet.key.digest)
