"""Run the rounds of a task for attacks and audits, which receive what the adversary observes and nothing else."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tacit.attacks.auditing import Audit, AuditAdjacency
from tacit.attacks.bounds import ErrorCounts, OneRunGuesses, PrivacyProfile
from tacit.attacks.dlg import Dlg, Reconstruction, compare, invert
from tacit.attacks.membership import ShadowModel, Unit, members_only, random_halves, unit_losses
from tacit.attacks.views import Adversary, Observation, observe
from tacit.core import CrossEntropy, Key, Method, RunKeys, SimulatedRound, State, Task, Turnout
from tacit.core.prices import Adjacency, Release, reason_unproved
from tacit.engine import initial_state, module_at, rounds, waves
from tacit.engine.layout import make_model
from tacit.errors import UserError, expect
from tacit.runs.records import size_noise
from tacit.runs.training import train


@dataclass(frozen=True, kw_only=True)
class AttackConfig:
    """The victims and the adversary of a reconstruction attack.

    Args:
        images: number of images to attack.
        adversary: who attacks, and therefore what is observed.
        cohort: victims per round; None: all victims are in one round.
        after: number of training rounds before the attack.
        dlg: settings of the attack; its `samples` are those of each client.
    """

    images: int = 20
    adversary: Adversary = "server"
    cohort: int | None = None
    after: int = 0
    dlg: Dlg = Dlg()

    def __post_init__(self) -> None:
        for name, least in (("images", 1), ("after", 0)):
            expect(getattr(self, name) >= least, f"{name}={getattr(self, name)} >= {least}")
        expect(self.cohort is None or self.cohort >= 1, f"cohort={self.cohort} >= 1")
        expect(self.images % self.dlg.samples == 0, f"images={self.images} in batches of {self.dlg.samples}")

    @property
    def victims(self) -> int:
        """Number of clients to attack."""
        return self.images // self.dlg.samples


def observe_victims(method: Method, task: Task, config: AttackConfig, seed: int = 0) -> tuple[Task, list[Observation]]:
    """The task reduced to the victims and their images, and what the adversary observes of them in each round."""
    _check_images_and_classes(task)
    method = size_noise(method, len(task.population))
    state = _state_after(method, task, config.after, seed)
    victims = _reduce_to_victims(task, config)
    make_wave, size = waves(victims, seed), config.cohort or config.victims
    observations = []
    for index, clients in enumerate(torch.split(torch.arange(config.victims), size)):
        keys, count = RunKeys.from_seed(seed).child("attack", index), len(clients)
        now = SimulatedRound(state.round, count, float(count), count, keys.shared, keys.server, keys.clients)
        observations.append(observe(method, state, make_wave(clients), now, config.adversary))
    return victims, observations


def reconstructions(
    task: Task, observations: Sequence[Observation], config: AttackConfig, seed: int = 0
) -> Iterator[Reconstruction]:
    """Attack every client that is observed individually, one after the other."""
    for number, observation in enumerate(observations):
        model = make_model(task, seed)
        for observed in observation.per_client():
            first = number * (config.cohort or 0) if observation.messages is None else 0
            client = observed.client + first
            x, y = task.population[client]
            key = Key.from_seed(seed, "adversary").child("client", client)
            yield compare(invert(observed, model, x[0], config.dlg, key), x, y)


def _state_after(method: Method, task: Task, after: int, seed: int) -> State:
    if after == 0:
        return initial_state(method, task, seed)
    steps = rounds(replace(method, rounds=after), task, seed=seed, workers=1, evaluate_every=after)
    return [state for state, _ in steps][-1]


def _reduce_to_victims(task: Task, config: AttackConfig) -> Task:
    """The task's first clients, each with its first images."""
    samples, population = config.dlg.samples, task.population
    expect(
        config.victims <= len(population),
        f"images={config.images} <= {len(population) * samples}, {samples} of each client",
        "Use fewer images, or a task with more clients.",
    )
    smallest = int(population.sizes[: config.victims].min())
    expect(samples <= smallest, f"batch={samples} <= {smallest}, the images of the smallest client")
    return replace(task, clients=[(x[:samples], y[:samples]) for x, y in population[: config.victims]])


def _check_images_and_classes(task: Task) -> None:
    if task.population.x.dim() != 4:
        shape = tuple(task.population.x.shape[1:])
        raise UserError(
            f"Expected a task with images, but samples of {task.name} have shape {shape}. Use digits or mnist."
        )
    if not isinstance(task.loss, CrossEntropy):
        raise UserError(
            f"Expected a task with classes, but the loss of {task.name} is {task.loss}. Use digits or mnist."
        )


@dataclass(frozen=True)
class Claim:
    """The privacy that a method claims for the audited rounds.

    Attributes:
        epsilon: the claimed ε at this δ; None if nothing is claimed.
        delta: the δ of the claim.
        profile: the claimed δ at any ε; None if nothing is claimed.
        reason: why nothing is claimed.
        full_participation: whether every client is in every cohort, so that the bound for Gaussian noise applies.
    """

    epsilon: float | None
    delta: float
    profile: PrivacyProfile | None = None
    reason: str = ""
    full_participation: bool = False


@dataclass(frozen=True)
class AuditResult:
    """A claim and the lower bounds on ε that an audit found; all bounds hold together with the audit's confidence.

    Attributes:
        claim: what the method claims.
        lower_bounds: lower bounds on ε at the claim's δ, by the name of the bound.
        profile_refuted: whether the errors contradict the claimed privacy profile at any ε.
    """

    claim: Claim
    lower_bounds: Mapping[str, float]
    profile_refuted: bool = False

    @classmethod
    def of(cls, claim: Claim, guesses: ErrorCounts | OneRunGuesses) -> "AuditResult":
        bounds = guesses.lower_bounds(claim.delta, gaussian=claim.full_participation)
        return cls(claim, bounds, claim.profile is not None and guesses.refutes(claim.profile))

    @property
    def best(self) -> float:
        """The largest lower bound on ε."""
        return max(self.lower_bounds.values())

    @property
    def violated(self) -> bool:
        """Whether the claim is proved wrong."""
        return self.profile_refuted or (self.claim.epsilon is not None and self.best > self.claim.epsilon)


def prepare_audit(
    method: Method,
    task: Task,
    *,
    rounds: int = 2,
    dropouts: float = 0.0,
    adjacency: AuditAdjacency | None = None,
    seed: int = 0,
) -> Audit:
    """An audit of a method among the clients of a task; by default for the adjacency of the method's guarantee."""
    sized = size_noise(method, len(task.population))
    return Audit(
        method=sized,
        state=initial_state(sized, task, seed),
        make_wave=waves(task, seed),
        clients=len(task.population),
        rounds=rounds,
        dropouts=dropouts,
        adjacency=adjacency or claimed_adjacency(sized),
    )


def claimed_adjacency(method: Method) -> AuditAdjacency:
    """The adjacency of a method's guarantee; add-or-remove if it has none."""
    price = method.mechanism.price(0)
    in_shares = isinstance(price, Release) and Adjacency.ADD_OR_REMOVE not in price.adjacencies
    return "zero-out" if in_shares else "add-or-remove"


def claim_of(audit: Audit, canaries: int = 1) -> Claim:
    """The privacy that the method claims for the rounds of an audit, with its dropouts."""
    method = audit.method
    price = method.mechanism.price(0)  # what the mechanism itself claims, also if it is not ours
    if not isinstance(price, Release):
        return Claim(None, method.delta, reason=reason_unproved(price) or "no noise is added")
    from tacit.privacy.accountants import Accounting
    from tacit.privacy.charging import accountant_for, release_of

    population = audit.clients + canaries
    cohort = round(method.sampler.sampling(population, 0).mean_cohort(population))
    turnout = Turnout(cohort, cohort - int(audit.dropouts * cohort)) if audit.dropouts else None
    planned = (release_of(method, population, index, turnout) for index in range(audit.rounds))
    releases = [release for release in planned if release is not None]
    accountant = replace(accountant_for(method, population), adjacency=Adjacency(audit.adjacency))  # type: ignore[type-var]
    accounting = Accounting.of(accountant, releases)
    unsampled = all(release.sampling.rate == 1 for release in releases)
    return Claim(accounting.epsilon(method.delta), method.delta, accounting.delta, full_participation=unsampled)


def shadow_models(method: Method, task: Task, unit: Unit, models: int, seed: int = 0) -> Iterator[ShadowModel]:
    """Train this many models, each on a random half of the units, and measure all units' losses under each."""
    population = task.population
    units = len(population) if unit == "client" else len(population.sample_indices)
    for number, members in enumerate(random_halves(units, models, Key.from_seed(seed, "membership"))):
        half = replace(task, clients=members_only(population, unit, members), test=None)
        state = train(method, half, seed=seed + number, workers=1).state
        yield ShadowModel(unit_losses(population, unit, _record_losses(task, seed, state)), members)


@torch.no_grad()
def _record_losses(task: Task, seed: int, state: State) -> Tensor:
    """The loss of every client's records, in the clients' order, under these weights."""
    model, population = module_at(task, seed, state.weights), task.population
    batches = torch.split(population.sample_indices, 1024)
    return torch.cat([task.loss.per_sample(model(population.x[batch]), population.y[batch]) for batch in batches])
