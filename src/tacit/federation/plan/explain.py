"""An explanation of a plan before it runs: training, disclosures, ε, bytes and losses, in plain words."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tacit.core import DenseRows, Method, Round, State
from tacit.core.keys import RunKeys
from tacit.core.prices import Unit
from tacit.core.server_half import broadcast, download_size, no_messages
from tacit.core.state import Traffic
from tacit.engine.simulation import draw
from tacit.federation.plan.encoded_columns import columns_read, describe_public
from tacit.federation.plan.plan import FederationPlan
from tacit.federation.site.policy import cost_of, few_sites_warning, reveals

FEW_HONEST = 20  # below it, the noise for a client that knows its own share is noticeable: 3 %


@dataclass(frozen=True)
class PlanExplanation:
    """The meaning of a plan.

    Attributes:
        plan: its digest.
        method: its name.
        rounds: how many.
        sites: the enrolled sites.
        model: the built-in model, or the function that makes one.
        parameters: the number of trainable parameters; None: the model's code was not run.
        channel: the name of the channel.
        losses: how many sites may drop out of a round, if all take part.
        colluding: how many of them may collude with the server; None: the channel hides nothing from it.
        messages: messages of the server to a site in a round.
        up: bytes that a site sends in a round; None: as for `parameters`.
        down: bytes that it receives; None: as above.
        epsilon: ε of a site that takes part in all rounds, against the server; infinite: no proof.
        delta: the δ of that ε.
        unit: the unit of that ε.
        reason: why there is no proof; empty: there is one.
        trusts_server: whether the server must be trusted.
        reveals: who learns what.
        reads: how each column of the sites' tables is read; empty: sites have samples, not tables.
        notes: what to consider.
    """

    plan: str
    method: str
    rounds: int
    sites: tuple[str, ...]
    model: str
    parameters: int | None
    channel: str
    losses: int
    colluding: int | None
    messages: int
    up: int | None
    down: int | None
    epsilon: float
    delta: float
    unit: Unit
    reason: str
    trusts_server: bool
    reveals: tuple[str, ...]
    reads: tuple[str, ...]
    notes: tuple[str, ...]


def explain_plan(plan: FederationPlan) -> PlanExplanation:
    """Explain a plan; raises `UserError` with a sentence if it cannot run.

    If its functions are not trusted (`FederationPlan.trusted`), the explanation runs none of them.
    """
    plan.check_channel()
    method, channel, _ = plan.method, plan.channel, plan.loss_record
    survival = channel.survival(_cohort(plan), plan.min_cohort)
    state = None if plan.refused_code else plan.run_spec().simulation.initial_state
    cost = cost_of(plan, (), method.delta, plan.records)
    traffic = None if state is None else _traffic(plan, state)
    return PlanExplanation(
        plan=plan.digest.hex(),
        method=plan.method_name,
        rounds=method.rounds,
        sites=plan.directory.names,
        model=plan.model,
        parameters=None if state is None else state.dim,
        channel=channel.word,
        losses=survival.losses,
        colluding=survival.colluding,
        messages=survival.messages,
        up=None if traffic is None else traffic.up,
        down=None if traffic is None else traffic.down,
        epsilon=cost.epsilon,
        delta=method.delta,
        unit=cost.unit,
        reason=cost.reason,
        trusts_server=bool(channel.exposure(method)),
        reveals=tuple(reveals(plan)),
        reads=tuple(columns_read(plan.encoding)),
        notes=tuple(_notes(plan, survival.messages)),
    )


def _traffic(plan: FederationPlan, state: State) -> Traffic:
    """One site's bytes in a round of the whole cohort, as the channel counts them: the mean over all rounds."""
    method = plan.method
    _, drawn = draw(method, plan.population, RunKeys.from_seed(plan.seed).at(0), 0)
    now: Round = replace(drawn, cohort=max(_cohort(plan), 1))
    view = broadcast(method, state, now)
    like = no_messages(method, view, state, now)
    tolerated = 0 if like.surplus is None else like.surplus.tolerated
    one = replace(
        like, clients=like.clients.new_zeros(1), rows=DenseRows(like.rows.dense().new_zeros(1, like.rows.dim))
    )
    if like.samples is not None:
        one = replace(one, samples=like.samples.new_ones(1))
    rounds = (method.channel.overhead(replace(now, index=index), tolerated) for index in range(method.rounds))
    overhead, times = sum((sum(each.values(), Traffic()) for each in rounds), Traffic()), now.cohort * method.rounds
    up = method.channel.message_format.sizes(one)[0] + -(-overhead.up // times)
    return Traffic(up, download_size(method.channel, view, first=False) + -(-overhead.down // times))


def _cohort(plan: FederationPlan) -> int:
    """The sites in a round, if all are present."""
    return math.floor(plan.method.sampler.sampling(plan.population, 0).mean_cohort(plan.population))


def own_shares_note(method: Method, cohort: int) -> str:
    """What it costs that every site knows its own share of the noise, a sentence; empty where it is little."""
    honest = method.mechanism.honest_clients(cohort)
    if honest is None or not 0 < honest < FEW_HONEST:
        return ""
    return (
        f"Each site knows its own share of the noise and could subtract it, so that those of {honest} others have to "
        f"suffice. For one curious site of so few, the sum has {math.sqrt((honest + 1) / honest):.2f} times the noise."
    )


def _notes(plan: FederationPlan, messages: int) -> Iterator[str]:
    if plan.refused_code:
        yield (
            f"Nothing of {' and '.join(plan.functions.values())} was run, because only the plan names it. To count "
            "parameters and bytes and to try the public data, read that code, and if you trust it, add --trust."
        )
    if plan.encoding is not None:
        yield from filter(None, (describe_public(plan.encoding),))
    yield from filter(None, (few_sites_warning(plan),))
    yield from filter(None, (own_shares_note(plan.method, _cohort(plan)),))
    sampling = plan.method.sampler.sampling(plan.population, 0)
    if sampling.kind == "poisson":
        yield (
            f"Cohorts vary in size. One of fewer than {plan.min_cohort} sites (min_cohort) ends without a sum and "
            f'{plan.channel.too_few}. Use sampler = "Everyone()" where all sites can take part in every round.'
        )
    yield from plan.channel.notes
    if sampling.rate < 1:
        yield (
            "The server and the other sites of a round know who takes part: against them, sampling does not amplify "
            "privacy."
        )
    timeouts, talks = plan.timeouts, messages - 1
    yield (
        f"A site that does not answer delays a round by {timeouts.train:g} s, or by {timeouts.message:g} s in a later "
        f"message; a round takes at most {timeouts.train + talks * timeouts.message:g} s. After two failures in a row "
        "a site is not asked any more."
    )
