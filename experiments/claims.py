"""What a reader may conclude about the five papers: their claims (claims.toml), judged by the saved results.

`overview.py` puts the text at the head of README.md. A state that its evidence does not support is an error.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal

from tacit.core.serialization import Source, convert, load_toml
from tacit.errors import expect
from tacit.papers.comparison import MIN_SEEDS, Comparison, Ranking
from tacit.report.intervals import Interval

HERE = Path(__file__).resolve().parent
State = Literal["holds", "tuned", "fails", "open"]
HEADS: dict[State, str] = {
    "holds": "Hold here, with at least three seeds",
    "tuned": "Hold only with other settings than the paper's, in another quantity or on some of the data",
    "fails": "Do not hold here",
    "open": "Undecided: fewer than three seeds, an interval that allows both, or not run",
}


@dataclass(frozen=True)
class Finding:
    """What one piece of evidence says.

    Attributes:
        verdict: as in a comparison; `shown`: a figure of a page, `proved`: that the claim cannot hold.
        text: the figures.
        seeds: how many it rests on.
    """

    verdict: str
    text: str
    seeds: int

    @property
    def decides(self) -> bool:
        """Whether it rests on enough seeds, and does not leave the claim open."""
        return self.seeds >= MIN_SEEDS and self.verdict in ("reached", "missed", "shown", "proved")


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A row or two rows of a study, a figure of a page, or a proof: see claims.toml."""

    study: str = ""
    row: str = ""
    less: str = ""
    more: str = ""
    quantity: str = "accuracy"
    within: float | None = None
    file: str = ""
    page: str = ""
    shown: str = ""
    seeds: int = 0
    proof: str = ""

    def finding(self) -> Finding:
        """What it says, by the saved results."""
        if self.proof:
            page, _, anchor = self.proof.partition("#")
            expect((HERE.parent / page).exists(), f"a page {page}")
            return Finding("proved", f"[reason](../{page}#{anchor})", MIN_SEEDS)
        if self.shown:
            expect(self.shown in (HERE / self.page).read_text(), f"{self.shown} in {self.page}")
            link = f"[{Path(self.file).name}]({self.file})"
            return Finding("shown", f"{self.shown.strip('*')} ({seeds_text(self.seeds)}, {link})", self.seeds)
        return self._paired() if self.less else self._printed()

    def _saved(self) -> tuple[Comparison | None, str]:
        paper, _, name = self.study.partition("/")
        path = HERE / paper / "results" / f"{name}.json"
        link = f"[{path.name}]({path.relative_to(HERE)})"
        return (Comparison.from_bytes(path.read_bytes(), str(path)) if path.exists() else None), link

    def _printed(self) -> Finding:
        """A row beside the number that the paper prints."""
        saved, link = self._saved()
        rows = [row for row in (saved.rows if saved else ()) if row.name == self.row]
        if saved is None or not rows:
            return Finding("not run", f"{self.row}: not run", 0)
        row, values = rows[0], [*rows[0].by_seed(self.quantity).values()]
        verdict, interval = saved.verdict(row, self.quantity), Interval.of(values)
        assert interval is not None
        shown = f"{interval.text()} in {seeds_text(len(values))}, {row.paper[self.quantity]} in the paper: {verdict}"
        return Finding(verdict, f"{self.row} {shown} ({link})", len(values))

    def _paired(self) -> Finding:
        """Two rows with the same seeds."""
        saved, link = self._saved()
        assert saved is not None
        first, second = (
            {row.name: row for row in saved.rows}[name].by_seed(self.quantity) for name in (self.less, self.more)
        )
        differences = [second[seed] - first[seed] for seed in first if seed in second]
        interval = Interval.of(differences)
        assert interval is not None
        half = interval.half or 0.0
        ranking = Ranking(rows=(self.less, self.more), place="", quantity=self.quantity, within=self.within)
        verdict = ranking.judge(interval.mean - half, interval.mean + half, len(differences))
        ends = f"{fmean(differences):+.4f}, {interval.mean - half:.4f} to {interval.mean + half:.4f}"
        shown = f"{self.more} minus {self.less}: {ends} in {seeds_text(len(differences))}"
        return Finding(verdict, f"{shown} ({link})", len(differences))


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, its state, and the evidence."""

    paper: str
    says: str
    state: State
    evidence: tuple[Evidence, ...]

    def supported(self, findings: Sequence[Finding]) -> bool:
        """Whether the evidence supports the state."""
        deciding = [each.verdict for each in findings if each.decides]
        match self.state:
            case "holds":
                return len(deciding) == len(findings) and set(deciding) == {"reached"}
            case "tuned":
                return bool({"reached", "shown"} & set(deciding))
            case "fails":
                return len(deciding) == len(findings) and "reached" not in deciding
            case "open":
                return not deciding

    def text(self) -> str:
        """One line of the page."""
        findings = [each.finding() for each in self.evidence]
        expect(self.supported(findings), f"evidence for {self.state!r} of {self.says!r}, got {findings}")
        return f"- *{self.paper}*: {self.says}. {'; '.join(each.text for each in findings)}."


def seeds_text(count: int) -> str:
    """How many seeds: `one seed`, or a number.

    Example:
        >>> seeds_text(1), seeds_text(3)
        ('one seed', '3 seeds')
    """
    return "one seed" if count == 1 else f"{count} seeds"


@dataclass(frozen=True)
class Claims:
    """The file."""

    claims: tuple[Claim, ...]


def read_claims() -> tuple[Claim, ...]:
    """All claims, in the order of the file."""
    path = HERE / "claims.toml"
    source = Source(label=path.name, advice="See the comment at its head.")
    return convert(load_toml(path), Claims, source).claims


def conclusions(claims: Sequence[Claim]) -> Iterator[str]:
    """The first paragraph of the page, and the claims by state."""
    of = {state: [claim for claim in claims if claim.state == state] for state in HEADS}
    counts = {state: len(each) for state, each in of.items()}
    yield (
        f"**What may be concluded.** Of {len(claims)} claims of the five papers, {counts['holds']} hold here as the "
        f"papers state them, {counts['tuned']} hold only with other settings or in part, "
        f"{counts['fails']} do not hold, and {counts['open']} are undecided. "
        "Each names its evidence: a mean with its 95 % interval (Student's t) or the words *one seed*, and the file. "
        "*Reached* and every ranking need at least three seeds, a claim of no difference at least eight."
    )
    for state, head in HEADS.items():
        yield f"\n**{head}**\n"
        yield from (claim.text() for claim in of[state])
