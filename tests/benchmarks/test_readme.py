from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.mark.parametrize("name", ["bench", "secure-sum"])
def test_the_page_shows_the_newest_results(name: str, script: Callable[[str], ModuleType]) -> None:
    readme = script("readme")
    _, shown, _ = readme.split(name, readme.PAGE.read_text())
    assert shown == readme.table(name)
