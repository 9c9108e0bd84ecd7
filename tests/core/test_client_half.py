from dataclasses import replace

import pytest
import torch

import zoo
from tacit import methods
from tacit.core import ClientMemory, RunKeys, State
from tacit.core.client_half import ClientHalf
from tacit.core.server_half import broadcast, pack_broadcast
from tacit.engine.simulation import draw
from tacit.errors import WireError
from tacit.wire import frames
from tacit.wire.frames import FrameKind, Part

KEYS = RunKeys.from_seed(0)
METHOD = methods.make("fedavg", {"rounds": 3, "sampler": "Everyone()"})
ALL = zoo.wave([5, 3, 8])
WEIGHTS = zoo.weights_of(zoo.mlp())
HALF = ClientHalf(METHOD, 3, KEYS.shared, KEYS.clients)


def request(weights: torch.Tensor = WEIGHTS) -> bytes:
    _, now = draw(METHOD, 3, KEYS.at(0), 0)
    return pack_broadcast(METHOD, broadcast(METHOD, State(0, weights), now), now, first=True)


def test_a_client_answers_alone() -> None:
    two = replace(ALL, clients=torch.tensor([0, 1]))
    with pytest.raises(WireError, match="Expected a single client, got 2"):
        zoo.answer(HALF, request(), two, HALF.join(WEIGHTS))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (request()[:-1], "truncated"),
        (request(WEIGHTS[:-1]), f"Expected a model of {WEIGHTS.numel()} numbers"),
        (request(WEIGHTS.double()), "of torch.float64"),
        (b"", "at least 24 bytes"),
    ],
)
def test_a_broadcast_that_does_not_fit_is_refused(data: bytes, sentence: str) -> None:
    one = replace(ALL, clients=torch.tensor([0]))
    with pytest.raises(WireError, match=sentence):
        zoo.answer(HALF, data, one, HALF.join(WEIGHTS))


def test_memory_is_read_from_bytes_or_refused() -> None:
    memory = ClientMemory(WEIGHTS, KEYS.shared, torch.tensor([1, 5]))
    again = ClientMemory.read(memory.pack())
    assert torch.equal(again.weights, WEIGHTS)
    assert again.before == KEYS.shared
    assert again.mask is not None
    assert again.mask.tolist() == [1, 5]
    with pytest.raises(WireError, match="Expected a memory, got kind 1"):
        ClientMemory.read(request())


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        ({Part.WEIGHTS: torch.ones(7), Part.KEY: torch.zeros(32, dtype=torch.uint8)}, "the weights of 2 models, got 7"),
        (
            {Part.WEIGHTS: torch.ones(8), Part.KEY: torch.zeros(31, dtype=torch.uint8)},
            "a shared key of 32 bytes, got 31",
        ),
        ({Part.WEIGHTS: torch.ones(8), Part.KEY: torch.zeros(32)}, "a shared key of 32 bytes"),
        ({Part.WEIGHTS: torch.ones(8)}, "the memory of a client"),
    ],
)
def test_a_damaged_memory_is_refused(memory: dict[Part, torch.Tensor], words: str) -> None:
    with pytest.raises(WireError, match=words):
        ClientMemory.read(frames.pack(FrameKind.MEMORY, 0, memory), models=2)
