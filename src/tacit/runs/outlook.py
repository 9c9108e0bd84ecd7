"""What noise for whole clients leaves to learn, said before the first round, from public values alone.

The noise of all rounds adds up like a random walk, to about σ·S·√(d·T)/m for d numbers, T rounds and cohorts of m; what
the clients change adds up to at most S·T, and only if all of them agree. With more noise than that, nothing is learnt.
"""

from math import sqrt

from tacit.core.keys import RunKeys
from tacit.core.prices import Unit
from tacit.core.server_half import broadcast, no_messages
from tacit.engine.simulation import draw
from tacit.runs.run import Run

MAX_RATIO_TO_CHANGE = 1.0  # noise in relation to the largest change of the model, from which on nothing is learnt


def noise_to_change(run: Run) -> float | None:
    """The noise in the model after all rounds, in relation to its largest change; None: it is not for clients."""
    method, population = run.spec.method, len(run.spec.task.population)
    noise = getattr(method.mechanism, "noise_multiplier", None)
    if Unit.CLIENT not in method.terms.accounted or not noise:
        return None
    _, now = draw(method, population, RunKeys.from_seed(run.spec.seed).at(0), 0)
    numbers = no_messages(method, broadcast(method, run.state, now), run.state, now).rows.dim
    cohort = method.sampler.sampling(population, 0).mean_cohort(population)
    return float(noise) * sqrt(numbers) / (cohort * sqrt(max(run.rounds, 1)))


def outlook(run: Run) -> str:
    """A warning if noise will hide what the clients can teach; empty if it need not."""
    ratio = noise_to_change(run)
    if ratio is None or ratio <= MAX_RATIO_TO_CHANGE:
        return ""
    clients = len(run.spec.task.population)
    return (
        f"{clients} clients are too few for this budget: after {run.rounds} rounds, the noise in the model will be "
        f"{ratio:.2g} times the largest change that clients can make, so that next to nothing is learnt. Protect "
        "records instead of clients (dp-fedsgd), train fewer weights, or use more clients or a larger ε."
    )
