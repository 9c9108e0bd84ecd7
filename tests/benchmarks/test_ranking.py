import json
from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.mark.law("benchmarks")
@pytest.mark.usefixtures("data_folder")
def test_every_round_is_timed_with_and_without_the_ranking(
    script: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    script("ranking").main(["--rounds=2", "--clients=3", "--samples=60", "--json"])
    record = json.loads(capsys.readouterr().out)
    assert [each["round"] for each in record["rounds"]] == [1, 2]
    assert all(each["epoch"] > 0 and each["ranked"] > 0 for each in record["rounds"])
    assert record["max"] == max(each["ratio"] for each in record["rounds"])
