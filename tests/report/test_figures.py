import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from report.comparisons import make, row
from tacit.errors import UserError
from tacit.report import figures, histograms, maps, scatter, style
from tacit.report.comparison import Comparison, Row, Trial
from tacit.report.plots import Gallery, Histogram, Maps, Panel, Points, Strip

ROWS = (row({}, {}, name="one"), row({}, name="two", length=9), row({}, name="three", length=1))


def test_a_figure_is_a_png_and_always_the_same():
    made = make(*ROWS, y=("accuracy", "scale"), log=("round", "scale"))
    picture = figures.render(made)
    assert picture.startswith(b"\x89PNG")
    assert figures.render(made) == picture
    assert figures.render(make(*ROWS[:2], y=("accuracy",))) != picture


def weights(name: str, *densities: tuple[float, ...]) -> Row:
    trials = (Trial(seed=i, values={}, curves={"weight": (-1, 0, 1), "density": d}) for i, d in enumerate(densities))
    return replace(row(name=name), trials=tuple(trials))


def test_a_histogram_is_drawn_from_the_document_alone():
    panel = Panel(title="P", rows=("two", "one", "not counted", "not there"), mask="one")
    rows = (weights("one", (0.25, 0.75), (0.75, 0.25)), weights("two", (1, 0)), row({}, name="not counted"))
    made = replace(make(*rows), plot=Histogram(panels=(panel, replace(panel, rows=("not there",))), bins=2))
    picture = figures.render(made)
    assert picture.startswith(b"\x89PNG")
    assert figures.render(Comparison.from_bytes(made.to_bytes(), "saved")) == picture
    two, one = histograms.shapes(rows, panel)
    assert (two.name, one.name) == ("two", "one")
    assert [list(values) for values in (one.mean, one.least, one.most)] == [[0.5, 0.5], [0.25, 0.25], [0.75, 0.75]]


def mapped(**curves: tuple[float, ...]) -> Row:
    found = {
        "shape": (2.0, 3.0),
        "mean": (0.0,) * 6,
        **{name.replace("_", ", round "): v for name, v in curves.items()},
    }
    return replace(row(), trials=(Trial(seed=0, values={}, curves=found),))


def test_maps_are_drawn_from_the_document_alone():
    plot = Maps(client=4, at=(1, 5), importance=("variance", "sensitivity"), noise=0.1)
    some = mapped(variance_1=(0, 1, 2, 3, 4, 5), variance_5=(5, 4, 3, 2, 1, 0), sensitivity_1=(0,) * 6)
    made = replace(make(some), plot=plot)
    picture = figures.render(made)
    assert picture.startswith(b"\x89PNG")
    saved = Comparison.from_bytes(made.to_bytes(), "saved")
    assert saved.plot == plot
    assert figures.render(saved) == picture
    assert maps.pictures(made)["variance, round 1"].tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(UserError, match="to have maps"):
        figures.render(replace(make(row({})), plot=plot))


def test_lines_are_means_of_seeds_without_what_was_not_measured():
    one, two, three = figures._lines(ROWS, "accuracy")
    assert one.mean[0] == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert (one.least[0], one.most[0]) == pytest.approx((1 / 2, 2 / 3))
    assert [len(line.x) for line in (one, two, three)] == [5, 9, 1]
    scales = {line.row.name: list(line.x) for line in figures._lines(ROWS, "scale")}
    assert scales == {"one": [2, 3, 4, 5], "two": [2, 3, 4, 5, 6, 7, 8, 9]}
    assert list(figures._lines(ROWS, "nothing")) == []


def test_a_run_that_stops_earlier_stays_at_its_last_value():
    def trial(seed: int, rounds: tuple[int, ...], values: tuple[float, ...]) -> Trial:
        return Trial(seed=seed, values={"rounds": rounds[-1]}, curves={"round": rounds, "rmse": values})

    stopped = replace(row(name="r"), trials=(trial(0, (1, 2, 3, 4), (4, 3, 2, 1)), trial(1, (1, 3), (6, 4))))
    (line,) = figures._lines((stopped,), "rmse")
    assert list(line.x) == [1, 2, 3, 4]
    assert list(line.mean) == [5, 4, 3, 2.5]
    assert "stays at its last value" in style.caption(make(stopped, y=("rmse",)), "Line", "band")


def test_points_are_means_over_an_argument_with_their_deviation():
    plot = Points(x="noise", y="rmse", lines="models", labels={"models": "hypotheses:"})

    def of(models: int, noise: float | None, *values: float | None) -> Row:
        args = {"models": models} | ({} if noise is None else {"noise": noise})
        trials = tuple(Trial(seed=seed, values={"rmse": value}) for seed, value in enumerate(values))
        return replace(row(name=f"{models} {noise}"), args=args, trials=trials)

    rows = (of(3, 2.0, 0.5, 0.7), of(3, None, 0.1, 0.3), of(1, 2.0, 0.9, 0.9), of(1, 5.0, 0.9, None))
    one, three = scatter.series(rows, plot)
    assert (one.name, three.name) == ("hypotheses: 1", "hypotheses: 3")
    assert list(three.x) == [0.0, 2.0]
    assert list(three.mean) == pytest.approx([0.2, 0.6])
    assert list(three.deviation) == pytest.approx([0.2 / 2**0.5, 0.2 / 2**0.5])
    assert (list(one.x), list(one.deviation)) == ([2.0], [0.0])
    made = replace(make(*rows), plot=plot)
    picture = figures.render(made)
    assert picture.startswith(b"\x89PNG")
    assert figures.render(Comparison.from_bytes(made.to_bytes(), "saved")) == picture


@pytest.mark.parametrize("heights", [[0.9, 0.9, 0.9, 0.2], [0.1], [0.3, 0.29, 0.31, 0.3, 0.8]])
def test_names_keep_apart_and_in_order(heights):
    placed = figures._spread(heights, 0.1)
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    assert all(placed[b] - placed[a] >= 0.0999 for a, b in pairwise(order))


def test_a_table_is_not_drawn():
    with pytest.raises(UserError, match="tiny/table-1 is a table"):
        figures.render(make(*ROWS))


def test_without_the_plotting_library_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"pip install tacit\[plot\]"):
        figures.render(make(*ROWS, y=("accuracy",)))


def test_the_plotting_library_is_loaded_only_to_draw():
    code = "import sys, tacit.cli.reproduce, tacit.report.figures; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_images_are_drawn_from_the_document_alone():
    shades = np.linspace(0, 1, 2 * 3 * 4 * 4).reshape(2, 3, 4, 4)
    strips = (Strip.of("colour", shades), Strip.of("grey", shades[:, :1]), Strip(name="none", words="nothing seen"))
    drawn = replace(make(*ROWS, y=("accuracy",)), plot=Gallery(strips=strips))
    again = Comparison.from_bytes(drawn.to_bytes(), "it")
    assert again.plot == drawn.plot
    assert again.plot.strips[0].images.shape == (2, 4, 4, 3)
    assert again.plot.strips[1].images[1, 3, 3, 0] == round(float(shades[1, 0, 3, 3]) * 255)
    assert len(again.plot.strips[2].images) == 0
    assert figures.render(again) == figures.render(drawn)
