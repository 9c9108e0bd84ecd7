"""What secure aggregation in a federation is bound to, as server and sites compute it, each from its own bytes."""

from dataclasses import replace

from tacit.core import Messages, Round
from tacit.federation import messages as wire
from tacit.federation.federation_plan import FederationPlan
from tacit.federation.messages import SiteRequest
from tacit.federation.metrics import DIM
from tacit.pieces.channels import SecureSum
from tacit.protocols import crypto
from tacit.protocols.secagg import Parameters, SecaggSession
from tacit.wire.packing import pack_number


def session_of(plan: FederationPlan, asked: SiteRequest, verb: str, parameters: Parameters) -> SecaggSession:
    """The session of a request: random run bytes, round, the broadcast's bytes, and all else that parties agree on.

    The configuration covers the verb, the plan with its directory, the method with its noise as this party computed it,
    the attempt, the cohort and what is sent only once. A server that tells two sites different things gets pads that do
    not cancel.
    """
    numbers = b"".join(map(pack_number, (asked.attempt, *asked.cohort)))
    config = crypto.digest(
        "federation", verb.encode(), plan.digest, repr(plan.method).encode(), numbers, asked.first_digest
    )
    return SecaggSession(
        run=asked.run, round=asked.round, model=wire.digest_of(asked.frame), config=config, parameters=parameters
    )


def training_parameters(plan: FederationPlan, like: Messages, now: Round) -> Parameters:
    """Of the sum of messages of this form; it never has fewer of them than the plan's `least_cohort`."""
    tolerated = None if like.surplus is None else like.surplus.tolerated
    return _with_least(plan, _channel(plan).parameters(like.rows.dim, now, tolerated))


def evaluation_parameters(plan: FederationPlan, cohort: int) -> Parameters:
    """Of the sum of metrics: as for a message without noise, with room for all limbs."""
    return _with_least(plan, replace(_channel(plan).parameters_for(cohort, DIM), bits=32))


def _with_least(plan: FederationPlan, found: Parameters) -> Parameters:
    return replace(found, min_uploads=min(max(found.min_survivors, plan.least_cohort), found.cohort))


def _channel(plan: FederationPlan) -> SecureSum:
    channel = plan.method.channel
    assert isinstance(channel, SecureSum)
    return channel
