"""Run the rounds of a task for attacks, which receive what the adversary observes and nothing else; set up audits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tacit.attacks.auditing import Audit, AuditAdjacency
from tacit.attacks.dlg import Dlg, Reconstruction, compare, invert
from tacit.attacks.membership import ShadowModel, Unit, members_only, random_halves, unit_losses
from tacit.attacks.views import Adversary, Observation, observe
from tacit.core import CrossEntropy, Key, Method, RunKeys, SimulatedRound, State, prices
from tacit.core.prices import Adjacency
from tacit.data import Task
from tacit.engine import initial_state, module_at, rounds, waves
from tacit.engine.layout import make_model
from tacit.errors import expect, whole
from tacit.pieces.samplers import Everyone
from tacit.runs.run import calibrate_method
from tacit.runs.training import train

_FEW = 3  # clients beside that of a canary that is a record or person


@dataclass(frozen=True, kw_only=True)
class AttackConfig:
    """The victims and the adversary of a reconstruction attack.

    Args:
        images: number of images to attack.
        adversary: who attacks; it determines what is observed.
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
        whole(0, after=self.after)
        whole(1, images=self.images, cohort=self.cohort)
        expect(self.images % self.dlg.samples == 0, f"images={self.images} in batches of {self.dlg.samples}")

    @property
    def victims(self) -> int:
        """Number of clients to attack."""
        return self.images // self.dlg.samples


def observe_victims(method: Method, task: Task, config: AttackConfig, seed: int = 0) -> tuple[Task, list[Observation]]:
    """The task reduced to the victims and their images, and what the adversary observes of them in each round."""
    _check_images_and_classes(task)
    method = calibrate_method(method, len(task.population), task.population.client_units)
    state = _state_after(method, task, config.after, seed)
    victims = _reduce_to_victims(task, config)
    make_wave, size = waves(victims, seed), config.cohort or config.victims
    observations = []
    for index, clients in enumerate(torch.split(torch.arange(config.victims), size)):
        secret = Key.from_seed(seed, "secret").child("attack", index)
        keys, count = RunKeys.of(seed, secret).at(state.round), len(clients)
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
    steps = rounds(replace(method, rounds=after), task, seed=seed, workers=1, evaluate_every=after, randomness="seeded")
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
    samples, advice = task.population.x, "Use digits or mnist."
    expect(
        samples.dim() == 4,
        f"a task with images, but samples of {task.name} have shape {tuple(samples.shape[1:])}",
        advice,
    )
    classes = isinstance(task.loss, CrossEntropy)
    expect(classes, f"a task with classes, but the loss of {task.name} is {task.loss}", advice)


def prepare_audit(
    method: Method,
    task: Task,
    *,
    rounds: int = 4,
    dropouts: float = 0.0,
    adjacency: AuditAdjacency | None = None,
    unit: prices.Unit | None = None,
    seed: int = 0,
) -> Audit:
    """An audit of a method for the model of a task, and as many clients as it has.

    By default for the adjacency and the unit of the method's guarantee; for clients, if it has guarantees for both.
    """
    calibrated = calibrate_method(method, len(task.population), task.population.client_units)
    audited, clients = unit or calibrated.terms.units[0], len(task.population)
    audited = task.population.unit if audited.within_client else audited
    if audited.within_client:  # others change nothing about a record, and the adversary knows them
        clients = min(clients, max(calibrated.channel.min_cohort, _FEW))
    if (
        audited.within_client
        and calibrated.terms.record_bound is None
        and calibrated.channel.messages_seen_by == "server"
    ):
        calibrated = replace(calibrated, sampler=Everyone())
        clients = 0  # the adversary sees the message of the canary's client
    return Audit(
        method=calibrated,
        task=task,
        seed=seed,
        state=initial_state(calibrated, task, seed),
        clients=clients,
        rounds=rounds,
        dropouts=dropouts,
        adjacency=adjacency or claimed_adjacency(calibrated, audited),
        unit=audited,
        shared=RunKeys.from_seed(seed).shared,
    )


def claimed_adjacency(method: Method, unit: prices.Unit | None = None) -> AuditAdjacency:
    """The adjacency of a method's guarantee; add-or-remove for records, and if it has none."""
    if (unit or method.terms.units[0]).within_client:
        return "add-or-remove"
    return "zero-out" if method.terms.adjacency is Adjacency.ZERO_OUT else "add-or-remove"


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
