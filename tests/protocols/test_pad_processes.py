"""Pads that are removed in several processes: the same sum, and processes only where they are worth it."""

import numpy as np
import pytest

from federation import faulty
from federation.consortium import server, transport
from tacit.protocols import pad_processes
from tacit.protocols.pad_processes import PadProcesses, remove_many_pads
from tacit.protocols.secagg.pads import Vector, remove_pads

KEYS = [bytes([number]) * 32 for number in range(9)]


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the pools that were started, each of which works in this process."""
    found: list[int] = []

    class Here(PadProcesses):
        def __init__(self, workers: int) -> None:
            found.append(workers)

        def __exit__(self, *_: object) -> None: ...

        def remove(self, total: Vector, added: object, subtracted: object) -> None:
            remove_pads(total, added, subtracted)  # type: ignore[arg-type]

    monkeypatch.setattr(pad_processes, "PadProcesses", Here)
    monkeypatch.setattr(pad_processes, "available_cores", lambda: 3)
    return found


@pytest.mark.parametrize(("many", "started"), [(9 * 1000, [3]), (9 * 1000 + 1, [])])
def test_processes_are_started_where_there_is_work_for_them(
    pools: list[int], monkeypatch: pytest.MonkeyPatch, many: int, started: list[int]
) -> None:
    monkeypatch.setattr(pad_processes, "MANY", many)
    one, other = np.zeros(1000, np.uint32), np.zeros(1000, np.uint32)
    remove_pads(one, KEYS[:5], KEYS[5:])
    remove_many_pads(other, KEYS[:5], KEYS[5:])
    assert (one == other).all()
    assert pools == started


def test_the_server_of_a_federation_uses_them(pools, monkeypatch, tmp_path):
    monkeypatch.setattr(pad_processes, "MANY", 1)
    consortium, plan = faulty.secure(tmp_path)
    state, _ = faulty.final(server(plan, transport(consortium.sites())))
    assert state.round == 2
    assert pools == [3, 3]
