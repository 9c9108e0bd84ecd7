"""The loop over charged rounds, which `rounds` gives to its caller and `train` records.

Reserve, compute, settle, release: every round is charged before any of its noise is drawn, and a budget ends the loop
before the round that would exceed it. The engine's loop (`Simulation.rounds`) knows nothing about charges; nothing but
this module plays it for a caller that has a budget.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tacit.core import KeySource, Method, Noise, Report, SecretKeys, SeededKeys, State, Task
from tacit.core.keys import Ratchet
from tacit.errors import BudgetError, TrainingError, UserError
from tacit.runs.manifest import Manifest
from tacit.runs.records import Plan, Run

if TYPE_CHECKING:
    from tacit.privacy.charging import Charges
    from tacit.privacy.ledger_head import LedgerHead


def rounds(
    method: Method,
    task: Task,
    *,
    seed: int = 0,
    workers: int | None = None,
    device: str = "cpu",
    evaluate_every: int = 1,
    ledger: Path | str | None = None,
    noise: Noise = "secret",
) -> Generator[tuple[State, Report]]:
    """Train a task's model with a method, round by round, charged and stopped exactly as by `train`.

    Args:
        method: what clients and server do, and for how many rounds; noise that is not given is sized from its budget.
        task: the model and the data.
        seed: decides what may be public: initial weights, masks, what is learnt from public data.
        workers: worker processes; None: one per processor.
        device: where to compute, `cpu` or an accelerator's name.
        evaluate_every: evaluate on held-out data every `n` rounds; the last round is always evaluated.
        ledger: a privacy ledger that several runs on the same data charge; None: none.
        noise: `secret`: cohorts, batches and noise come from a fresh key of the operating system; `seeded`: they derive
            from the seed, and equal seeds give bitwise equal results, for any number of workers. Whoever knows the seed
            can then subtract the noise, and the guarantee says so.

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
        >>> epsilons = [report.epsilon for _, report in tacit.rounds(method, task, workers=1)]
        >>> len(epsilons), round(epsilons[-1], 2)
        (14, 2.89)
    """
    plan = Plan(method=method, task=task, seed=seed, device=device, evaluate_every=evaluate_every, noise=noise)
    _ = plan.simulation  # what does not fit the task is refused here, not at the first round
    return _states(plan, workers, None if ledger is None else Path(ledger))


def _states(plan: Plan, workers: int | None, ledger: Path | None) -> Generator[tuple[State, Report]]:
    with closing(unrecorded(plan, workers, ledger)) as runs:
        next(runs)  # the run as it starts
        for run in runs:
            if run.diverged:  # the last state was yielded before
                return
            yield run.state, run.history[-1]


def unrecorded(plan: Plan, workers: int | None, ledger: Path | None) -> Generator[Run]:
    """A run without files: as it starts, and after every round."""
    run, ratchet = Run.begin(plan, plan.simulation.initial_state), new_ratchet(plan)
    with open_charges(plan, (), ledger, keyed_manifest(plan, ratchet).run) as charges:
        yield from charged_rounds(replace(run, charges=charges), workers, run_keys(plan, ratchet))


def charged_rounds(run: Run, workers: int | None, keys: KeySource) -> Generator[Run]:
    """The run as it starts, and after every remaining round; each round is charged before it is played."""
    yield run
    if run.ended:
        return
    plan = run.plan
    steps = plan.simulation.rounds(
        run.state, workers=workers, evaluate_every=plan.evaluate_every, last=run.rounds, keys=keys
    )
    with closing(steps):
        while not run.ended:
            try:
                run = _step(run, steps, keys)
            except _NonFiniteModelError as problem:  # the round was charged, and its model is not released
                if run.state.round == 0:
                    raise TrainingError(_NOT_FINITE) from None
                yield replace(run, charges=problem.charges, diverged=True)
                return
            except BudgetError:  # a shared ledger is used up, or too few clients added their share of the noise
                if run.state.round == 0:
                    raise
                return
            yield run


def _step(run: Run, steps: Generator[tuple[State, Report]], keys: KeySource) -> Run:
    """Reserve the round's charge, play the round, settle the charge by who took part, and release the model."""
    if run.charges is None:
        state, report = next(steps)
        _check_finite(state, None)
        return _after(run, state, report, None)
    reserved = run.charges.reserve(keys.keys(run.state.round).server.digest)
    state, report = next(steps)
    charges = reserved.settle(report.turnout)
    _check_finite(state, charges)
    charges.release(state)
    return _after(run, state, report, charges)


class _NonFiniteModelError(Exception):
    """A round led to a model with infinite weights or NaN; `charges` include that round."""

    def __init__(self, charges: "Charges | None") -> None:
        Exception.__init__(self)
        self.charges = charges


_NOT_FINITE = (
    "The model is not finite after the first round: training diverged. "
    "Lower the learning rate, take fewer local steps, or clip."
)


def _check_finite(state: State, charges: "Charges | None") -> None:
    if not bool(torch.isfinite(state.weights).all()):
        raise _NonFiniteModelError(charges)


def _after(run: Run, state: State, report: Report, charges: "Charges | None") -> Run:
    """The run one round later."""
    if charges is not None:
        report = replace(report, epsilon=charges.epsilon)
    leakage = None if run.leakage is None else run.leakage.after(report)
    if leakage is not None:
        report = replace(report, leakage=leakage.maximum)
    return replace(run, state=state, history=(*run.history, report), charges=charges, leakage=leakage)


@contextmanager
def open_charges(
    plan: Plan,
    done: Sequence[Report],
    ledger: Path | None,
    name: str,
    noted: "Iterable[tuple[str, LedgerHead]]" = (),
) -> "Iterator[Charges | None]":
    """A run's privacy charges, with its ledger held open; None for a method without (ε, δ) accounting.

    Args:
        plan: what is run.
        done: its rounds so far.
        ledger: the file of the ledger; None: nothing outlives the run.
        name: the run's name in the ledger.
        noted: heads of ledgers that were noted earlier, and where: the ledger must continue those that are its own.
    """
    method, population = plan.method, len(plan.task.population)
    if not method.accounted:
        if ledger is not None:
            raise UserError(f"Expected no ledger for {method.name}: {_why_no_ledger(method)}.")
        yield None
        return
    from tacit.privacy.charging import Charges, accountant_for
    from tacit.privacy.ledger import Ledger

    turnouts = [report.turnout for report in done]
    if ledger is None:
        yield Charges.begin(method, population, turnouts)
        return
    terms = () if ledger.exists() else (method.budget, accountant_for(method, population))
    with Ledger.open(ledger, *terms) as opened:
        for where, head in noted:
            if head.ledger == opened.head.ledger:
                opened.check_continues(head, where)
        yield Charges.begin(method, population, turnouts, opened, name)


def new_ratchet(plan: Plan) -> Ratchet | None:
    """A new secret for a run; None if its noise is seeded."""
    return Ratchet.fresh() if plan.noise == "secret" else None


def keyed_manifest(plan: Plan, ratchet: Ratchet | None) -> Manifest:
    """The manifest of a new run, which names the run's secret key."""
    return plan.manifest if ratchet is None else replace(plan.manifest, key=ratchet.key.digest)


def run_keys(plan: Plan, ratchet: Ratchet | None) -> KeySource:
    """The keys of a run's rounds."""
    return SeededKeys(plan.seed) if plan.noise == "seeded" else SecretKeys(plan.seed, ratchet)


def _why_no_ledger(method: Method) -> str:
    if method.metric:
        return "d-privacy is accounted for each client separately"
    return "it adds no noise, so there is nothing to charge"
