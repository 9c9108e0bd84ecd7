"""What would clients reach by training on their own data? Each of 100 alone, beside the federated model of Table 1.

    python experiments/geyer/own_data.py

Geyer, Klein and Nabi write that their model is better than anything clients would be able to achieve when only training
on their own data. A client has images of two digits, mostly. So it matters on which digits its model is judged: on all
ten, or on those that it has. The third line follows their remark that the federated model can be the start of further
training at a client. The federated model is that of the row `K=100 fixed bound` (ε = 8), trained here again. Every
client trains 20 epochs on its own data.
"""

import copy
from collections.abc import Callable
from statistics import fmean

import torch
from torch import nn

import tacit
from tacit.data import Samples

EPOCHS, BATCH, LEARNING_RATE = 20, 50, 0.1
LINEAR = {"features": "oriented-gradients", "model": "softmax-regression"}
NETWORK = {"model": "geyer-mlp"}


def task_of(model: dict[str, str]) -> tacit.Task:
    """100 clients with two shards each."""
    return tacit.tasks.make_task("mnist", clients=100, partition="shards", samples=600, **model)


def adapt_to_sites(task: tacit.Task) -> nn.Module:
    """The model of the row `K=100 fixed bound`."""
    descent = tacit.pieces.Sgd(lr=0.2, epochs=1, batch_size=50)
    method = tacit.methods.geyer(cohort=100, noise=3.7185, rounds=60, clip=0.5, epsilon=8, delta=1e-3, descent=descent)
    return tacit.train(method, task, seed=0, workers=1, evaluate_every=60, randomness="seeded").model


def trained(start: nn.Module, data: Samples, seed: int) -> nn.Module:
    """A copy of a model after training on these samples alone."""
    model, (x, y) = copy.deepcopy(start), data
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    order = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        for part in torch.randperm(len(y), generator=order).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()
    return model


def line(name: str, task: tacit.Task, model_for: Callable[[int], nn.Module]) -> str:
    """The mean accuracy over clients, of your own model on all digits and on your own."""
    x, y = task.test
    every, own = [], []
    with torch.no_grad():
        for client in range(len(task.population)):
            with torch.enable_grad():
                model = model_for(client)
            right = model(x).argmax(1) == y
            every.append(float(right.double().mean()))
            mine = torch.isin(y, task.population[client][1].unique())
            own.append(float(right[mine].double().mean()))
    return f"| {name} | {fmean(every):.3f} | {fmean(own):.3f} ({min(own):.3f} to {max(own):.3f}) |"


def main() -> None:
    """Print a line per model."""
    task = task_of(LINEAR)
    shared, fresh = adapt_to_sites(task), task.model()
    print("| trained on | all ten digits | the client's own digits |", "|---|---|---|", sep="\n")
    print(line("all clients' data, ε = 8", task, lambda _: shared))
    print(line("its own data", task, lambda client: trained(fresh, task.population[client], client)))
    print(line("both, one after the other", task, lambda client: trained(shared, task.population[client], client)))
    task = task_of(NETWORK)
    network = task.model()
    print(line("its own data, paper's network", task, lambda client: trained(network, task.population[client], client)))


if __name__ == "__main__":
    main()
