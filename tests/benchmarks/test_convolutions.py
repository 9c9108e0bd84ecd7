import json
from collections.abc import Callable
from types import ModuleType

import pytest


def test_the_mask_touches_some_filters_and_all_products_are_timed(
    script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    convolutions = script("convolutions")
    monkeypatch.setattr(convolutions, "TESTED", 8)
    monkeypatch.setattr(convolutions, "WARM_UPS", 0)
    convolutions.main(["--repeats=1", "--json"])
    record = json.loads(capsys.readouterr().out)
    assert (record["inputs"], record["tiles"]) == (23, [[24, 32], [6, 6]])  # as in benchmarks/README.md
    assert record["all"].keys() == record["masked"].keys()
    assert all(taken > 0 for taken in (*record["all"].values(), *record["masked"].values()))
    assert record["evaluation"].keys() == {"module", "evaluation form"}
