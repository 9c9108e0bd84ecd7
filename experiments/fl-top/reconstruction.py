"""How well does FL-CS reconstruct an update from noisy coefficients? Fashion-MNIST, the network of Table 1, seed 0.

    python experiments/fl-top/reconstruction.py

The update is that of a client with the public images, at the initial weights. Its coefficients are clipped and get the
noise of FL-CS-DP at ε = 1, in each of ten rounds, and are reconstructed with several thresholds. A floor, which is not
part of FL-CS, removes the smallest coefficients as noise first, by soft thresholding; it is given in standard
deviations of the noise. Printed are the cosine of the angle between reconstruction and update, for one round and for
the sum of ten, and how long the reconstruction of one round is.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

import tacit
from tacit.core import DenseRows, Key, Round, State, View
from tacit.core.prices import AggregateNoise, ClientUnits
from tacit.engine import initial_state, module_at
from tacit.pieces.codecs.sensing import THRESHOLD, Sense
from tacit.privacy.planned_charges import calibrate

SEED, ROUNDS, COHORT = 0, 10, 100
RATIOS = (0.005, 0.05)
SETTINGS = ((0.0, 0.0), (0.0, 1.0), (0.0, 1.5), (0.001, 0.0), (0.01, 0.0), (0.1, 0.0))  # threshold, floor


@dataclass(frozen=True)
class Experiment:
    """FL-CS-DP before its first round: its codec, its state, its noise and the update of the public images."""

    codec: Sense
    state: State
    noise: AggregateNoise
    update: Tensor

    @classmethod
    def at(cls, ratio: float, task: tacit.Task) -> "Experiment":
        """With this share of the coefficients, and the noise that ε = 1 takes for 200 rounds."""
        method = calibrate(tacit.methods.fl_cs_dp(ratio=ratio), ClientUnits.whole(len(task.population)))
        state = initial_state(method, task, SEED)
        noise = method.mechanism.aggregate_noise(state, COHORT)
        assert isinstance(method.codec, Sense)
        assert noise is not None
        return cls(method.codec, state, noise, public_update(task, state.weights, method.codec))

    def coefficients(self, number: int) -> tuple[Tensor, Round]:
        """The clipped coefficients with the noise of a round, and the round, which draws which they are."""
        now = Round(number, 6000, COHORT, COHORT, Key.from_seed(SEED, f"round {number}"))
        sent = self.codec.encode(DenseRows(self.update[None]), View(self.state.weights), now).dense()[0]
        clipped = sent * min(1.0, self.noise.bound / float(sent.norm()))
        drawn = torch.randn(len(sent), generator=torch.Generator().manual_seed(number), dtype=sent.dtype)
        return clipped + self.noise.deviation * drawn, now

    def reconstructed(self, number: int, threshold: float, floor: float) -> Tensor:
        """What the server reconstructs in a round."""
        noisy, now = self.coefficients(number)
        kept = torch.nn.functional.softshrink(noisy, floor * self.noise.deviation)
        memory = {**self.state.memory, THRESHOLD: torch.tensor(threshold, dtype=torch.float64)}
        return self.codec.decode(kept, replace(self.state, memory=memory), now)[0]

    def line(self, name: str, threshold: float, floor: float) -> str:
        """The cosines and the length of a way to reconstruct."""
        made = [self.reconstructed(number, threshold, floor) for number in range(ROUNDS)]
        first, added = made[0], torch.stack(made).sum(0)
        return f"| {name} | {self._cosine(first):.2f} | {self._cosine(added):.2f} | {float(first.norm()):.2f} |"

    def _cosine(self, found: Tensor) -> float:
        return float(torch.nn.functional.cosine_similarity(found, self.update, dim=0))


def public_update(task: tacit.Task, weights: Tensor, codec: Sense) -> Tensor:
    """How the weights change in a few steps of gradient descent on all public images."""
    model, (x, y) = module_at(task, SEED, weights), task.public
    optimizer = torch.optim.SGD(model.parameters(), lr=codec.lr)
    for _ in range(codec.steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach() - weights


def main() -> None:
    """Print a table per ratio."""
    task = tacit.tasks.make_task("fashion-mnist")
    for ratio in RATIOS:
        here = Experiment.at(ratio, task)
        print(
            f"\n{ratio:.1%}: update of length {float(here.update.norm()):.2f}, bound {here.noise.bound:.2f}, noise of "
            f"{here.noise.deviation:.5f} per coefficient; chosen threshold {float(here.state.memory[THRESHOLD]):g}\n"
        )
        print("| reconstruction | cosine, one round | sum of ten | length, one round |", "|---|---|---|---|", sep="\n")
        for threshold, floor in SETTINGS:
            name = f"threshold {threshold:g}" + f", floor of {floor:g} σ" * bool(floor)
            print(here.line(name, threshold, floor), flush=True)


if __name__ == "__main__":
    main()
