from fractions import Fraction

import pytest
from scipy.stats import hypergeom

from tacit.errors import TooFewClientsError
from tacit.protocols.secagg import GraphParameters, Parameters, ThreatModel, graph
from tacit.protocols.secagg.graph import graph_parameters

PASSIVE, ACTIVE = ThreatModel.SEMI_HONEST, ThreatModel.ACTIVE_SERVER
TABLE = {  # (clients, corrupt %, dropouts %): degree and threshold by graph_parameter_finder.cc
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
    """Equal for a semi-honest server; against an active one, our clients also hold a share of their own secrets."""
    count, corrupt, dropouts = case
    bad, gone = count * corrupt // 100, count * dropouts // 100
    assert graph_parameters(count, PASSIVE, bad, gone) == GraphParameters(*published[0])
    found, (degree, threshold) = graph_parameters(count, ACTIVE, bad, gone), published[1]
    assert 0 <= found.degree - degree <= 4
    assert 0 <= found.threshold - threshold <= 3


def test_sparse_thresholds_meet_their_probabilities() -> None:
    """By SciPy: colluders recover both secrets with at most 2^-41, dropouts leave too few shares with at most 2^-20."""
    for count, bad, lost in ((100, 10, 20), (300, 30, 60), (1000, 50, 100)):
        w = graph_parameters(count, ACTIVE, bad, lost)
        needed = 2 * w.threshold - w.degree - 1  # colluding neighbours that suffice
        assert count * hypergeom(count, bad, w.degree).sf(needed - 1) <= 2.0**-41
        assert count * hypergeom(count, count - lost, w.degree).cdf(w.threshold - 1) <= 2.0**-20


def test_thresholds_of_complete_graphs_are_secure_and_reachable() -> None:
    for count in range(3, 65):
        for bad, lost in ((0, 0), (count // 10, count // 5), (count // 3, count // 10)):
            passive, active = graph_parameters(count, PASSIVE, bad, lost), graph_parameters(count, ACTIVE, bad, lost)
            assert passive.degree == active.degree == count - 1
            assert bad < passive.threshold <= count - lost
            assert 2 * active.threshold > count + bad
            assert active.threshold <= count - lost


def test_a_threshold_that_cannot_be_secure_and_reachable_is_refused() -> None:
    with pytest.raises(TooFewClientsError, match="security needs 3 shares, but only 2 are certain"):
        graph_parameters(3, ACTIVE, 1, 1)


def test_all_colluders_of_the_cohort_may_have_announced() -> None:
    """The fewer announce, the larger their fraction: 2 of 20 are also 2 of 16."""
    p = Parameters(cohort=20, dim=1, corrupt=Fraction(1, 10))
    assert 2 * p.graph(16).threshold > 16 + 2


def test_graphs_are_regular_symmetric_and_as_one_client_sees_them() -> None:
    members = tuple(range(10, 110))
    for degree in (2, 16, 52, 99, 200):
        around = graph.neighbourhoods(b"d" * 32, members, degree)
        assert {len(each) for each in around.values()} == {min(degree, 99)}
        assert all(i in around[j] and i != j for i in members for j in around[i])
        assert all(graph.neighbours(b"d" * 32, members, degree, i) == around[i] for i in members)


def test_another_roster_makes_another_graph() -> None:
    members = tuple(range(100))
    one, two = (graph.neighbourhoods(digest, members, 10) for digest in (b"a" * 32, b"b" * 32))
    shared = sum(len(one[j] & two[j]) for j in members)
    assert shared < 250  # of 1000; about 101 by chance
