import importlib.util
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_the_readme_shows_the_newest_record() -> None:
    spec = importlib.util.spec_from_file_location("readme", BENCHMARKS / "readme.py")
    assert spec is not None
    assert spec.loader is not None
    readme = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(readme)
    shown = readme.README.read_text().partition(readme.BEGIN)[2].partition(readme.END)[0]
    assert shown == readme.table()
