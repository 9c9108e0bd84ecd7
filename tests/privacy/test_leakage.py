import pytest

from tacit import methods
from tacit.core import Method, Report
from tacit.errors import UserError
from tacit.privacy.leakage import LeakageAccounting


def report(number: int, clients: tuple[int, ...], declined: tuple[int, ...] = ()) -> Report:
    sizes = (1,) * len(clients)
    return Report(number, clients, (), sizes, sizes, 1.0, 0.0, 0.0, {}, 0.1, declined=declined)


def account(method: Method, dim: int, *rounds: tuple[int, ...], population: int = 4) -> LeakageAccounting:
    reports = [report(number, clients) for number, clients in enumerate(rounds, start=1)]
    accounting = LeakageAccounting.of(method, dim, population, reports)
    assert accounting is not None
    return accounting


def test_leakage_is_accounted_for_each_client():
    """The paper's: n/ν = 2/5 each time, and 2.4 for a client that took part six times."""
    accounting = account(methods.ifca_dp(), 2, *[(0, 1)] * 4, (0, 2), (0,))
    assert accounting.per_round == pytest.approx(0.4)
    assert accounting.by_client == pytest.approx({0: 2.4, 1: 1.6, 2: 0.4})
    assert (accounting.leakage_of(3), accounting.maximum, accounting.mean) == pytest.approx((0.0, 2.4, 4.4 / 4))
    assert accounting.guarantee().leakage == pytest.approx(2.4)


@pytest.mark.parametrize(
    ("dim", "noise", "leakage"), [(11, 2, 5.5), (11, 3, 11 / 3), (11, 5, 2.2), (2, 5, 0.4), (1_206_590, 3, 402_196.67)]
)
def test_the_leakage_per_round_is_the_paper_s(dim, noise, leakage):
    assert account(methods.make("ifca-dp", {"noise": noise}), dim).per_round == pytest.approx(leakage)


def test_leakage_is_proportional_to_the_distance():
    proved = account(methods.ifca_dp(), 2, (0,), (0,)).guarantee()
    assert proved.proved
    assert proved.epsilon_at(0.05) == pytest.approx(0.8)
    assert proved.epsilon_at(0.2) == pytest.approx(3.2)
    assert "radius 0.05: 0.4 each time a client takes part, at most 0.8 for any client in 2 rounds" in str(proved)
    assert proved.to_json()["kind"] == "d-privacy"
    assert "epsilon" not in proved.to_json()


def test_the_paper_s_scale_proves_nothing():
    found = account(methods.make("ifca-dp", {"radius": None}), 2, (0,)).guarantee(early_stopping=True)
    assert not found.proved
    assert str(found).startswith("none: the noise is scaled by the norm of the client's own update")
    assert "Nominal leakage" in str(found)
    assert any("Held-out clients decide" in sentence for sentence in found.not_covered)
    with pytest.raises(UserError, match="leakage is not defined at any distance"):
        found.epsilon_at(1.0)


def test_a_limit_is_exhausted_when_every_client_would_decline():
    method = methods.make("ifca-dp", {"limit": 0.8})
    assert not account(method, 2, (0, 1), (0, 1), (2,), population=3).exhausted
    assert account(method, 2, (0, 1), (0, 1), (2,), (2,), population=3).exhausted
    assert not account(methods.ifca_dp(), 2, (0,), population=1).exhausted


def test_declining_is_counted():
    reports = [report(1, (0,)), report(2, (1,), declined=(0,))]
    accounting = LeakageAccounting.of(methods.make("ifca-dp", {"limit": 0.4}), 2, 3, reports)
    assert accounting is not None
    assert (accounting.declined, accounting.rounds, accounting.to_json()["limit"]) == (1, 2, 0.4)


def test_methods_without_d_privacy_have_no_leakage_accounting():
    assert LeakageAccounting.of(methods.fedavg(), 2, 3, []) is None
    assert LeakageAccounting.of(methods.ifca(), 2, 3, []) is None
