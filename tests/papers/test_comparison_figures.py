import sys
from dataclasses import replace

import numpy as np
import pytest

from papers.comparisons import make, row
from tacit.errors import UserError
from tacit.papers.comparison import Comparison, ComparisonRow, RowTrial
from tacit.papers.comparison_figures import caption, densities, error_bars, importance_maps, lines, render
from tacit.papers.figure_specs import HistogramPanel, HistogramPlot, ImportanceMaps, ScatterPlot
from tacit.report.pictures import Gallery, Strip

ROWS = (row({}, {}, name="one"), row({}, name="two", length=9), row({}, name="three", length=1))


def assert_drawn_from_the_document(made: Comparison) -> None:
    """The figure is a PNG, and the same after saving and reading the comparison."""
    saved = Comparison.from_bytes(made.to_bytes(), "saved")
    assert saved.plot == made.plot
    picture = render(made)
    assert picture.startswith(b"\x89PNG")
    assert render(saved) == picture


def test_lines_are_drawn_from_the_document_alone():
    made = make(*ROWS, y=("accuracy", "scale"), log=("round", "scale"))
    assert_drawn_from_the_document(made)
    assert render(make(*ROWS[:2], y=("accuracy",))) != render(made)


def histogram_row(name: str, *values: tuple[float, ...]) -> ComparisonRow:
    trials = (RowTrial(seed=i, values={}, curves={"weight": (-1, 0, 1), "density": d}) for i, d in enumerate(values))
    return replace(row(name=name), trials=tuple(trials))


def test_a_histogram_is_drawn_from_the_document_alone():
    panel = HistogramPanel(title="P", rows=("two", "one", "not counted", "not there"), mask="one")
    rows = (histogram_row("one", (0.25, 0.75), (0.75, 0.25)), histogram_row("two", (1, 0)), row({}, name="not counted"))
    made = replace(make(*rows), plot=HistogramPlot(panels=(panel, replace(panel, rows=("not there",))), bins=2))
    assert_drawn_from_the_document(made)
    two, one = densities(rows, panel)
    assert (two.name, one.name) == ("two", "one")
    assert [list(values) for values in (one.mean, one.lowest, one.highest)] == [[0.5, 0.5], [0.25, 0.25], [0.75, 0.75]]


def row_with_maps(**curves: tuple[float, ...]) -> ComparisonRow:
    maps = {name.replace("_", ", round "): values for name, values in curves.items()}
    return replace(row(), trials=(RowTrial(seed=0, values={}, curves={"shape": (2, 3), "mean": (0,) * 6, **maps}),))


def test_maps_are_drawn_from_the_document_alone():
    plot = ImportanceMaps(client=4, at=(1, 5), importance=("variance", "sensitivity"), noise=0.1)
    some = row_with_maps(variance_1=(0, 1, 2, 3, 4, 5), variance_5=(5, 4, 3, 2, 1, 0), sensitivity_1=(0,) * 6)
    made = replace(make(some), plot=plot)
    assert_drawn_from_the_document(made)
    assert importance_maps(made)["variance, round 1"].tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(UserError, match="to have importance maps"):
        render(replace(make(row({})), plot=plot))


def test_lines_are_means_over_seeds_without_missing_values():
    one, two, three = lines(ROWS, "accuracy")
    assert one.mean[0] == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert (one.lowest[0], one.highest[0]) == pytest.approx((1 / 2, 2 / 3))
    assert [len(line.x) for line in (one, two, three)] == [5, 9, 1]
    scales = {line.name: list(line.x) for line in lines(ROWS, "scale")}
    assert scales == {"one": [2, 3, 4, 5], "two": [2, 3, 4, 5, 6, 7, 8, 9]}
    assert list(lines(ROWS, "nothing")) == []


def test_a_run_that_stops_earlier_keeps_its_last_value():
    def trial(seed: int, rounds: tuple[int, ...], values: tuple[float, ...]) -> RowTrial:
        return RowTrial(seed=seed, values={"rounds": rounds[-1]}, curves={"round": rounds, "rmse": values})

    stopped = replace(row(name="r"), trials=(trial(0, (1, 2, 3, 4), (4, 3, 2, 1)), trial(1, (1, 3), (6, 4))))
    (line,) = lines((stopped,), "rmse")
    assert list(line.x) == [1, 2, 3, 4]
    assert list(line.mean) == [5, 4, 3, 2.5]
    assert "keeps its last value" in caption(make(stopped, y=("rmse",)), "Line", "band")


@pytest.mark.parametrize(
    ("seeds", "said"), [((1, 1), ""), ((3, 3), "mean of 3 seeds;"), ((1, 3, 2), "mean of 1 to 3 seeds;")]
)
def test_the_caption_says_how_many_seeds_the_lines_have(seeds: tuple[int, ...], said: str):
    rows = [row(*[{"accuracy": 0.5}] * count, name=str(number)) for number, count in enumerate(seeds)]
    found = caption(make(*rows, y=("accuracy",)), "Line", "band")
    assert said in found if said else "mean" not in found


def test_points_are_means_over_an_argument_with_their_deviation():
    plot = ScatterPlot(x="noise", y="rmse", lines="models", labels={"models": "hypotheses:"})

    def of(models: int, noise: float | None, *values: float | None) -> ComparisonRow:
        args = {"models": models} | ({} if noise is None else {"noise": noise})
        trials = tuple(RowTrial(seed=seed, values={"rmse": value}) for seed, value in enumerate(values))
        return replace(row(name=f"{models} {noise}"), args=args, trials=trials)

    rows = (of(3, 2.0, 0.5, 0.7), of(3, None, 0.1, 0.3), of(1, 2.0, 0.9, 0.9), of(1, 5.0, 0.9, None))
    one, three = error_bars(rows, plot)
    assert (one.name, three.name) == ("hypotheses: 1", "hypotheses: 3")
    assert list(three.x) == [0.0, 2.0]
    assert list(three.mean) == pytest.approx([0.2, 0.6])
    assert list(three.deviation) == pytest.approx([0.2 / 2**0.5, 0.2 / 2**0.5])
    assert (list(one.x), list(one.deviation)) == ([2.0], [0.0])
    assert_drawn_from_the_document(replace(make(*rows), plot=plot))


def test_a_table_is_not_drawn():
    with pytest.raises(UserError, match="tiny/table-1 is a table"):
        render(make(*ROWS))


def test_without_the_plotting_library_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"pip install tacit-fl\[plot\]"):
        render(make(*ROWS, y=("accuracy",)))


def test_images_are_drawn_from_the_document_alone():
    shades = np.linspace(0, 1, 2 * 3 * 4 * 4).reshape(2, 3, 4, 4)
    strips = (Strip.of("colour", shades), Strip.of("grey", shades[:, :1]), Strip(name="none", note="nothing seen"))
    made = replace(make(*ROWS, y=("accuracy",)), plot=Gallery(strips=strips))
    assert_drawn_from_the_document(made)
    colour, grey, none = strips
    assert colour.images.shape == (2, 4, 4, 3)
    assert grey.images[1, 3, 3, 0] == round(float(shades[1, 0, 3, 3]) * 255)
    assert len(none.images) == 0
