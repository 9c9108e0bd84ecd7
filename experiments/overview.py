"""Every table and figure of the five papers at a glance, from the saved results.

    python experiments/overview.py            print what is generated of experiments/README.md
    python experiments/overview.py --write    write it there

A row of a study is *reached* or *missed* by what the paper prints of its accuracy (or of its traffic, where the study
is of traffic), if the 95 % interval of its mean says so, and with fewer than three seeds at most *within reach*; a
ranking, where the paper prints no number, by the 95 % interval of the difference. Other data than the paper's are *not
comparable*. What is defined and has no saved result is *not run*, with the time that it would take at
the pace of the runs that were made.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from claims import conclusions, read_claims, seeds_text

from tacit.papers.comparison import Comparison
from tacit.papers.study import Study, StudyRow, read_study
from tacit.papers.study_files import studies_folder, study_files

HERE = Path(__file__).parent
BEGIN, END = "<!-- begin: {} of python experiments/overview.py -->", "<!-- end: {} -->"
JUDGED = ("accuracy", "best_accuracy", "uploads", "volume")  # costs follow from rounds, and are in the READMEs
SEEDS = 3  # that a row should have
MORE_MESSAGES = "reached with more messages"
VERDICTS = ("reached", "missed", "undecided", "not comparable", "nothing printed")


@dataclass(frozen=True)
class Item:
    """A table or figure of a paper, or what was added to it.

    Attributes:
        place: its place in the paper; `beyond` for what the paper does not have.
        study: the study that reproduces it.
        note: what the counts do not say.
        hours: of a core, for a run of rows whose names begin like this; of others, the mean of those that were made.
    """

    place: str
    study: str
    note: str = ""
    hours: Mapping[str, float] = field(default_factory=dict)


PAPERS: dict[str, tuple[Item, ...]] = {
    "fl-top": (
        Item("Table 1", "table-1", "baselines at 0.5 % and FL-CS-DP are missed, with one seed; no row has three"),
        Item("Table 2", "table-2", "stand-in for proprietary data: only the ranking can be compared"),
        Item("Table 6 (appendix)", "table-6", "hours by the runs of Table 1", {"": 0.45}),
        Item("medical, appendix", "appendix-medical", "stand-in, as for Table 2"),
        Item("medical, appendix: baselines", "appendix-baselines", "hours by the runs of Table 2", {"": 0.02}),
        Item("Table 5 (appendix)", "table-5", "the bounds of medical data; one round each", {"": 0.002}),
        Item("Figure 1", "figure-1", "looks like the paper's, with one seed"),
        Item("beyond: larger steps", "larger-steps"),
        Item("beyond: other masks, and a vote", "masks"),
        Item("beyond: secure aggregation", "secure-sum"),
    ),
    "priority": (
        Item("Figures 3 and 4", "figure-4", "the maps look alike, with one seed"),
        Item("Figure 5", "figure-5"),
        Item("Figure 6", "figure-6"),
        Item("Figure 7", "figure-7"),
        Item("Figure 8", "figure-8"),
        Item("beyond: readings of the formula", "readings"),
        Item("beyond: equal proved ε", "equal-epsilon"),
        Item("beyond: clients with two digits", "non-iid", "hours by the runs of Figure 6", {"": 0.007}),
        Item("beyond: a fifth of the inputs is noise", "irrelevant", "hours by the runs of Figure 6", {"": 0.009}),
    ),
    "esmfl": (
        Item(
            "Table 1",
            "table-1",
            "LeNet reached but for 87x on shards, with other settings than the paper's; tuned alike, a lead of ADMM is "
            "shown only if weights are dropped at once; "
            "MobileNetV2 was not run: 25 hours a run, by the time of a batch",
            {"MobileNetV2": 25},
        ),
        Item("Table 2", "table-2", "traffic of the runs of Table 1; shards and MobileNetV2 in its README"),
        Item("Table 3", "table-3", "sizes only; times are of other hardware", {"MobileNetV2": 0.36}),
        Item("Figure 2", "figure-2", "runs of Table 1"),
        Item("Figure 3", "figure-3", "MobileNetV2: the runs of Table 1"),
        Item("beyond: pruned at once, as described", "at-once"),
        Item("beyond: ADMM and its baseline tuned alike", "tuned-alike", "other rows are those of Table 1 and at once"),
        Item("beyond: no warm-up", "no-warm-up", "hours by the runs at once", {"": 0.25}),
        Item("beyond: MobileNetV2, small", "mobilenet-small", "12.7 %: too small to learn"),
        Item("beyond: MobileNetV2, a quarter", "mobilenet-quarter", "hours by 12 rounds", {"": 1.4}),
    ),
    "geyer": (
        Item(
            "Table 1",
            "table-1",
            "reached with a smaller model, and more messages at K = 100 and 1000; missed with the paper's model, "
            "by all four private rows; the paper's settings at K = 10000 would take 5 h a run",
            {"K=10000": 5},
        ),
        Item("Figure 2", "figure-2", "runs of Table 1"),
        Item(
            "Figure 3",
            "figure-3",
            "with one seed, the scale falls as in the paper, and the variance falls where the paper's rises",
        ),
    ),
    "group-privacy": (
        Item(
            "Figure 1",
            "figure-1",
            "the ranking is the paper's (ten seeds); scatter panels with one seed, in the README",
        ),
        Item("Figure 2", "figure-2", "falls from 1 to 7 hypotheses as in the paper; a rise with noise is not shown"),
        Item(
            "beyond: Figure 2, public radius",
            "figure-2-public",
            "rises with noise as in the paper, with three and more hypotheses",
        ),
        Item("Figure 3", "figure-3", "an attack, with one seed; see dlg.md"),
        Item("beyond: attack on defences", "figure-3-defences"),
        Item("Figure 3, own network", "figure-3-own-network", "an attack; hours are an estimate", {"": 0.1}),
        Item(
            "Table 2",
            "table-2",
            "stand-in: 4.5 s a round by the short version, so 0.6 h for each run of 500 rounds, "
            "less for those that stop early",
            {"": 0.6},
        ),
        Item("beyond: Table 2, short", "table-2-short", "stand-in"),
    ),
}


def saved_results(name: str) -> Comparison | None:
    """The saved results of a study; None: there are none."""
    paper, _, what = name.partition("/")
    file = HERE / paper / "results" / f"{what}.json"
    return Comparison.from_bytes(file.read_bytes(), str(file)) if file.exists() else None


def row_verdict(row: StudyRow, study: Study, saved: Comparison | None) -> str:
    """One of `VERDICTS`, or `not run`."""
    found = {each.name: each for each in saved.rows} if saved else {}
    if saved is None or row.name not in found:
        return "not run"
    if study.stand_in or saved.stand_in:
        return "not comparable"
    judged = [quantity for quantity in JUDGED if quantity in study.columns] or JUDGED
    verdicts = [saved.verdict(found[row.name], quantity) for quantity in judged]
    verdict = next((each for each in verdicts if each not in ("", "not measured")), "nothing printed")
    costly = saved.verdict(found[row.name], "cost") == "missed"
    return MORE_MESSAGES if costly and verdict == "reached" else verdict


def ranking_verdicts(saved: Comparison | None) -> list[str]:
    """Whether each ranking of the paper holds."""
    if saved is None:
        return []
    described = [ranking.describe(saved.rows) for ranking in saved.rankings]
    return [next(verdict for verdict in (*VERDICTS, "not measured") if f": {verdict}" in line) for line in described]


def missing(study: Study, saved: Comparison | None) -> dict[str, int]:
    """How many runs have no result, by row; rows of another study are counted there."""
    seeds = {row.name: len(row.trials) for row in saved.rows} if saved else {}
    own = [row for row in study.rows if row.study == study.name]
    counts = {row.name: len(row.experiment.seeds) - seeds.get(row.name, 0) for row in own}
    return {name: count for name, count in counts.items() if count > 0}


def hours(row: str, item: Item, saved: Comparison | None) -> float | None:
    """Hours of a core that a run of this row takes, by its other runs or by all of them; None: not measured."""
    given = next((value for begin, value in item.hours.items() if row.startswith(begin)), None)
    found = {each.name: each.by_seed("seconds").values() for each in (saved.rows if saved else ())}
    made = {name: min(seconds) for name, seconds in found.items() if seconds}  # others may have been paused
    seconds = made.get(row) or (fmean(made.values()) if made else None)
    return given or (None if seconds is None else seconds / 3600)


def lines(paper: str, items: Sequence[Item]) -> Iterator[str]:
    """The table of one paper."""
    files = study_files(studies_folder())
    yield "| place | study | result, rows | seeds | not run | note |"
    yield "|---|---|---|---|---|---|"
    for item in items:
        name = f"{paper}/{item.study}"
        study, saved = read_study(name, files), saved_results(name)
        counts = Counter(row_verdict(row, study, saved) for row in study.rows)
        rankings = Counter(ranking_verdicts(saved))
        counts.update({f"{verdict} (ranking)": number for verdict, number in rankings.items()})
        if rankings:
            counts.pop("nothing printed", None)  # they are judged by the rankings
        shown = ", ".join(f"{number} {verdict}" for verdict, number in counts.items() if verdict != "not run")
        seeds = (seeds_text(1) if saved.seeds == "1" else saved.seeds) if saved else ""
        cells = (item.place, f"`{name}`", shown or "**not run**", seeds, _missing(study, saved, item), item.note)
        yield f"| {' | '.join(cells)} |"


def _missing(study: Study, saved: Comparison | None, item: Item) -> str:
    runs, found = missing(study, saved), {row.name for row in saved.rows} if saved else set()
    whole = sum(count for name, count in runs.items() if name not in found)
    further = sum(runs.values()) - whole
    parts = [f"{whole} runs of rows without a result"] * bool(whole) + [f"{further} further seeds"] * bool(further)
    costs = [(count, hours(name, item, saved)) for name, count in runs.items()]
    known = [count * each for count, each in costs if each is not None]
    return ", ".join(parts) + (f": {sum(known):.1f} h" if runs and len(known) == len(runs) else "")


def text() -> str:
    """All tables, one per paper."""
    parts = [
        f"### [{paper}]({paper}/README.md)\n\n" + "\n".join(lines(paper, items)) for paper, items in PAPERS.items()
    ]
    return "\n\n".join(parts)


PARTS: dict[str, Callable[[], str]] = {
    "conclusions": lambda: "\n".join(conclusions(read_claims())),
    "tables": text,
}


def main() -> None:
    """Print what is generated, or write it into experiments/README.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write it into experiments/README.md")
    page = HERE / "README.md"
    if not parser.parse_args().write:
        print("\n\n".join(part() for part in PARTS.values()))
        return
    for name, part in PARTS.items():
        before, begin, rest = page.read_text().partition(BEGIN.format(name))
        page.write_text(f"{before}{begin}\n\n{part()}\n\n{END.format(name)}{rest.partition(END.format(name))[2]}")


if __name__ == "__main__":
    main()
