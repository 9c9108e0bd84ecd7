import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # tests are small: a second thread only gets in the way
SAID = os.environ.get("TACIT_DATA")  # before a test changes it


@pytest.fixture
def data_folder(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The real data sets, if this machine has them; tasks then find them too."""
    folder = Path(SAID) if SAID else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the data sets: set TACIT_DATA to their folder")
    monkeypatch.setenv("TACIT_DATA", str(folder))
    return folder
