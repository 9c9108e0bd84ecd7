"""The scatter panels of Figure 1 of Galli et al. 2023: what clients release at the start of a run, and at its end.

    python experiments/group-privacy/scatter.py

Three rows of the study `group-privacy/figure-1` are repeated with one seed and seeded noise; the messages of a round
are computed again from its state, as every client of the cohort makes them. Crosses are the optima of the two groups.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

import tacit
from tacit.core import Messages, SeededKeys, State, Wave
from tacit.core.server_half import broadcast, client_view
from tacit.engine.simulation import draw, initial_state, rounds, waves
from tacit.papers.study import StudyRow, read_study
from tacit.papers.study_files import studies_folder, study_files
from tacit.report.style import COLOURS, INK, add_title_and_caption, plain, to_png
from tacit.tasks.regression import THETA

STUDY, SEED, SHOWN = "group-privacy/figure-1", 0, 5  # rounds at the start and at the end
ROWS = ("one hypothesis", "two hypotheses", "noise, patience 30")
FILE = Path(__file__).parent / "results" / "figure-1-scatter.png"


@dataclass(frozen=True, eq=False)
class Released:
    """The messages of one round, (clients, 2), and the group of each client."""

    number: int
    models: NDArray[np.float64]
    groups: NDArray[np.int64]


def released(method: tacit.Method, task: tacit.Task) -> Iterator[Released]:
    """What the clients of every round send."""
    state, wave_of = initial_state(method, task, SEED), waves(task, SEED)
    for after, _ in rounds(method, task, seed=SEED, workers=1, randomness="seeded"):
        yield _of_round(method, task, state, wave_of)
        state = after


def _of_round(method: tacit.Method, task: tacit.Task, state: State, wave_of: Callable[[Tensor], Wave]) -> Released:
    cohort, now = draw(method, len(task.population), SeededKeys(SEED).keys(state.round), state.round)
    view = client_view(method, broadcast(method, state, now), state, now)
    wave = wave_of(cohort)
    rows = method.codec.encode(method.trainer.train(view, wave, now), view, now)
    sent = method.mechanism.at_client(Messages(cohort, rows), view, wave, now)
    return Released(state.round + 1, sent.rows.dense().double().numpy(), (cohort % 2).numpy())


def show(panel: Axes, found: list[Released], title: str) -> None:
    """Points in the colour of their client's group."""
    models, groups = np.concatenate([each.models for each in found]), np.concatenate([each.groups for each in found])
    for group in (0, 1):
        x, y = models[groups == group].T
        panel.scatter(x, y, s=14, color=COLOURS[group], alpha=0.7, linewidths=0)
        true_x, true_y = THETA[group].tolist()
        panel.scatter(true_x, true_y, marker="x", s=60, color=INK, linewidths=1.2)
    panel.set_title(title, size=9, color=INK, loc="left")
    panel.set_xlim(-4, 9)
    panel.set_ylim(-8, 9)
    plain(panel)


def main() -> None:
    """Draw the panels."""
    study = read_study(STUDY, study_files(studies_folder()))
    chosen: list[StudyRow] = [row for name in ROWS for row in study.rows if row.name == name]
    figure = Figure(figsize=(8, 10.5))
    panels = figure.subplots(len(chosen), 2)
    for line, row in enumerate(chosen):
        method = row.experiment.build_method()
        found = [*released(method, row.experiment.build_task())]
        show(panels[line][0], found[:SHOWN], f"{row.name}: rounds 1 to {SHOWN}")
        last = found[-SHOWN:]
        show(panels[line][1], last, f"{row.name}: rounds {last[0].number} to {last[-1].number}")
        distance = torch.cdist(torch.from_numpy(last[-1].models), THETA.double()).min(1).values
        print(
            f"{row.name}: {len(found)} rounds, the last messages are {distance.mean():.3g} from an optimum on average"
        )
    caption = "Every point is a message of a client, coloured by its group; crosses are the optima. One seed."
    figure.tight_layout(rect=(0, 0.04, 1, 0.95))
    add_title_and_caption(figure, "Galli et al. 2023, Figure 1: what clients release", caption, 0.06)
    FILE.write_bytes(to_png(figure))


if __name__ == "__main__":
    main()
