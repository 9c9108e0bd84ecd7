"""Random rounds with the declared share of liars in every role: the sum is exact, and nobody honest is named.

The suite runs 15 rounds on complete graphs and 10 on sparse ones. A campaign runs more:
`python -m pytest --scale campaign tests/protocols/secagg/test_lie_campaigns.py`.
"""

import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from protocols.secagg.federation import Federation, exact_sum, opened_seeds, parameters, session
from protocols.secagg.liars import Liars, Lie, forger, lie_of
from scale import scaled
from tacit.protocols.secagg import Misbehaviour, Phase, SecaggOutcome, ThreatModel

ROUNDS = scaled(0, campaign=1000)
FIRST = int(os.environ.get("TACIT_SEED", "0"))  # number of the first round
COMPLETE, SPARSE = (10, 10, 11, 13, 20, 20, 30), (65, 70, 80, 100)


def setting(chance: random.Random, cohorts: Sequence[int]) -> Federation:
    """10 % of the clients lie and 20 % may be lost: liars that are excluded, and honest dropouts."""
    count = chance.choice(cohorts)
    p = parameters(
        count, 3, threat_model=chance.choice(list(ThreatModel)), corrupt=Fraction(1, 10), dropout=Fraction(1, 5)
    )
    if chance.random() < 0.3:
        p = replace(p, surplus=p.cohort - p.min_survivors)
    words = np.random.default_rng(chance.getrandbits(64))
    vectors = {j: words.integers(0, 1 << 32, 3, dtype=np.uint64).astype(np.uint32) for j in range(1, count + 1)}
    return Federation(session(p), vectors, serialised=count in COMPLETE, network=Liars({}))


def role(chance: random.Random, federation: Federation, client: int, honest: list[int]) -> Lie:
    """A lie about shares, or about a key that is needed because its client drops out."""
    if chance.random() < 0.7:
        return lie_of(chance)
    liars = federation.session.parameters.graph(len(federation.vectors)).max_wrong
    disputed = chance.sample(honest, chance.choice([0, 0, 1, liars]))
    return forger(federation, client, chance.choice([Phase.UPLOAD, Phase.UPLOAD, Phase.AGREE]), frozenset(disputed))


def tried(index: int, cohorts: Sequence[int]) -> SecaggOutcome:
    """A round with liars and honest dropouts in every phase; together they are as many as may be lost."""
    chance = random.Random(index)
    federation = setting(chance, cohorts)
    p, clients = federation.session.parameters, list(federation.vectors)
    liars = frozenset(chance.sample(clients, p.colluding))
    others = [j for j in clients if j not in liars]
    drops = chance.sample(others, chance.randint(0, p.cohort - p.min_survivors - len(liars)))
    when = {j: chance.choice(list(Phase)) for j in drops}
    federation.dropouts = {phase: frozenset(j for j in drops if when[j] is phase) for phase in Phase}
    federation.network = Liars({j: role(chance, federation, j, others) for j in sorted(liars)})
    federation.seed = index
    outcome = federation.run()
    assert np.array_equal(outcome.result, exact_sum(federation.vectors, outcome.clients)), index
    assert frozenset(others) - frozenset(drops) <= frozenset(outcome.clients), index
    assert outcome.misbehaviour.named <= liars, index
    assert all(liars & set(pair) for pair in outcome.misbehaviour.disputed), index
    assert outcome.transcript.unresponsive <= liars | frozenset(drops), index
    honest = frozenset(outcome.clients) - liars
    expected = opened_seeds(p, outcome.clients)
    assert outcome.noise_seeds.keys() == expected.keys(), index
    assert all(outcome.noise_seeds[j] == seed for j, seed in expected.items() if j in honest), index
    return outcome


@pytest.mark.parametrize(("cohorts", "rounds"), [(COMPLETE, 15), (SPARSE, 10)], ids=["complete", "sparse"])
def test_with_the_declared_share_of_liars_every_round_has_the_right_sum_and_blames_nobody_honest(
    cohorts: Sequence[int], rounds: int
) -> None:
    """All roles at once."""
    ends: Counter[str] = Counter()
    for index in range(FIRST, FIRST + (ROUNDS or rounds)):
        misbehaviour = tried(index, cohorts).misbehaviour
        ends["named"] += bool(misbehaviour.named)
        ends["disputed"] += bool(misbehaviour.disputed)
        ends["nobody"] += misbehaviour == Misbehaviour()
    assert min(ends["named"], ends["disputed"]) > 0, ends
    assert ends["nobody"] or cohorts is SPARSE, ends


def test_cohorts_of_the_sparse_campaign_have_sparse_graphs() -> None:
    for count in SPARSE:
        p = parameters(count, corrupt=Fraction(1, 10), dropout=Fraction(1, 5))
        assert p.draws
        assert p.graph(count).degree < count - 1
