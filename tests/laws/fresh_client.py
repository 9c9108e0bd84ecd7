"""One client in an interpreter of its own: reads what it has from a folder, and writes its messages there."""

import json
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import zoo
from tacit.core import ClientKeys, ClientMemory, CrossEntropy, Key
from tacit.core.client_half import ClientHalf
from tacit.data import Population
from tacit.engine.waves import AutoLearner, StackedClients


def main(folder: Path) -> None:
    """Answer every request with the client's own data."""
    torch.set_num_threads(1)  # as every worker of a simulation: sums are bitwise the same
    known, data = json.loads((folder / "client.json").read_text()), np.load(folder / "data.npz")
    own = Population.of([(torch.from_numpy(data["x"]), torch.from_numpy(data["y"]))])
    torch.manual_seed(0)
    wave = StackedClients(torch.tensor([0]), own, AutoLearner(zoo.cnn(), CrossEntropy()))
    shared, keys = Key(bytes.fromhex(known["shared"])), ClientKeys(Key(bytes.fromhex(known["secret"])), single=True)
    messages = {}
    for name, text, request, memory in known["cases"]:
        method = eval(text, zoo.public_names())
        half = ClientHalf(method, known["population"], shared, keys)
        kept = ClientMemory.read(bytes.fromhex(memory), method.aggregator.models)
        messages[name] = zoo.answer(half, bytes.fromhex(request), wave, kept).hex()
    (folder / "messages.json").write_text(json.dumps(messages))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
