import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from tacit.core import State
from tacit.errors import RunError
from tacit.runs import checkpoint


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    memory = {"server/momentum": torch.randn(5, dtype=torch.float64), "count": torch.tensor(3)}
    checkpoint.write(path, State(4, torch.tensor([0.1, float("nan"), -0.0]), memory))
    return path


def test_a_state_is_read_back_bitwise(file, tmp_path):
    state = checkpoint.read(file)
    assert state is not None
    again = tmp_path / "again"
    checkpoint.write(again, state)
    assert again.read_bytes() == file.read_bytes()
    assert state.round == 4
    assert set(state.memory) == {"server/momentum", "count"}
    assert state.memory["count"].shape == ()
    assert state.weights[2].signbit()


def test_without_a_file_there_is_no_state(tmp_path):
    assert checkpoint.read(tmp_path / "none") is None


def test_truncated_files_are_refused(file):
    content = file.read_bytes()
    for length in range(0, len(content), 7):
        file.write_bytes(content[:length])
        with pytest.raises(RunError, match="cut or changed"):
            checkpoint.read(file)


def test_changed_values_are_refused(file):
    content = file.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    for at in range(begin, len(content)):
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(RunError, match="checksum"):
            checkpoint.read(file)


@pytest.mark.parametrize("change", ["round", "name", "no metadata"])
def test_changed_metadata_are_refused(file, change):
    tensors = safetensors.torch.load_file(file)
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    if change == "round":
        metadata["tacit"] = metadata["tacit"].replace('"round": 4', '"round": 5')
    if change == "name":
        tensors["memory/number"] = tensors.pop("memory/count")
    safetensors.torch.save_file(tensors, file, None if change == "no metadata" else metadata)
    with pytest.raises(RunError, match="Start a new run"):
        checkpoint.read(file)


@pytest.mark.parametrize(
    "rounds", ["Infinity", "NaN", "-1", "1e999", "4.0", "true", '"4"', "[" * 900 + "]" * 900, "9" * 30]
)
def test_rounds_that_are_no_number_of_rounds_are_refused(file, rounds):
    tensors = safetensors.torch.load_file(file)
    with safe_open(file, "pt") as opened:
        metadata = {"tacit": opened.metadata()["tacit"].replace('"round": 4', f'"round": {rounds}')}
    safetensors.torch.save_file(tensors, file, metadata)
    with pytest.raises(RunError, match="Start a new run"):
        checkpoint.read(file)
