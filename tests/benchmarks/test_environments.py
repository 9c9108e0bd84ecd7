import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

Script = Callable[[str], ModuleType]


def test_peers_take_none_of_our_constraints_but_torch(script: Script) -> None:
    """Ours pin a release of Ray that Flower does not take; a range of torch would fetch gigabytes of CUDA."""
    environments = script("environments")
    ours = (environments.ROOT / "constraints.txt").read_text().splitlines()
    (torch,) = (line for line in ours if line.startswith("torch=="))
    for peer in environments.PEERS:
        assert not any("constraint" in each for each in peer.installation())
        assert all(each == torch for each in peer.requirements if each.startswith("torch"))


@pytest.mark.campaign  # asks the package index
def test_requirements_of_peers_can_be_met(script: Script) -> None:
    for peer in script("environments").PEERS:
        command = [sys.executable, *peer.installation("--dry-run", "--ignore-installed")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
