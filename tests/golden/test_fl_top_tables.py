"""Tables 1 and 2 of FL-TOP (Kerkouche et al. 2021): every printed cost and ε follows from the printed round.

Costs are rounded to two digits, and trailing zeros are sometimes omitted (107, 20514.9, 585.5). Costs that look
truncated (11.94, 102.56) follow from K = ⌊r·n⌋: with r·n, the table would have 110.89 instead of 110.88.
"""

import tomllib
from dataclasses import dataclass

import pytest
import torch

from tacit.core import Report
from tacit.papers.study_files import studies_folder
from tacit.pieces.codecs import Size
from tacit.pieces.samplers import Poisson
from tacit.privacy.accountants import RdpClassic
from tacit.privacy.calibration import CohortSampling
from tacit.runs.bandwidth import Bandwidth, cost
from tacit.wire import frames
from tacit.wire.frames import Part

EXPECTED = studies_folder() / "fl-top" / "expected.toml"
HEADER = 36  # bytes of the header of a frame with one part (`tacit.wire.frames`)
DELTA = 1e-5


@dataclass(frozen=True)
class Setting:
    """The settings that all rows of a table share (Table 3 of the appendix)."""

    weights: int
    clients: int
    noise: float

    @property
    def rate(self) -> float:
        return 100 / self.clients


SETTINGS = {"table-1": Setting(1_663_370, 6000, 1.54), "table-2": Setting(1_496_601, 5010, 1.49)}
PRINTED = tomllib.loads(EXPECTED.read_text())
ALL = [(table, name) for table in SETTINGS for name in PRINTED[table]]
ROWS = [pytest.param(table, name, PRINTED[table][name], id=f"{table}-{name}") for table, name in ALL]


def values(table: str, name: str) -> tuple[int, int]:
    """The number of values down and up; all n go down unless the mask is fixed."""
    n = SETTINGS[table].weights
    ratio = float(name.split("%")[0]) / 100 if "%" in name else 1.0
    up = Size(ratio=ratio).count(n)
    return (up if "FL-TOP" in name else n), up


def test_both_tables_are_complete():
    assert [len(PRINTED[table]) for table in SETTINGS] == [20, 20]


@pytest.mark.parametrize(
    ("table", "name", "count"),
    [
        ("table-1", "0.5% FL-TOP", 8316),
        ("table-1", "5% FL-TOP", 83_168),
        ("table-1", "10% FL-TOP", 166_337),
        ("table-2", "0.1% FL-TOP", 1496),
        ("table-2", "5% FL-TOP", 74_830),
        ("table-2", "10% FL-TOP", 149_660),
    ],
)
def test_the_number_of_values_is_rounded_down(table, name, count):
    assert values(table, name) == (count, count)


@pytest.mark.parametrize(("table", "name", "row"), ROWS)
def test_costs_to_the_printed_digit(table, name, row):
    rate, rounds = SETTINGS[table].rate, row["best_round"]
    down, up = (round(cost(count, rounds, rate), 2) for count in values(table, name))
    assert (down, up) == (row["cost_down"], row["cost_up"])


def test_without_rounding_down_a_printed_cost_is_not_met():
    assert f"{4 * 0.005 * 1_663_370 * 200 / 60 / 1000:.2f}" == "110.89"
    assert PRINTED["table-1"]["0.5% FL-TOP"]["cost_up"] == 110.88


@pytest.mark.parametrize(("table", "name", "row"), ROWS)
def test_epsilon_to_the_printed_digit(table, name, row):
    if not name.endswith("-DP"):
        assert "epsilon_classic" not in row
        return
    setting = SETTINGS[table]
    cohorts = CohortSampling(Poisson(100), setting.clients)
    epsilon = cohorts.epsilon(setting.noise, row["best_round"], DELTA, RdpClassic())
    assert round(epsilon, 2) == row["epsilon_classic"]


@pytest.mark.parametrize(("table", "name", "row"), ROWS)
def test_measured_frames_without_their_headers_cost_the_same(table, name, row):
    """One round of 100 clients with one frame in each direction, times the number of rounds."""
    down, up = (
        frames.size({part: torch.empty(count, device="meta")})
        for part, count in zip((Part.VALUES, Part.ROW), values(table, name), strict=True)
    )
    cohort, rounds = tuple(range(100)), row["best_round"]
    bandwidth = Bandwidth.of([Report(1, cohort, (), (up,) * 100, (down,) * 100, 0.0, 0.0, 0.0, {}, 0.0)])
    headers = HEADER * len(cohort)
    measured = [(total - headers) * rounds / SETTINGS[table].clients / 1000 for total in (bandwidth.down, bandwidth.up)]
    assert [round(kilobytes, 2) for kilobytes in measured] == [row["cost_down"], row["cost_up"]]
