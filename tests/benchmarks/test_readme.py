import importlib.util
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.parametrize("name", ["bench", "secure-sum"])
def test_the_readme_shows_the_newest_record(name: str) -> None:
    spec = importlib.util.spec_from_file_location("readme", BENCHMARKS / "readme.py")
    assert spec is not None
    assert spec.loader is not None
    readme = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(readme)
    _, shown, _ = readme.around(name, readme.README.read_text())
    assert shown == readme.table(name)
