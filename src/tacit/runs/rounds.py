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

from tacit.core import Method, Report, State, Task
from tacit.errors import BudgetError, UserError
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
) -> Generator[tuple[State, Report]]:
    """Train a task's model with a method, round by round, charged and stopped exactly as by `train`.

    Args:
        method: what clients and server do, and for how many rounds; noise that is not given is sized from its budget.
        task: the model and the data.
        seed: root of all randomness; equal seeds give bitwise equal results, for any number of workers.
        workers: worker processes; None: one per processor.
        device: where to compute, `cpu` or an accelerator's name.
        evaluate_every: evaluate on held-out data every `n` rounds; the last round is always evaluated.
        ledger: a privacy ledger that several runs on the same data charge.

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
    plan = Plan(method=method, task=task, seed=seed, device=device, evaluate_every=evaluate_every)
    _ = plan.simulation  # what does not fit the task is refused here, not at the first round
    return _states(plan, workers, None if ledger is None else Path(ledger))


def _states(plan: Plan, workers: int | None, ledger: Path | None) -> Generator[tuple[State, Report]]:
    with closing(unrecorded(plan, workers, ledger)) as runs:
        next(runs)  # the run as it starts
        for run in runs:
            yield run.state, run.history[-1]


def unrecorded(plan: Plan, workers: int | None, ledger: Path | None) -> Generator[Run]:
    """A run without files: as it starts, and after every round."""
    run = Run.begin(plan, plan.simulation.initial_state)
    with open_charges(plan, (), ledger) as charges:
        yield from charged_rounds(replace(run, charges=charges), workers)


def charged_rounds(run: Run, workers: int | None) -> Generator[Run]:
    """The run as it starts, and after every remaining round; each round is charged before it is played."""
    yield run
    if run.ended:
        return
    plan = run.plan
    steps = plan.simulation.rounds(run.state, workers=workers, evaluate_every=plan.evaluate_every, last=run.rounds)
    with closing(steps):
        while not run.ended:
            try:
                run = _step(run, steps)
            except BudgetError:  # a shared ledger is used up, or too few clients added their share of the noise
                if run.state.round == 0:
                    raise
                return
            yield run


def _step(run: Run, steps: Generator[tuple[State, Report]]) -> Run:
    """Reserve the round's charge, play the round, settle the charge by who took part, and release the model."""
    if run.charges is None:
        return _after(run, *next(steps), None)
    reserved = run.charges.reserve()
    state, report = next(steps)
    charges = reserved.settle(report.turnout)
    charges.release(state)
    return _after(run, state, report, charges)


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
    plan: Plan, done: Sequence[Report], ledger: Path | None, noted: "Iterable[tuple[str, LedgerHead]]" = ()
) -> "Iterator[Charges | None]":
    """A run's privacy charges, with its ledger held open; None for a method without (ε, δ) accounting.

    `noted` are heads of ledgers that were noted earlier, and where: the ledger must continue those that are its own.
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
        yield Charges.begin(method, population, turnouts, opened, plan.manifest.run)


def _why_no_ledger(method: Method) -> str:
    if method.metric:
        return "d-privacy is accounted for each client separately"
    return "it adds no noise, so there is nothing to charge"
