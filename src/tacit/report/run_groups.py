"""Groups of runs that differ only in their seed: means with 95 % intervals, and one guarantee for each group."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from tacit.errors import one_line
from tacit.privacy.guarantee import Guarantee, LeakageGuarantee
from tacit.report.chart_data import COLOUR_COUNT, Chart, ChartLine, ChartValues, finite, metric_title
from tacit.report.intervals import Interval
from tacit.report.run_data import RunData, charged_epsilon, metric_names, thin

_MAX_POINTS = 400


@dataclass(frozen=True, eq=False)
class RunGroup:
    """Runs of one method on one task with one set of arguments.

    Attributes:
        label: the method, with the arguments in which it differs from the other groups.
        runs: its runs.
    """

    label: str
    runs: tuple[RunData, ...]

    @property
    def task(self) -> str:
        return self.runs[0].manifest.task.name

    @cached_property
    def metrics(self) -> dict[str, Interval]:
        """The interval of every metric that all runs have."""
        names = metric_names(run.metrics for run in self.runs)
        return _intervals({name: [run.metrics[name] for run in self.runs if name in run.metrics] for name in names})

    @property
    def epsilon(self) -> float | None:
        """The largest ε of its runs: a bound is not averaged."""
        return max((run.epsilon for run in self.runs if run.epsilon is not None), default=None)

    @property
    def unfinished(self) -> int:
        return sum(run.manifest.status != "finished" for run in self.runs)

    def amounts(self) -> dict[str, Interval]:
        """Rounds, bytes and seconds."""
        return _intervals(
            {
                "rounds": [len(run.reports) for run in self.runs],
                "up": [run.bandwidth.up for run in self.runs],
                "down": [run.bandwidth.down for run in self.runs],
                "seconds": [run.seconds for run in self.runs],
            }
        )

    @cached_property
    def guarantee(self) -> Guarantee | LeakageGuarantee:
        """The weakest guarantee of its runs; none if one of them has none."""
        return max((run.guarantee for run in self.runs), key=_weakness)

    def to_json(self) -> dict[str, object]:
        return {
            "label": self.label,
            "method": self.runs[0].manifest.method.name,
            "args": self.runs[0].manifest.method.args,
            "task": self.task,
            "task_args": self.runs[0].manifest.task.args,
            "seeds": [run.manifest.seed for run in self.runs],
            "unfinished": self.unfinished,
            "metrics": {name: interval.to_json() for name, interval in self.metrics.items()},
            "epsilon": self.epsilon,
            **{name: interval.to_json() for name, interval in self.amounts().items()},
            "guarantee": self.guarantee.to_json(),
            "directories": [str(run.path) for run in self.runs],
        }


def group_runs(runs: Iterable[RunData]) -> tuple[list[RunGroup], list[str]]:
    """The runs in groups, and a note about each run omitted because it repeats another one bit for bit."""
    groups: dict[str, list[RunData]] = {}
    seen: dict[str, RunData] = {}
    notes = []
    for run in runs:
        name = run.manifest.run
        if name in seen:
            notes.append(f"{run.path} repeats {seen[name].path}, with the same seed and noise: it is counted once.")
            continue
        seen[name] = run
        groups.setdefault(_key(run), []).append(run)
    return _label([tuple(each) for each in groups.values()]), notes


def header(groups: Sequence[RunGroup]) -> list[str]:
    """The columns of the table of groups."""
    names = metric_names(dict.fromkeys(group.metrics, 0.0) for group in groups)
    return ["method", "task", "runs", "rounds", *names, "ε", "up", "down", "seconds"]


def rows(groups: Sequence[RunGroup]) -> list[list[str]]:
    """The table of groups, a row each."""
    names = header(groups)[4:-4]
    lines = []
    for group in groups:
        amounts, metrics = group.amounts(), group.metrics
        runs = f"{len(group.runs)}{f' ({group.unfinished} unfinished)' * bool(group.unfinished)}"
        units = {run.unit for run in group.runs if run.unit.within_client}
        unit = f" ({', '.join(sorted(units))})" if units else ""
        epsilon = "-" if group.epsilon is None else f"{group.epsilon:.4g}{unit}"
        lines.append(
            [
                group.label,
                group.task,
                runs,
                amounts["rounds"].text(),
                *(metrics[name].text() if name in metrics else "" for name in names),
                epsilon,
                amounts["up"].size(),
                amounts["down"].size(),
                amounts["seconds"].text(),
            ]
        )
    return lines


def guarantees(groups: Sequence[RunGroup]) -> dict[str, Guarantee | LeakageGuarantee]:
    """Each distinct guarantee, by the labels of its groups."""
    by_text: dict[str, list[RunGroup]] = {}
    for group in groups:
        by_text.setdefault(str(group.guarantee), []).append(group)
    return {", ".join(each.label for each in same): same[0].guarantee for same in by_text.values()}


def guarantee_lines(groups: Sequence[RunGroup]) -> list[str]:
    """The distinct guarantees, as lines."""
    by_labels = guarantees(groups)
    lines = []
    for labels, guarantee in by_labels.items():
        kind = "Guarantee" if guarantee.proved else "No privacy guarantee"
        whose = f" of {labels}" if len(by_labels) > 1 else ""
        lines += f"{kind}{one_line(whose)}: {str(guarantee).removeprefix('none: ')}".split("\n")
    return lines


def group_charts(groups: Sequence[RunGroup]) -> list[Chart]:
    """Every metric over rounds, the mean of each group with its interval, and ε."""
    names = metric_names(dict.fromkeys(group.metrics, 0.0) for group in groups)
    rounds = sorted({report.round for group in groups for run in group.runs for report in run.reports})
    shown = thin(rounds, _MAX_POINTS)
    charts = []
    for name in names:
        lines = [_group_line(group, name, shown, f"--c{i % COLOUR_COUNT}") for i, group in enumerate(groups)]
        charts.append(Chart(metric_title(name), shown, lines))
    private = [group for group in groups if group.epsilon is not None]
    if private:
        lines = [_epsilon_line(group, shown, f"--c{groups.index(group) % COLOUR_COUNT}") for group in private]
        charts.append(Chart("Privacy loss ε of all rounds so far, largest of a group", shown, lines, zero=True))
    return charts


def _group_line(group: RunGroup, name: str, rounds: Sequence[int], colour: str) -> ChartLine:
    series = [{report.round: report.metrics[name] for report in run.reports if name in report.metrics}
             for run in group.runs]  # fmt: skip
    intervals = [Interval.of([run[each] for run in series if each in run]) for each in rounds]

    def edge(sign: int) -> ChartValues:
        return finite(None if each is None else each.mean + sign * (each.half or 0.0) for each in intervals)

    return ChartLine(group.label, edge(0), colour, band=None if len(group.runs) == 1 else (edge(-1), edge(1)))


def _epsilon_line(group: RunGroup, rounds: Sequence[int], colour: str) -> ChartLine:
    largest: dict[int, float] = {}
    for report in (report for run in group.runs for report in run.reports):
        (epsilon,) = finite([charged_epsilon(report)])
        if epsilon is not None:
            largest[report.round] = max(largest.get(report.round, 0.0), epsilon)
    return ChartLine(group.label, [largest.get(each) for each in rounds], colour)


def _intervals(values: Mapping[str, Sequence[float]]) -> dict[str, Interval]:
    intervals = {name: Interval.of([*map(float, each)]) for name, each in values.items()}
    return {name: interval for name, interval in intervals.items() if interval is not None}


def _key(run: RunData) -> str:
    """What is equal in repetitions of a run: everything but the seed and what follows from it."""
    manifest = run.manifest
    task = replace(manifest.task, not_covered=())
    return repr(
        (manifest.method.canonical, task, manifest.device, manifest.evaluate_every, manifest.randomness, manifest.waves)
    )


def _label(groups: Sequence[tuple[RunData, ...]]) -> list[RunGroup]:
    """Groups with the arguments in which those of the same method differ."""
    labelled: list[RunGroup] = []
    for group in groups:
        manifest = group[0].manifest
        same = [other[0] for other in groups if other[0].manifest.method.name == manifest.method.name]
        mine = _settings(group[0])
        differing = [key for key in mine if any(_settings(other).get(key) != mine[key] for other in same)]
        label = " ".join([manifest.method.name, *(f"{key}={mine[key]}" for key in differing)])
        again = sum(other.label.partition(" (")[0] == label for other in labelled)
        labelled.append(RunGroup(f"{label} ({again + 1})" if again else label, group))
    return labelled


def _settings(run: RunData) -> Mapping[str, str]:
    method, task = run.manifest.method.args or {}, run.manifest.task.args or {}
    own = {
        key: json.dumps(value, ensure_ascii=False, default=str).strip('"') for key, value in {**task, **method}.items()
    }
    return {**own, "noise-key": run.manifest.randomness} if run.manifest.randomness == "seeded" else own


def _weakness(guarantee: Guarantee | LeakageGuarantee) -> tuple[bool, float]:
    if isinstance(guarantee, LeakageGuarantee):
        return not guarantee.proved, guarantee.leakage
    return not guarantee.proved, inf if guarantee.epsilon is None else guarantee.epsilon
