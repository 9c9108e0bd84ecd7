from fractions import Fraction

import pytest
from scipy.stats import hypergeom

from protocols.secagg.federation import parameters
from tacit.errors import UserError
from tacit.protocols.secagg import Level, Parameters, Policy, ProtocolError, TooFewError, graph
from tacit.protocols.secagg.parameters import Wiring, wire

PASSIVE, ACTIVE = Level.SEMI_HONEST, Level.ACTIVE_SERVER
TABLE = {  # degree and threshold by clients and (corrupt, lost) in per cent: the rule of graph_parameter_finder.cc
    (100, 5, 10): [(16, 6), (26, 16)],
    (100, 10, 20): [(28, 11), (52, 32)],
    (100, 33, 30): [(64, 34), (94, 64)],
    (200, 5, 10): [(24, 11), (42, 27)],
    (200, 10, 20): [(44, 20), (88, 55)],
    (200, 33, 30): [(116, 63), (188, 128)],
    (500, 5, 10): [(32, 17), (66, 44)],
    (500, 10, 20): [(58, 28), (152, 97)],
    (1000, 5, 10): [(36, 19), (74, 49)],
    (1000, 10, 20): [(66, 31), (194, 124)],
}


@pytest.mark.parametrize(("case", "published"), TABLE.items())
def test_degrees_and_thresholds_are_those_of_federated_compute(
    case: tuple[int, int, int], published: list[tuple[int, int]]
) -> None:
    """Exactly for a semi-honest server; against an active one our clients hold a share of their own as well."""
    count, corrupt, lost = case
    bad, gone = count * corrupt // 100, count * lost // 100
    assert wire(count, PASSIVE, bad, gone) == Wiring(*published[0])
    found, (degree, threshold) = wire(count, ACTIVE, bad, gone), published[1]
    assert 0 <= found.degree - degree <= 4
    assert 0 <= found.threshold - threshold <= 3


def test_sparse_thresholds_keep_what_they_promise() -> None:
    """Against SciPy's law: colluders miss both kinds of shares but for 2^-41, dropouts leave enough but for 2^-20."""
    for count, bad, lost in ((100, 10, 20), (300, 30, 60), (1000, 50, 100)):
        w = wire(count, ACTIVE, bad, lost)
        needed = 2 * w.threshold - w.degree - 1  # so many colluding neighbours would do
        assert count * hypergeom(count, bad, w.degree).sf(needed - 1) <= 2.0**-41
        assert count * hypergeom(count, count - lost, w.degree).cdf(w.threshold - 1) <= 2.0**-20


def test_complete_graphs_have_safe_and_reachable_thresholds() -> None:
    for count in range(3, 65):
        for bad, lost in ((0, 0), (count // 10, count // 5), (count // 3, count // 10)):
            passive, active = wire(count, PASSIVE, bad, lost), wire(count, ACTIVE, bad, lost)
            assert passive.degree == active.degree == count - 1
            assert bad < passive.threshold <= count - lost
            assert 2 * active.threshold > count + bad
            assert active.threshold <= count - lost


def test_what_cannot_be_safe_and_reachable_is_refused() -> None:
    with pytest.raises(TooFewError, match="3 clients are too few: 3 shares are needed, 2 are sure"):
        wire(3, ACTIVE, 1, 1)


def test_all_colluders_of_the_cohort_may_have_announced() -> None:
    """The fewer announce, the larger their part: 2 of 20 are also 2 of 16."""
    p = Parameters(cohort=20, dim=1, corrupt=Fraction(1, 10))
    assert 2 * p.wiring(16).threshold > 16 + 2


@pytest.mark.parametrize(
    "wrong",
    [{"count": 2}, {"dim": 0}, {"bits": 33}, {"bits": 0}, {"corrupt": Fraction(1)}, {"dropout": -1}, {"least": 8}],
)
def test_parameters_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError, match="Expected"):
        parameters(**{"count": 7, **wrong})  # type: ignore[arg-type]


def test_survivors_follow_from_dropouts_unless_they_are_said() -> None:
    assert Parameters(cohort=100, dim=1, dropout=Fraction("0.3")).survivors == 70
    assert Parameters(cohort=100, dim=1, least=90).survivors == 90


def test_a_policy_refuses_less_than_its_floors() -> None:
    policy = Policy(level=ACTIVE, corrupt=Fraction(1, 10), cohort=20, survivors=16)
    good = {"cohort": 20, "dim": 1, "corrupt": Fraction(1, 10), "dropout": Fraction(1, 5)}
    policy.check(Parameters(**good))  # type: ignore[arg-type]
    for less in ({"level": PASSIVE}, {"corrupt": Fraction(9, 100)}, {"cohort": 19}, {"dropout": Fraction(1, 4)}):
        with pytest.raises(ProtocolError, match="Expected"):
            policy.check(Parameters(**{**good, **less}))  # type: ignore[arg-type]


def test_graphs_are_regular_symmetric_and_as_one_client_sees_them() -> None:
    members = tuple(range(10, 110))
    for degree in (2, 16, 52, 99, 200):
        near = graph.neighbourhoods(b"d" * 32, members, degree)
        assert {len(around) for around in near.values()} == {min(degree, 99)}
        assert all(i in near[j] and i != j for i in members for j in near[i])
        assert all(graph.neighbours(b"d" * 32, members, degree, i) == near[i] for i in members)


def test_another_roster_makes_another_graph() -> None:
    members = tuple(range(100))
    one, two = (graph.neighbourhoods(digest, members, 10) for digest in (b"a" * 32, b"b" * 32))
    shared = sum(len(one[j] & two[j]) for j in members)
    assert shared < 250  # of 1000; 101 are expected by chance
