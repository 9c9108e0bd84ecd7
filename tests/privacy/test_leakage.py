import pytest

from tacit import methods
from tacit.core import Report
from tacit.errors import UserError
from tacit.privacy.leakage import LeakageAccounting, LeakageGuarantee


def report(number: int, clients: tuple[int, ...], declined: tuple[int, ...] = ()) -> Report:
    sizes = (1,) * len(clients)
    return Report(number, clients, (), sizes, sizes, 1.0, 0.0, 0.0, {}, 0.1, declined=declined)


def book_of(method, dim: int, *rounds: tuple[int, ...], population: int = 4) -> LeakageAccounting:
    book = LeakageAccounting.of(method, dim, population, [report(i, clients) for i, clients in enumerate(rounds, 1)])
    assert book is not None
    return book


def test_every_client_has_its_own_leakage():
    """The paper's: n/ν = 2/5 each time, and 2.4 for a client that took part six times."""
    book = book_of(methods.ifca_dp(noise=5.0), 2, *[(0, 1)] * 4, (0, 2), (0,))
    assert book.per_round == pytest.approx(0.4)
    assert book.clients == pytest.approx({0: 2.4, 1: 1.6, 2: 0.4})
    assert (book.leaked(3), book.most, book.mean) == pytest.approx((0.0, 2.4, 4.4 / 4))
    assert book.guarantee().leakage == pytest.approx(2.4)


@pytest.mark.parametrize(
    ("dim", "noise", "price"), [(11, 2, 5.5), (11, 3, 11 / 3), (11, 5, 2.2), (2, 5, 0.4), (1_206_590, 3, 402_196.67)]
)
def test_the_paper_s_prices(dim, noise, price):
    assert book_of(methods.ifca_dp(noise=noise), dim).per_round == pytest.approx(price)


def test_what_a_distance_costs():
    proved = book_of(methods.ifca_dp(noise=5.0, radius=0.05), 2, (0,), (0,)).guarantee()
    assert proved.proved
    assert proved.epsilon_at(0.05) == pytest.approx(0.8)
    assert proved.epsilon_at(0.2) == pytest.approx(3.2)
    assert "within the public radius 0.05, 0.4 each time a client takes part, 0.8 in 2 rounds" in str(proved)
    assert proved.to_json()["kind"] == "d-privacy"
    assert "epsilon" not in proved.to_json()


def test_the_paper_s_scale_proves_nothing():
    found = book_of(methods.ifca_dp(scale="paper"), 2, (0,)).guarantee(stops=True)
    assert not found.proved
    assert str(found).startswith("none: the noise is scaled by the length of the client's own update")
    assert "Nominal leakage" in str(found)
    assert any("Held-out clients decide" in sentence for sentence in found.unaccounted)
    with pytest.raises(UserError, match="no distance has a price"):
        found.epsilon_at(1.0)


def test_a_limit_is_exhausted_when_everybody_would_decline():
    method = methods.ifca_dp(noise=5.0, limit=0.8)
    assert not book_of(method, 2, (0, 1), (0, 1), (2,), population=3).exhausted
    assert book_of(method, 2, (0, 1), (0, 1), (2,), (2,), population=3).exhausted
    assert not book_of(methods.ifca_dp(), 2, (0,), population=1).exhausted


def test_declining_is_counted():
    book = LeakageAccounting.of(methods.ifca_dp(limit=0.4), 2, 3, [report(1, (0,)), report(2, (1,), declined=(0,))])
    assert book is not None
    assert (book.declined, book.rounds, book.to_json()["limit"]) == (1, 2, 0.4)


def test_other_methods_have_no_such_book():
    assert LeakageAccounting.of(methods.fedavg(), 2, 3, []) is None
    assert LeakageAccounting.of(methods.ifca(), 2, 3, []) is None


def test_a_guarantee_has_a_radius_or_a_reason():
    with pytest.raises(UserError, match="either a public radius or the reason"):
        LeakageGuarantee(leakage=1.0, per_round=1.0, radius=None, rounds=1)
