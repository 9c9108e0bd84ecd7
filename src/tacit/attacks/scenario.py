"""Where attacks meet tasks and engine: rounds are really played, and attacks get what their vantage point shows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tacit.attacks.auditing import Adjacency, Trial
from tacit.attacks.bounds import Errors, Guesses, Profile
from tacit.attacks.dlg import Dlg, Likeness, compare, invert
from tacit.attacks.membership import Level, Models, halves, part_of, unit_losses
from tacit.attacks.views import Observation, Vantage, observe
from tacit.core import CrossEntropy, Key, Method, Round, State, Task, Turnout
from tacit.engine import initial_state, module_at, rounds, waves
from tacit.engine.layout import make_model
from tacit.errors import UserError, expect
from tacit.runs.run import size_noise
from tacit.runs.training import train


@dataclass(frozen=True, kw_only=True)
class Siege:
    """Whom a reconstruction is tried on, and from where.

    Args:
        images: how many images are attacked.
        vantage: where the adversary stands.
        cohort: how many clients take part in a round with the victim; None: all victims take part in one.
        after: how many rounds are trained before.
        attack: how the adversary goes about it; its `samples` are those of each client.
    """

    images: int = 20
    vantage: Vantage = "server"
    cohort: int | None = None
    after: int = 0
    attack: Dlg = Dlg()

    def __post_init__(self) -> None:
        for name, least in (("images", 1), ("after", 0)):
            expect(getattr(self, name) >= least, f"{name}={getattr(self, name)} >= {least}")
        expect(self.cohort is None or self.cohort >= 1, f"cohort={self.cohort} >= 1")
        expect(self.images % self.attack.samples == 0, f"images={self.images} in batches of {self.attack.samples}")

    @property
    def victims(self) -> int:
        """How many clients are attacked."""
        return self.images // self.attack.samples


def besieged(method: Method, task: Task, siege: Siege, seed: int = 0) -> tuple[Task, list[Observation]]:
    """The task with victims of a few images each, and what the adversary sees of them."""
    _check(task)
    method = size_noise(method, len(task.population))
    state = _state(method, task, siege.after, seed)
    victims = _victims(task, siege)
    wave, size = waves(victims, seed), siege.cohort or siege.victims
    seen = []
    for index, clients in enumerate(torch.split(torch.arange(siege.victims), size)):
        keys = (Key.from_seed(seed, name).child("attack", index) for name in ("shared", "secret"))
        now = Round(state.round, len(clients), float(len(clients)), len(clients), *keys)
        seen.append(observe(method, state, wave(clients), now, siege.vantage))
    return victims, seen


def reconstructions(task: Task, seen: Sequence[Observation], siege: Siege, seed: int = 0) -> Iterator[Likeness]:
    """What the adversary makes of every client that its view shows singly, one after the other."""
    for number, observation in enumerate(seen):
        model = make_model(task, seed)
        for trace in observation.single():
            client = trace.client + number * (siege.cohort or 0) if observation.messages is None else trace.client
            x, y = task.population[client]
            found = invert(trace, model, x[0], siege.attack, Key.from_seed(seed, "adversary").child("client", client))
            yield compare(found, x, y)


def _state(method: Method, task: Task, after: int, seed: int) -> State:
    if after == 0:
        return initial_state(method, task, seed)
    steps = rounds(replace(method, rounds=after), task, seed=seed, workers=1, evaluate_every=after)
    return [state for state, _ in steps][-1]


def _victims(task: Task, siege: Siege) -> Task:
    """The task's first clients, each with its first images."""
    samples, population = siege.attack.samples, task.population
    expect(
        siege.victims <= len(population),
        f"images={siege.images} <= {len(population) * samples}, {samples} of each client",
        "Take fewer images, or a task with more clients.",
    )
    few = int(population.sizes[: siege.victims].min())
    expect(samples <= few, f"batch={samples} <= {few}, the images that the smallest client has")
    return replace(task, clients=[(x[:samples], y[:samples]) for x, y in population[: siege.victims]])


def _check(task: Task) -> None:
    if task.population.x.dim() != 4:
        shape = tuple(task.population.x.shape[1:])
        raise UserError(f"Expected a task with images, but samples of {task.name} are of shape {shape}. Take mnist.")
    if not isinstance(task.loss, CrossEntropy):
        raise UserError(f"Expected a task with classes, but the loss of {task.name} is {task.loss}. Take mnist.")


@dataclass(frozen=True)
class Claim:
    """What a method claims about the rounds that are audited.

    Attributes:
        epsilon: at this δ; None if it claims nothing.
        delta: the probability with which it may fail.
        profile: the claimed δ at any ε; None if it claims nothing.
        reason: why nothing is claimed.
        whole: whether every round is a sum over everyone, so that a bound for Gaussian noise is exact.
    """

    epsilon: float | None
    delta: float
    profile: Profile | None = None
    reason: str = ""
    whole: bool = False


def claim_of(trial: Trial, canaries: int = 1) -> Claim:
    """The claim about a trial's rounds, at the prices of its own turnout."""
    method = trial.method
    if method.mechanism.unproved or not method.priced:
        return Claim(None, method.delta, reason=method.mechanism.unproved or "no noise is added")
    from tacit.privacy.accountants import Adjacency as Relation
    from tacit.privacy.accounting import Accounting
    from tacit.privacy.charging import accountant_of
    from tacit.privacy.events import event_of

    everyone = trial.bystanders + canaries
    cohort = round(method.sampler.expected(everyone, 0))
    turnout = Turnout(cohort, cohort - int(trial.dropouts * cohort)) if trial.dropouts else None
    events = [event_of(method, everyone, index, turnout) for index in range(trial.rounds)]
    accountant = replace(accountant_of(method, everyone), adjacency=Relation(trial.adjacency))  # type: ignore[type-var]
    book = Accounting.of(accountant, [event for event in events if event is not None])
    whole = all(event == method.mechanism.event(index, turnout) for index, event in enumerate(events))
    return Claim(book.epsilon(method.delta), method.delta, book.delta, whole=whole)


def trial_of(
    method: Method,
    task: Task,
    *,
    rounds: int = 2,
    dropouts: float = 0.0,
    adjacency: Adjacency = "add-or-remove",
    seed: int = 0,
) -> Trial:
    """A method among a task's clients, ready to be audited."""
    fit = size_noise(method, len(task.population))
    return Trial(
        method=fit,
        state=initial_state(fit, task, seed),
        waves=waves(task, seed),
        bystanders=len(task.population),
        rounds=rounds,
        dropouts=dropouts,
        adjacency=adjacency,
    )


@dataclass(frozen=True)
class Verdict:
    """A claim beside the lower bounds that an audit found, by name; all hold together with the audit's confidence."""

    claim: Claim
    bounds: Mapping[str, float]
    refuted: bool = False  # somewhere on the claimed curve, if not at its δ

    @property
    def exceeded(self) -> bool:
        """Whether the claim is wrong."""
        over = self.claim.epsilon is not None and max(self.bounds.values()) > self.claim.epsilon
        return self.refuted or over


def judge(claim: Claim, found: Errors | Guesses) -> Verdict:
    """What the guesses prove, beside the claim."""
    if isinstance(found, Guesses):
        return Verdict(claim, {"one run": found.epsilon(claim.delta)})
    bounds = {"Clopper-Pearson": found.epsilon(claim.delta)}
    if claim.whole:
        bounds["Gaussian"] = found.gaussian(claim.delta)
    return Verdict(claim, bounds, claim.profile is not None and found.refute(claim.profile))


def members(method: Method, task: Task, level: Level, models: int, seed: int = 0) -> "Iterator[Models | None]":
    """Train so many models on halves of the units; yields None after each, and at last all losses."""
    population = task.population
    units = len(population) if level == "client" else len(population.owned)
    inside = halves(units, models, Key.from_seed(seed, "membership"))
    losses = []
    for number, mine in enumerate(inside):
        part = replace(task, clients=part_of(population, level, mine), test=None)
        state = train(method, part, seed=seed + number, workers=1).state
        losses.append(unit_losses(population, level, _losses(task, seed, state)))
        yield None
    yield Models(torch.stack(losses), inside)


@torch.no_grad()
def _losses(task: Task, seed: int, state: State) -> Tensor:
    """The loss of every record that a client owns, under these weights."""
    model, pool, owned = module_at(task, seed, state.weights), task.population, task.population.owned
    parts = [task.loss.per_sample(model(pool.x[some]), pool.y[some]) for some in torch.split(owned, 1024)]
    return torch.cat(parts)
