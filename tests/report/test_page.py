import base64
import hashlib
import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from report.made import PROVED, TASK, made_run
from tacit import methods
from tacit.cli import main
from tacit.core.prices import Unit
from tacit.errors import RunError
from tacit.privacy.guarantee import detection_limit
from tacit.report import guarantee_section
from tacit.report.chart_data import min_span
from tacit.report.page import comparison_page, run_page
from tacit.report.run_data import RunData, find_runs, read_runs
from tacit.runs.directory import MANIFEST, ROUNDS

HOSTILE = "<script>alert(1)</script>"


class Elements(HTMLParser):
    """The elements of a page, and its text outside of scripts and styles."""

    def __init__(self, page: str) -> None:
        HTMLParser.__init__(self)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.content: dict[str, list[str]] = {}
        self.text = ""
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in ("script", "style"):
            self.content.setdefault(self._inside, []).append(data)
        else:
            self.text += f"{data} "


def page_of(path: Path) -> str:
    return run_page(RunData.read(path))


def test_everything_that_a_privacy_officer_asks_for_is_on_the_page(tmp_path: Path) -> None:
    args = {"epsilon": 2.0, "delta": 1e-5, "cohort": 5, "noise": 2.0}
    run = made_run(tmp_path / "mine", 10, method="geyer", args=args, guarantee=PROVED)
    text = Elements(page_of(run)).text
    assert "geyer on digits" in text
    assert "(ε = 1.25, δ = 1e-05)-differential privacy for every client (add-or-remove), over 10 rounds" in text
    assert "The number of clients, 20, is public." in text
    assert "probability of at most 3.5 %." in text
    assert "sees every message" in text
    assert "I accept that its model is released" in text
    assert "protocol: share" in text
    assert "tacit run geyer --task digits --set rounds=10 epsilon=2.0" in text
    assert "torch" in text
    assert all(name in text for name in ("Name", "Role", "Date", "Signature"))


def test_the_budget_is_drawn_with_epsilon(tmp_path: Path) -> None:
    args = {"epsilon": 2.0, "delta": 1e-5, "cohort": 5, "noise": 2.0}
    run = made_run(tmp_path / "mine", 10, method="geyer", args=args, guarantee=PROVED)
    specs = [json.loads(each) for each in Elements(page_of(run)).content["script"] if each.startswith("{")]
    (spec,) = [each for each in specs if any(line["name"] == "ε" for line in each["lines"])]
    epsilon, budget = spec["lines"]
    assert epsilon["y"][-1] == 1.25
    assert budget["y"] == [2.0] * 10
    assert budget["dash"]


def test_names_from_files_are_shown_and_not_run(tmp_path: Path) -> None:
    """Directory, method, task, arguments, caveat, versions and metrics: each is text on the page."""
    task = replace(TASK, name=HOSTILE, args={HOSTILE: HOSTILE}, loss=HOSTILE)
    run = made_run(
        tmp_path / "<script>alert(1)<", 3, method=HOSTILE, args={HOSTILE: HOSTILE}, task=task, caveat=HOSTILE
    )
    rounds = (run / ROUNDS).read_text().replace('"accuracy"', json.dumps(HOSTILE))
    (run / ROUNDS).write_text(rounds)
    for page in (page_of(run), comparison_page([RunData.read(run)])):
        found = Elements(page)
        assert "<script>alert(1)" in found.text
        assert len(re.findall(r"<script>", page)) == 1
        assert html.escape(HOSTILE) in page
        assert all(not each.startswith("alert") for each in found.content["script"])


def test_the_policy_allows_exactly_the_style_and_the_script_of_the_page(tmp_path: Path) -> None:
    found = Elements(page_of(made_run(tmp_path / "mine", 3)))
    (policy,) = [a["content"] for tag, a in found.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        text = "".join(each for each in found.content[tag] if not each.startswith("{"))
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert not [a for _, a in found.elements if "style" in a or any(name.startswith("on") for name in a)]
    addresses = [a.get(name) or "" for _, a in found.elements for name in ("src", "href", "action")]
    assert all(each == "" or each.startswith("#") for each in addresses)


def test_a_page_of_a_thousand_rounds_is_small(tmp_path: Path) -> None:
    page = page_of(made_run(tmp_path / "mine", 1000, method="geyer", args={"epsilon": 2.0, "noise": 2.0, "cohort": 5},
                            guarantee=PROVED))  # fmt: skip
    assert len(page.encode()) < 500_000


def test_who_took_part_is_not_shown_where_that_must_be_secret(tmp_path: Path) -> None:
    """Of a run whose ε assumes secret cohorts, only totals are shown; of any other, each rejected client."""
    secret = Elements(page_of(made_run(tmp_path / "a", 14, guarantee=PROVED))).text
    assert "Who took part how often is not shown" in secret
    assert "2 messages of 2 clients were rejected." in secret
    assert "client 7" not in secret
    public = Elements(page_of(made_run(tmp_path / "b", 14, guarantee=replace(PROVED, amplified=False)))).text
    assert "client 7" in public
    assert "How evenly clients took part" in public


def test_a_run_that_goes_on_is_reported_with_what_its_rounds_prove(tmp_path: Path) -> None:
    args = {"epsilon": 50.0, "delta": 1e-3, "cohort": 5, "noise": 2.0}
    run = RunData.read(made_run(tmp_path / "mine", 3, method="geyer", args=args, status="running"))
    assert run.guarantee.proved
    assert run.guarantee.not_covered[-1] == "The run is running: rounds after 3 are not included."
    text = Elements(run_page(run)).text
    assert "running" in text


def test_a_guarantee_of_fewer_rounds_is_not_used(tmp_path: Path) -> None:
    """As after a crash of a run that was continued: what it proved before is not what it proves now."""
    path = made_run(tmp_path / "mine", 3, guarantee=PROVED)
    run = RunData.read(path)
    assert run.guarantee.proved
    shorter = replace(run, stored={Unit.CLIENT: replace(PROVED, rounds=2)})
    assert not shorter.guarantee.proved


def test_a_method_of_ones_own_is_reported_without_a_guarantee(tmp_path: Path) -> None:
    text = Elements(page_of(made_run(tmp_path / "mine", 3, method="my own"))).text
    assert "Nothing is proved: the method has pieces that are not known here" in text


@pytest.mark.law
@pytest.mark.parametrize("name", sorted(methods.definitions()))
def test_every_method_has_a_page(name: str, tmp_path: Path) -> None:
    """With a picture of its parties, before and after its first rounds."""
    for rounds in (0, 2):
        page = page_of(
            made_run(tmp_path / f"{rounds}", rounds, method=name, guarantee=replace(PROVED, amplified=False))
        )
        assert "see the model" in Elements(page).text


def test_folders_stand_for_their_runs(tmp_path: Path) -> None:
    runs = [made_run(tmp_path / "a" / f"seed-{seed}", 2, seed=seed) for seed in (0, 1)]
    made_run(tmp_path / "b", 2)
    assert find_runs(tmp_path) == [*runs, tmp_path / "b"]
    assert len(read_runs([tmp_path, tmp_path / "b"])) == 3
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=r"Expected the directory of a run, or a folder of some, got .*, which has none"):
        read_runs([tmp_path / "empty"])


def test_the_command_writes_a_page_and_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path / "mine", 2)
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"Report: {run / 'report.html'}\n"
    assert (run / "report.html").stat().st_mode & 0o777 == 0o600
    made_run(tmp_path / "other", 2, seed=1)
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "all.html"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == [str(run), str(tmp_path / "other")]
    assert "Comparison of 2 runs" in (tmp_path / "all.html").read_text()


def test_a_broken_manifest_is_refused_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path / "mine", 2)
    (run / MANIFEST).write_text("{}")
    assert main(["report", str(run)]) == 2
    assert "Expected the manifest" in capsys.readouterr().err


def test_the_bound_on_tests_is_that_of_differential_privacy() -> None:
    assert detection_limit(0.0, 0.0, 0.01) == pytest.approx(0.01)
    assert detection_limit(0.0, 0.1, 0.01) == pytest.approx(0.11)
    assert detection_limit(1000.0, 0.0, 0.01) == 1.0
    assert detection_limit(8.0, 0.0, 0.01) == pytest.approx(1 - 2.718281828**-8 * 0.99)


@pytest.mark.parametrize(
    ("adjacency", "question", "innocent", "found"),
    [
        ("add-or-remove", "whether a given client, with all of its data, was in the population",
         "clients that were not", "If it was, it is found"),
        ("zero-out", "whether a given client sent its update or zeros", "clients that sent zeros",
         "If it sent its update, that is found"),
        ("replace-one", "which of two data sets a given client has", "clients that have the first",
         "If it has the second, that is found"),
    ],
)  # fmt: skip
def test_the_guarantee_in_plain_words_is_that_of_its_adjacency(
    adjacency: str, question: str, innocent: str, found: str, tmp_path: Path
) -> None:
    """Under zero-out adjacency, that a client belongs to the population is not protected."""
    run = made_run(tmp_path / "mine", 2, guarantee=replace(PROVED, adjacency=adjacency))
    text = Elements(page_of(run)).text
    assert f"wants to find out {question}, by whatever means" in text
    assert f"one false accusation in a hundred {innocent}. {found} with a probability of at most 3.5 %." in text


@pytest.mark.parametrize(
    ("epsilon", "strength"), [(0.5, "strong"), (2.0, "strong"), (3.0, "fair"), (5.0, "weak"), (50.0, "weak")]
)
def test_only_a_strong_guarantee_is_green(epsilon: float, strength: str, tmp_path: Path) -> None:
    """By the detection rates that the documents call strong and weak."""
    page = page_of(made_run(tmp_path / "mine", 2, guarantee=replace(PROVED, epsilon=epsilon)))
    assert f'class="statement {strength}"' in page
    assert guarantee_section.VERDICTS[strength] in html.unescape(page)
    assert 'class="statement none"' in page_of(made_run(tmp_path / "none", 2))


def test_axes_show_a_tenth_at_least(tmp_path: Path) -> None:
    """An accuracy that moves by a hundredth is no steep line."""
    assert min_span("accuracy", [0.80, 0.81]) == 0.1
    assert min_span("loss", [0.5, 0.4]) == pytest.approx(0.05)
    specs = [
        json.loads(each)
        for each in Elements(page_of(made_run(tmp_path / "mine", 3))).content["script"]
        if each[0] == "{"
    ]
    assert specs[0]["span"] == 0.1
