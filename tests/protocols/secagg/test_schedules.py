"""Random schedules: whatever is lost, doubled or late, the sum is exact, or there is none.

The suite plays 300, and a hundred clients three times. More:
`TACIT_SCHEDULES=10000 TACIT_HUNDREDS=100 python -m pytest tests/channels/secagg/test_schedules.py`.
"""

import os
import random
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest

from protocols.secagg.federation import Federation, parameters, session, total
from tacit.protocols import secagg
from tacit.protocols.secagg import Drop, Level, Parameters, Phase, TooFewError

SCHEDULES = int(os.environ.get("TACIT_SCHEDULES", "300"))
HUNDREDS = int(os.environ.get("TACIT_HUNDREDS", "3"))


@dataclass
class BadNetwork:
    """Shuffles replies, doubles some, repeats old ones, and lets a stranger talk."""

    chance: random.Random
    expected: Counter[Drop]

    def __post_init__(self) -> None:
        self.old: list[tuple[int, bytes]] = []

    def __call__(self, phase: Phase, replies: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        doubled = [reply for reply in replies if self.chance.random() < 0.2]
        late = [reply for reply in self.old if self.chance.random() < 0.2]
        noise = [(10**9, data) for _, data in replies[:1]] + [(j, data[:-1]) for j, data in replies[:1]]
        self.old += replies
        self.expected += Counter({Drop.DUPLICATE: len(doubled), Drop.LATE: len(late)})
        self.expected += Counter({Drop.STRANGER: len(replies[:1]), Drop.MALFORMED: len(replies[:1])})
        sent = replies + doubled + late + noise
        self.chance.shuffle(sent)
        return sent


def predict(p: Parameters, clients: frozenset[int], lost: dict[Phase, frozenset[int]]) -> frozenset[int] | None:
    """Who is in the sum on a complete graph, or None for an abort."""
    left = clients - lost[Phase.ANNOUNCE]
    if len(left) < p.survivors:
        return None
    try:
        threshold = p.wiring(len(left)).threshold
    except TooFewError:
        return None
    for phase in (Phase.SHARE, Phase.UPLOAD):
        left -= lost[phase]
        if len(left) < max(p.survivors, threshold):
            return None
    delivered = left
    for phase in (Phase.AGREE, Phase.OPEN) if p.level is Level.ACTIVE_SERVER else (Phase.OPEN,):
        left -= lost[phase]
        if len(left) < threshold:
            return None
    return delivered


def draw(chance: random.Random) -> tuple[Parameters, dict[int, np.ndarray], dict[Phase, frozenset[int]]]:
    count = 3 + int(38 * chance.random() ** 10)  # 3 to 40; small ones are cheap, and more likely to fail
    p = parameters(
        count,
        chance.choice([1, 2, 7, chance.randint(1, 2000)]),
        bits=chance.choice([32, 32, 32, 16, 8, 20, 5]),
        level=chance.choice(list(Level)),
        corrupt=Fraction(chance.randint(0, 10), 100),
        dropout=Fraction(chance.randint(0, 40), 100),
    )
    clients = chance.sample(range(1, 200), count)
    words = np.random.default_rng(chance.getrandbits(64))
    vectors = {j: words.integers(0, 1 << p.bits, p.dim, dtype=np.uint64).astype(np.uint32) for j in clients}
    rate = chance.choice([0.0, 0.02, 0.05, 0.15])
    lost = {phase: frozenset(j for j in clients if chance.random() < rate) for phase in Phase}
    return p, vectors, lost


def test_random_schedules_give_the_exact_sum_or_a_clean_abort() -> None:
    ends: Counter[str] = Counter()
    for number in range(SCHEDULES):
        chance = random.Random(number)
        p, vectors, lost = draw(chance)
        network = BadNetwork(chance, Counter())
        federation = Federation(session(p, number=number), vectors, lost, network, seed=number)
        predicted = predict(p, frozenset(vectors), lost)
        if predicted is None:
            with pytest.raises(TooFewError):
                federation.play()
        else:
            outcome = federation.play()
            assert outcome.delivered == tuple(sorted(predicted))
            assert np.array_equal(outcome.total, total(vectors, outcome.delivered, p.bits))
            assert outcome.minutes.dropped == network.expected
        ends["abort" if predicted is None else "sum" if len(predicted) == p.cohort else "smaller sum"] += 1
    assert all(ends[end] > SCHEDULES // 20 for end in ("abort", "sum", "smaller sum")), ends


@pytest.mark.parametrize("level", Level)
def test_every_subset_of_six_lost_in_every_phase_ends_as_predicted(level: Level) -> None:
    """64 subsets in each phase: four of six must be left; who is lost after its upload is still in the sum."""
    p = parameters(6, 3, level=level)
    assert (p.survivors, p.wiring(6).threshold) == (4, 4)
    vectors = {j: np.array([j, 2**32 - j, 1 << 4 * j], np.uint32) for j in range(1, 7)}
    phases = [phase for phase in Phase if phase < Phase.CLOSED and (phase != Phase.AGREE or level > 1)]
    for phase in phases:
        for bits in range(64):
            lost = frozenset(j for j in vectors if bits >> j - 1 & 1)
            federation = Federation(session(p), vectors, {phase: lost}, kept=False)
            if len(lost) > 2:
                with pytest.raises(TooFewError):
                    federation.play()
                continue
            outcome = federation.play()
            assert outcome.delivered == tuple(j for j in vectors if j not in lost or phase > Phase.UPLOAD)
            assert np.array_equal(outcome.total, total(vectors, outcome.delivered))


@pytest.mark.parametrize("seed", range(HUNDREDS))
def test_a_hundred_clients_on_a_sparse_graph_with_thirty_lost(seed: int) -> None:
    """Thirty lost anywhere: always the sum of those who delivered."""
    chance, level = random.Random(seed), Level.ACTIVE_SERVER if seed % 3 == 2 else Level.SEMI_HONEST
    p = parameters(100, 50, level=level, corrupt=Fraction(1, 20), dropout=Fraction(3, 10))
    assert p.wiring(100).degree < 99
    vectors = {j: np.full(50, j * 12345678901 % 2**32, np.uint32) for j in range(1, 101)}
    when = {
        j: chance.choice([phase for phase in Phase if phase < Phase.CLOSED]) for j in chance.sample(range(1, 101), 30)
    }
    lost = {phase: frozenset(j for j, at in when.items() if at is phase) for phase in Phase}
    outcome = Federation(session(p), vectors, lost, kept=False, seed=seed).play()
    assert outcome.delivered == tuple(j for j in vectors if when.get(j, Phase.OPEN) > Phase.UPLOAD)
    assert np.array_equal(outcome.total, total(vectors, outcome.delivered))


def test_random_schedules_on_sparse_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cohorts of 12 to 30, sparse from 11 on: also clients whose neighbours are all lost, at both levels."""
    monkeypatch.setattr(secagg.parameters, "COMPLETE", 10)
    secagg.parameters.wire.cache_clear()
    ends: Counter[str] = Counter()
    for number in range(max(30, SCHEDULES // 10)):
        chance = random.Random(number)
        p = parameters(chance.randint(12, 30), 3, level=chance.choice(list(Level)), dropout=Fraction(1, 5))
        clients = range(1, p.cohort + 1)
        ends["sparse"] += p.wiring(p.cohort).degree < p.cohort - 1
        vectors = {j: np.array([j, j << 20, 2**32 - j], np.uint32) for j in clients}
        rate = chance.choice([0.01, 0.03, 0.08])
        lost = {phase: frozenset(j for j in clients if chance.random() < rate) for phase in Phase}
        silent = frozenset().union(*(lost[phase] for phase in Phase if phase <= Phase.UPLOAD))
        try:
            outcome = Federation(session(p), vectors, lost, BadNetwork(chance, Counter()), seed=number).play()
        except TooFewError:
            ends["abort"] += 1
            continue
        ends["sum"] += 1
        assert set(outcome.delivered) <= set(clients) - silent
        assert np.array_equal(outcome.total, total(vectors, outcome.delivered))
    secagg.parameters.wire.cache_clear()
    assert min(ends["abort"], ends["sum"], ends["sparse"]) >= 5, ends
