"""A site's policy, and a plan's cost and disclosures there.

A site does its own privacy accounting, without the server's. It charges the cost against the server, which knows who
takes part, so the sampling of clients amplifies nothing.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec import field as member

from tacit.core import Budget, Method
from tacit.core.prices import NO_LIMIT, Gaussian, Release, Sampling, Unit
from tacit.errors import UserError
from tacit.federation.channels.interface import FederatedChannel, all_words, channel_named
from tacit.federation.plan import entry_points
from tacit.federation.plan.encoded_columns import columns_read, read_columns
from tacit.federation.plan.entry_points import AllowedCode
from tacit.federation.plan.plan import FederationPlan
from tacit.privacy.guarantee import AT_SEVERAL, PERSONS

if TYPE_CHECKING:
    from tacit.privacy.unit_accounting import Charge

TAKES_PART = "That a site takes part is known and not protected: ε compares its update with zeros (zero-out)."
MAX_REVIEWED_ROUNDS = 10_000  # of a plan: the cost of each is computed
NO_NOISE = Release(Gaussian(0.0))  # the charge for rounds without a proof: no finite ε holds after them
FEW_CLIENTS = 100  # below it, noise that hides a whole client hides most of what clients have in common


UNPROVED_EARLIER = (
    "This site let an earlier plan run for which no ε is proved (epsilon = inf): nothing bounds any more what has been "
    "released about its data"
)


class SitePolicy(Struct, frozen=True):
    """The table `allow` of a site's file.

    Attributes:
        methods: names of the methods that may run.
        models: functions that make models, and the pin of their installed code.
        channels: `plain`, `secure-sum/semi_honest`, `secure-sum/active_server`, `enclave`.
        epsilon: ε of all plans together, against the server; `inf` allows methods without a proved (ε, δ) guarantee.
        delta: δ of all plans together.
        min_cohort: the fewest sites in a sum or a metric.
        metrics: how the site may send metrics on its held-out data: never, only in a secure sum, or in the clear.
        trust_server: whether the server may see this site's messages without noise and add it itself.
        columns: the columns of the site's table that plans may read; None: all but that of person ids.
        attestation: the enclaves that this site accepts, an `AttestationPolicy` in plain values; by default none.
    """

    methods: tuple[str, ...]
    models: Mapping[str, str]
    channels: tuple[str, ...]
    epsilon: Annotated[float, Meta(gt=0, description="a positive number, or inf")]
    delta: Annotated[float, Meta(gt=0, lt=1)] = 1e-5
    min_cohort: Annotated[int, Meta(ge=1)] = 5
    metrics: Literal["none", "secure-sum", "plain"] = "none"
    trust_server: bool = False
    columns: tuple[str, ...] | None = None
    attestation: Mapping[str, Any] = member(default_factory=dict)

    def __post_init__(self) -> None:
        for name, pin in self.models.items():
            entry_points.check_name(name, "a model")
            if not entry_points.PIN.fullmatch(pin):
                raise UserError(f"Expected the pin of {name} as sha256: and 64 hexadecimal digits, got {pin[:80]!r}.")
        for word in self.channels:
            channel = channel_named(word)
            if channel is None:
                raise UserError(f"Expected channels in {', '.join(all_words())}, got {word}.")
            channel.check_policy(self)

    @property
    def budget(self) -> Budget:
        """The budget of all plans together. A site without a limit keeps a ledger, too: it may set one later."""
        return Budget(min(self.epsilon, NO_LIMIT), self.delta)

    @property
    def code(self) -> AllowedCode:
        """The third-party code that the site runs for a plan."""
        return AllowedCode(self.models, self.methods)

    def allows_metrics(self, channel: FederatedChannel) -> bool:
        """Whether the site may send metrics through this channel."""
        return self.metrics == "plain" or (self.metrics == "secure-sum" and channel.sums_metrics)


@dataclass(frozen=True)
class Cost:
    """The cost of a plan's rounds to a participant.

    Attributes:
        epsilon: ε of all of the plan's rounds against the server, at the policy's δ; infinite: no proof.
        used: ε of earlier plans at the same δ.
        total: ε of both together.
        within: where the unit is the client, the ε of one of its records, for both together; otherwise 0.
        unit: the unit of this ε: records or persons, as soon as one of the plans protects them.
        reason: why there is no proof; empty: there is one.
        mixed: whether not all plans protect the same unit.
    """

    epsilon: float
    used: float
    total: float
    within: float
    unit: Unit
    reason: str
    mixed: bool = False

    @classmethod
    def infinite(cls, unit: Unit, reason: str, used: float = 0.0) -> "Cost":
        """An infinite ε, with a reason."""
        return cls(math.inf, used, math.inf, 0.0, unit, reason)


@dataclass(frozen=True)
class Review:
    """A plan's cost and disclosures at a site, and the objections of the site's policy.

    Attributes:
        plan: the plan's digest.
        objections: the policy's objections, as sentences; empty: the plan is within it.
        cost: in ε, together with earlier plans.
        rounds: the number of planned rounds; 0: unknown, because the method may not run here.
        reveals: who learns what, as sentences.
        reads: how the plan reads the columns of the site's table, as sentences.
        problems: why the site's data do not fit, as sentences; they may quote data, as `remarks` do.
        remarks: losses and rare values in the encoding of the data, as sentences.
    """

    plan: bytes
    objections: tuple[str, ...]
    cost: Cost
    rounds: int
    reveals: tuple[str, ...]
    reads: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def accepted(self) -> bool:
        return not self.objections and not self.problems

    @property
    def refusal(self) -> str:
        """What refuses the plan at the site, in words."""
        return "policy refuses the plan" if self.objections else "data do not fit the plan"


def review(
    plan: FederationPlan, allow: SitePolicy, earlier: "Sequence[tuple[str, Charge]]" = (), samples: int = 0
) -> Review:
    """Review a plan.

    Args:
        plan: the plan.
        allow: the site's policy.
        earlier: the charges in the site's ledger so far, each with the name of its run.
        samples: the site's number of records, or persons; 0: the plan's number.
    """
    plan = plan.allow(allow.code)
    readable = plan.has_readable_method
    unread = "its method is code of another package that this site does not allow, and was not run"
    cost = Cost.infinite(Unit.CLIENT, unread)
    if readable:
        cost = cost_of(plan, earlier, allow.delta, samples or plan.records)
    return Review(
        plan=plan.digest,
        objections=(*objections(plan, allow), *over_budget(plan, allow, cost)),
        cost=cost,
        rounds=plan.method.rounds if readable else 0,
        reveals=tuple(reveals(plan, allow)) if readable else (),
        reads=tuple(columns_read(plan.encoding)),
    )


def cost_of(plan: FederationPlan, earlier: "Sequence[tuple[str, Charge]]", delta: float, samples: int = 1) -> Cost:
    """The cost of all of a plan's rounds, for a site with `samples` records or persons that takes part in each.

    Releases of plans that protect clients are charged to records and persons, too, at twice the distance.
    """
    if plan.method.rounds > MAX_REVIEWED_ROUNDS:
        return Cost.infinite(unit_of(plan), f"it is computed for at most {MAX_REVIEWED_ROUNDS} rounds")
    from tacit.privacy.accountants import default_accountant
    from tacit.privacy.ledger_accounts import LedgerAccounts

    reason, planned = reason_unbounded(plan.method), range(plan.method.rounds)
    own = [] if reason else [("", charge_of_round(plan, index, samples)) for index in planned]
    of_clients = [charge for _, charge in (*earlier, *own) if not charge.unit.within_client]
    accountant = default_accountant(*(release for charge in of_clients for release in charge.releases))
    alone, before, both = (LedgerAccounts.of(accountant, each) for each in (own, earlier, (*earlier, *own)))
    unit = both.within if any(each.within_client for each in both.units) else unit_of(plan)
    epsilon, used, total = (each[unit].epsilon(delta) for each in (alone, before, both))
    if reason:
        return Cost.infinite(unit, reason, used)
    within = 0.0 if unit.within_client else both[Unit.RECORD].epsilon(delta)
    return Cost(epsilon, used, total, within, unit, "", mixed=unit.within_client and bool(of_clients))


def charge_of_round(plan: FederationPlan, index: int, samples: int) -> "Charge":
    """A round's charge to a participant, against the server, which knows that it takes part.

    A round for which nothing is proved is charged, too, as one without noise. Where the method protects records, the
    charge is to them: the site's secret batches amplify against the server too.
    """
    from tacit.privacy.unit_accounting import Charge

    unit = unit_of(plan)
    price = plan.method.terms.price(unit, index=index, samples=max(samples, 1))
    if price is None or price.reason or price.accounted is None:
        return Charge.of_clients(NO_NOISE)
    if unit.within_client:
        return Charge(unit, {0: price.accounted})
    return Charge.of_clients(price.accounted.release.sampled(Sampling()))


def unit_of(plan: FederationPlan) -> Unit:
    """The unit of charges: the record or the person where records are protected, or else the client."""
    return plan.unit if plan.method.terms.protects_records else Unit.CLIENT


def reason_unbounded(method: Method) -> str:
    """Why a participant's ε is unbounded, in words; empty if it is bounded."""
    price = method.terms.prices[Unit.RECORD if method.terms.protects_records else Unit.CLIENT]
    if price.leakage is not None and not price.reason:
        return "it is accounted as d-privacy, which is not an ε of (ε, δ)"
    return price.reason


def over_budget(plan: FederationPlan, allow: SitePolicy, cost: Cost) -> Iterator[str]:
    """A sentence if the plan exceeds the policy's budget; each round's charge is checked again."""
    if not cost.reason and cost.total > allow.epsilon:
        earlier = f", together with ε = {cost.used:.3g} of earlier plans" if cost.used else ""
        earlier += f". {UNPROVED_EARLIER}" * math.isinf(cost.used)
        why = (
            f" What is released about the whole site counts for a {cost.unit}, too, at twice its distance." * cost.mixed
        )
        yield (
            f"{plan.method.rounds} rounds cost ε = {cost.total:.4g} at δ = {allow.delta:g} for a {cost.unit} against "
            f"the server{earlier}. This site allows {allow.epsilon:g}.{why}"
        )


def objections(plan: FederationPlan, allow: SitePolicy) -> Iterator[str]:
    """The policy's objections regardless of earlier spending, as sentences.

    Names come first: third-party code that the policy does not allow is not imported for further checks.
    """
    if plan.method_name not in allow.methods:
        yield f"The method {plan.method_name} is not among those that this site allows: {', '.join(allow.methods)}."
    if plan.has_own_model:
        yield from filter(None, (allow.code.function_problem(plan.model, "the model"),))
    if plan.encoding is not None and allow.columns is not None:
        others = [repr(name) for name in read_columns(plan.encoding) if name not in allow.columns]
        if others:
            yield f"The plan reads the columns {', '.join(others)}, which this site does not allow (columns)."
    here = plan.allow(allow.code)
    if here.has_readable_method:
        yield from _method_objections(here, allow)


def _method_objections(plan: FederationPlan, allow: SitePolicy) -> Iterator[str]:
    """The policy's objections to the plan's method, as sentences."""
    method = plan.method
    unbounded = reason_unbounded(method)
    channel = plan.channel
    if not set(channel.allowed_by) & set(allow.channels):
        yield (f"The channel {channel.word} is not among those that this site allows: {', '.join(allow.channels)}.")
    if method.rounds > MAX_REVIEWED_ROUNDS:
        most = f"This site reviews at most {MAX_REVIEWED_ROUNDS}: ask for several plans."
        yield f"The plan has {method.rounds} rounds. {most}"
    problem = channel.problem(plan)
    yield from (problem,) if problem else channel.objections(plan, allow)
    exposed = channel.exposure(method)
    if exposed and not allow.trust_server:
        yield exposed
    if unbounded and math.isfinite(allow.epsilon):
        yield f"ε against the server is not bounded: {unbounded}. This site allows at most {allow.epsilon:g}."
    if plan.min_cohort < allow.min_cohort:
        yield (
            f"The plan ends a round with {plan.min_cohort} sites; this site requires {allow.min_cohort} in a sum "
            f"(min_cohort)."
        )


def unit_objections(plan: FederationPlan, known: Unit, units: int) -> Iterator[str]:
    """Objections if a plan protects records and the site knows persons, or vice versa, or has fewer than the plan says.

    `known`: the site's unit; `units`: the number of them in training.

    A site that knows persons must not ignore them: a person with several records would be protected less than the site
    expects. Nor may it protect persons where the plan declares records: removing a record moves the clipped mean of its
    person's gradients by up to twice the bound, so the plan's ε for records would be wrong.
    """
    if not plan.method.terms.protects_records:
        return
    if plan.unit is known:
        if plan.records > units:
            yield (
                f"The plan's ε assumes that every site has at least {plan.records} {known}s (records), and this site "
                f"trains on fewer: its batches would draw each at a higher rate. Ask for a plan with a smaller number."
            )
        return
    if known is Unit.PERSON:
        yield (
            "The plan protects single records, and this site's data say which are one person's (person): a person "
            'with several would be protected as that many records. Ask for a plan with unit = "person".'
        )
    else:
        yield (
            "The plan protects persons, and this site's data do not say which records are one person's. Name the "
            'column with their ids (person = "column"), or let the data\'s function return (x, y, persons).'
        )


def reveals(plan: FederationPlan, allow: SitePolicy | None = None) -> Iterator[str]:
    """Who learns what under this plan, as sentences; with a policy, what this site adds to it."""
    channel = plan.channel
    yield from channel.reveals(plan.method)
    if plan.method.terms.protects_records:
        yield PERSONS if plan.unit is Unit.RECORD else AT_SEVERAL.format(unit=plan.unit)
    if plan.evaluate_every:
        how = "as a sum over all sites" if channel.sums_metrics else "of every site"
        sends = allow is None or allow.allows_metrics(channel)
        refused = "" if sends else " This site sends none (metrics)."
        yield f"The server learns loss, accuracy and number of held-out samples {how}, without noise.{refused}"
    yield "Nobody can be kept from taking part badly or not at all: availability and poisoning are not covered."


def few_sites_warning(plan: FederationPlan) -> str:
    """The strength of the unit of privacy at this number of sites, a sentence."""
    sites, unit = plan.population, unit_of(plan)
    if reason_unbounded(plan.method) or unit.within_client or sites >= FEW_CLIENTS:
        return ""
    return (
        f"The unit is the client, here a whole site: noise that hides one of {sites} sites hides most of what they "
        "have in common, so that little is learnt at a small ε. For few sites, use a method whose unit is the record."
    )
