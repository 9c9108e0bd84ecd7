from hypothesis import given
from hypothesis import strategies as st

from tacit.core import Report
from tacit.runs.bandwidth import Bandwidth, cost

messages = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1000), st.integers(0, 1000)), max_size=6)
cohorts = messages.map(lambda rows: tuple({row[0]: row for row in rows}.values()))


def report(rows: tuple[tuple[int, int, int], ...]) -> Report:
    clients, up, down = (tuple(row[i] for row in rows) for i in range(3))
    return Report(1, clients, (), up, down, 0.0, 0.0, 0.0, {}, 0.0)


@given(st.lists(cohorts, max_size=6))
def test_totals_are_the_sums_over_reports_and_over_clients(rounds):
    reports = [report(rows) for rows in rounds]
    bandwidth = Bandwidth.of(reports)
    assert bandwidth.up == sum(sum(r.up) for r in reports)
    assert bandwidth.down == sum(sum(r.down) for r in reports)
    by_client = [bandwidth.per_client(client) for client in range(10)]
    assert (bandwidth.up, bandwidth.down) == tuple(map(sum, zip(*by_client, strict=True)))


def test_clients_that_never_took_part_have_no_traffic():
    assert Bandwidth.of([report(((3, 5, 7),))]).per_client(4) == (0, 0)


@given(st.integers(0, 10**7), st.integers(0, 500), st.integers(1, 100), st.integers(100, 6000))
def test_cost_is_the_mean_over_all_clients_of_bytes_without_headers(values, rounds, cohort, clients):
    total = rounds * cohort * 4 * values
    assert abs(cost(values, rounds, cohort / clients) * 1000 * clients - total) <= 1e-9 * max(total, 1)
