import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from experiments import busy

import scale

gc.disable()  # until all tests are collected: nothing of that is garbage
torch.set_num_threads(1)  # the tensors of tests are small, so that threads cost more than they gain
DATA = os.environ.get("TACIT_DATA")  # before a test changes it
HELD = pytest.StashKey[int | None]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--scale", choices=scale.SCALES, default=scale.SCALES[0], help="how much runs (tests/scale.py)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "law(name): one property of everything registered; a part of it runs for a commit"
    )
    config.addinivalue_line("markers", "campaign: takes minutes; runs with --scale campaign")
    scale.choose(config.option.scale)
    if not hasattr(config.option, "commit"):  # a process that another one starts has its
        config.option.commit = scale.head()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    by_id = any("::" in argument for argument in config.args)
    chosen = config.option.scale
    left = scale.select(items, "laws" if by_id and chosen == "commit" else chosen, config.option.commit)
    if left:
        config.hook.pytest_deselected(items=left)


def pytest_collection_finish() -> None:
    """Collect garbage again, but never look for it among the modules and thousands of tests, and less often."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def pytest_sessionstart(session: pytest.Session) -> None:
    """The backlog of experiments pauses while tests run; of several processes, the one that starts the others holds."""
    if not hasattr(session.config, "workerinput"):
        session.config.stash[HELD] = busy.hold()


def pytest_sessionfinish(session: pytest.Session) -> None:
    busy.release(session.config.stash.get(HELD, None))


@pytest.fixture(scope="session", autouse=True)
def data_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file of the data key of all tests, in place of the user's own; processes that they start have it, too."""
    with pytest.MonkeyPatch.context() as patch:
        file = tmp_path_factory.mktemp("owner") / "data.key"
        patch.setenv("TACIT_DATA_KEY", str(file))
        yield file


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of the real data sets; tests that need it are skipped without it."""
    folder = Path(DATA) if DATA else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the data sets: set TACIT_DATA to their folder")
    return folder


@pytest.fixture
def data_folder(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the real data sets, with TACIT_DATA set so that tasks find it."""
    monkeypatch.setenv("TACIT_DATA", str(real_data))
    return real_data
