"""Your own model and loss on your own arrays: five clients of different sizes, one of them held out.

python examples/own_model.py
"""

import numpy as np
import torch

import tacit


def net() -> torch.nn.Module:
    """Any `torch.nn.Module`, or a function that makes one."""
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))


def samples(source: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """What you would read from your files: inputs, and a number to predict for each."""
    x = source.normal(size=(count, 8)).astype(np.float32)
    return x, (x[:, :3].sum(1, keepdims=True) + 0.1 * source.normal(size=(count, 1))).astype(np.float32)


def main() -> None:
    """Train, and print the error, the bytes and the guarantee."""
    source = np.random.default_rng(0)
    *clients, test = [samples(source, count) for count in (80, 20, 45, 60, 100)]
    task = tacit.Task(model=net, loss=torch.nn.HuberLoss(), clients=clients, test=test)
    method = tacit.methods.fedavg(rounds=30, cohort=4, lr=0.1, epochs=2)
    run = tacit.train(method, task, workers=1)
    print(f"loss {run.history[0].metrics['loss']:.3f} after a round, {run.metrics['loss']:.3f} after {run.state.round}")
    print(f"{run.bytes.up:,} bytes up, {run.bytes.down:,} down")
    print(run.privacy)  # none: no noise is added


if __name__ == "__main__":
    main()
