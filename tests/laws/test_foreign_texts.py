"""Texts from others are data: wherever one is printed, logged, shown on a page or exported, every character is shown.

A site, a server, the author of a plan or of a run directory, and a table choose names, reasons and values. None of them
may erase or forge a line, reverse a sentence, run in a browser, compute in a spreadsheet or fill a disk.
"""

import csv
import http.client
import io
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from federation.consortium import SERVER, Consortium
from federation.faulty import Faulty
from report.made import PROVED, made_report, made_run
from scale import scaled
from tacit.cli import main
from tacit.core import texts
from tacit.core.files import ChainedFile
from tacit.core.serialization import write_json
from tacit.errors import MAX_SENTENCE, RunError, TacitError, one_line
from tacit.federation.journal import JOURNAL, AuditLog, read_journal
from tacit.federation.messages import REGISTER
from tacit.federation.server.server import FederationServer
from tacit.federation.transport.endpoints import Failure
from tacit.report.live import HOST, LiveServer
from tacit.report.markup import data, element
from tacit.report.watching import RunWatcher
from tacit.runs.directory import MANIFEST, ROUNDS
from tacit.runs.training import follow

HOSTILE = {
    "escapes": "a\x1b[2J\x1b]0;title\x07\x1b[1;31mred\x9b2Jb",
    "lines": "a\nFORGED: round 7 was accepted\r\nFORGED\x0bFORGED\x0cFORGED\x85FORGED\u2028FORGED\u2029FORGED",
    "return": "a\rFORGED\b\b\b\x7f",
    "reversed": "a\u202eFORGED\u2066\u2069\u200f",
    "invisible": "a\u200b\u200d\ufeff\u2060\u3164\u00ad\ufe0f\U000e0041b",
    "long": "x" * 2_000_000,
    "long lines": "x\x1b\n" * 300_000,
    "equals": "=HYPERLINK(\"http://a\",\"b\")",
    "plus": "+1+cmd|' /C calc'!A0",
    "at": "@SUM(1,1)",
    "minus": "-1+1|cmd",
    "tab": "\t=1+1",
    "script": "<script>alert(1)</script><img src=x onerror=alert(1)>\"'><b>",
    "percent": "%s %n %(a)s {0} {a} $x ${x}",
    "nul": "a\0b",
    "half": "a\ud800b\udfff",
    "markup": "[red]a[/red][link=http://a]b[/link]",
    "words": "constructor __proto__ ../../etc/passwd",
}  # fmt: skip
MANY = scaled(("escapes", "lines", "long lines", "reversed", "half"), campaign=tuple(HOSTILE))
each_text = pytest.mark.parametrize("text", [*HOSTILE.values()], ids=[*HOSTILE])
a_few_texts = pytest.mark.parametrize("text", [HOSTILE[name] for name in MANY], ids=MANY)
MAX_PRINTED = 100_000  # characters


def check_shown(text: str, most: int = MAX_PRINTED) -> None:
    """Nothing in what people see is obeyed by a terminal, and no line was written by somebody else."""
    assert len(text) <= most
    wrong = {character for character in text if not (character.isprintable() or character in "\n\t")}
    assert not wrong, f"{wrong!r} in {text[:500]!r}"
    assert not re.search("[\u3164\ufe0f]", text)
    assert "\nFORGED" not in text
    assert not text.startswith("FORGED")


def refuses(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command that refuses prints: one line."""
    assert main([*words]) in (1, 2)
    printed = capsys.readouterr()
    check_shown(printed.out)
    check_shown(printed.err, 10_000)
    assert "Traceback" not in printed.err
    assert printed.err.count("\n") <= 2
    return printed.err


@each_text
def test_one_line_shows_every_character(text: str) -> None:
    for shown in (one_line(text), texts.word(text), texts.cell(text[:1000]), str(texts.plain([text]))):
        check_shown(shown, 2 * MAX_SENTENCE)  # `str` doubles a backslash
        assert "\n" not in shown
    assert not re.match(r"\s*[=+@]", texts.cell(text))


def test_texts_of_all_languages_are_left_as_they_are() -> None:
    for text in ("Köln", "Ελλάδα: ε = 1.5", "日本語のサイト", "Œuvre – « a » 3 × 10⁴ …", "नमस्ते", "مستشفى"):
        assert one_line(text) == texts.cell(text) == text


def test_numbers_in_a_table_stay_numbers() -> None:
    for number in ("-1", "+2.5", "-1e-05", "-.5", "3", "-inf"):
        assert texts.cell(number) == number


@each_text
@pytest.mark.parametrize("kind", [TacitError, RunError])
def test_an_error_is_one_line(kind: type[TacitError], text: str) -> None:
    error = kind(f"Expected a name, got {text}. Correct it.")
    check_shown(str(error))
    assert "\n" not in str(error)
    assert str(error).endswith("Correct it.")
    assert text in error.args[0]


@each_text
def test_arguments_are_refused_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str) -> None:
    for words in (["run", text], ["card", text], ["run", "fedavg", "--set", f"{text[:1000]}=1"], ["compare", text],
                  ["report", text[:3000]], ["predict", text, text], ["run", "fedavg", f"--{text}"],
                  ["export", str(tmp_path), "--to", text]):  # fmt: skip
        with suppress(SystemExit):  # of argparse
            main(words)
        printed = capsys.readouterr()
        check_shown(printed.out + printed.err, 60_000)
        assert printed.err.count("\n") == 1


@a_few_texts
def test_a_plan_is_refused_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str) -> None:
    """Its names and values are somebody else's, and so is the file's own name."""
    consortium = Consortium.at(tmp_path)
    site, word = str(consortium.home("site-0") / "site.toml"), json.dumps(text[:5000]).replace("\\u007f", "\x7f")
    honest = consortium.write_plan("fl-std").read_text()
    changes = (
        lambda plan: re.sub(r'method = ".*"', lambda _: f"method = {word}", plan),
        lambda plan: re.sub(r'model = ".*"', lambda _: f"model = {word}", plan),
        lambda plan: re.sub(r'sites = ".*"', lambda _: f"sites = {word}", plan),
        lambda plan: re.sub(r"args = .*", lambda _: f"args = {{ {word} = 1 }}", plan),
        lambda plan: re.sub(r"args = .*", lambda _: f"args = {{ rounds = {word} }}", plan),
        lambda plan: f"{word} = 1\n{plan}",
    )
    for change in changes:
        changed = change(honest)
        (tmp_path / "plan.toml").write_text(changed, encoding="utf-8", errors="surrogatepass")
        if (changed.encode("utf-8", "replace")) != honest.encode():
            refuses(capsys, "federation", "explain", str(tmp_path / "plan.toml"))
            main(["site", "review", site, str(tmp_path / "plan.toml")])
            printed = capsys.readouterr()
            check_shown(printed.out + printed.err)
            assert "Traceback" not in printed.err


# Of a site, for the server


@a_few_texts
def test_what_a_site_says_is_one_line_of_the_servers_log_and_error(tmp_path: Path, text: str) -> None:
    consortium = Consortium.at(tmp_path)
    plan = consortium.plan("fl-std", args={"cohort": 5})
    consortium.accept(plan)
    way, log = Faulty(consortium.sites()), AuditLog(tmp_path / "log.jsonl")
    way.after = lambda _, verb, reply: reply if verb == REGISTER else Failure("error", text)
    server = FederationServer(plan, way, SERVER, journal=log, sleep=lambda _: None)
    with pytest.raises(TacitError) as caught:
        [*follow(server.run_spec, out=tmp_path / "run", source=server)]
    check_shown(str(caught.value), 30_000)
    entries = [*read_journal(log.path)]
    assert any(entry["event"] == "failed" for entry in entries)
    assert log.path.stat().st_size < 200_000
    for entry in entries:
        for value in entry.values():
            check_shown(str(value), 30_000)


@pytest.mark.law
@each_text
def test_a_log_keeps_short_lines_whatever_happened(tmp_path: Path, text: str) -> None:
    log = AuditLog(tmp_path / "log.jsonl")
    for _ in range(3):
        log.append("refused", reason=text, why={text: [text, {"a": text}]}, norm=float("inf"), sites=[text] * 1000)
    AuditLog(log.path).append("started")
    assert [entry["event"] for entry in read_journal(log.path)] == ["refused"] * 3 + ["started"]
    check_shown(log.path.read_text(encoding="utf-8"), 300_000)


@a_few_texts
def test_a_sites_log_is_printed_a_line_an_entry(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also one that others wrote, whose texts were not cut."""
    consortium = Consortium.at(tmp_path)
    log = ChainedFile.open(consortium.home("site-0") / "state" / "log.jsonl", JOURNAL)
    log.append({"time": text[:9000], "event": text[:9000], "reason": text[:9000], text[:900]: [text[:900], 1]})
    site = str(consortium.home("site-0") / "site.toml")
    assert main(["site", "log", site]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("\n") == 2
    check_shown(printed.out + printed.err)
    assert main(["site", "log", site, "--json"]) == 0
    shown = capsys.readouterr().out
    check_shown(shown, 400_000)
    assert json.loads(shown)[0]["reason"] == text[:9000]


# A run that somebody else made


def hostile_run(path: Path, text: str) -> Path:
    """The directory of a run in which everything that may be a text is one."""
    run = made_run(path, 2, guarantee=replace(PROVED, accountant=text, adversary=text, sampling=text,
                                              not_covered=(text,)))  # fmt: skip
    manifest = json.loads((run / MANIFEST).read_text())
    manifest |= {"caveat": text, "device": text, "versions": {text: text}, "key": text}
    manifest["method"] |= {"name": text, "args": {text: text, "rounds": 2}, "nominal": {text: 1.0}}
    manifest["task"] |= {"name": text, "args": {text: text}, "loss": text, "not_covered": [text]}
    (run / MANIFEST).write_text(json.dumps(manifest))
    numbers = {text: 0.5, f"{text}_loss": 1.0}
    reports = [replace(made_report(number), metrics=numbers, timings={text: 0.1}) for number in (1, 2)]
    overhead = {text: {"up": 1, "down": 2}}
    lines = [write_json({**asdict(report), "overhead": overhead}) for report in reports]
    (run / ROUNDS).write_bytes(b"".join(lines))
    return run


class Page(HTMLParser):
    """The elements and attributes of a page, and its texts."""

    def __init__(self, text: str) -> None:
        HTMLParser.__init__(self)
        self.tags: list[str] = []
        self.names: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.names |= {name for name, _ in attrs}
        self.texts += [value for _, value in attrs if value]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def honest_page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    run = hostile_run(tmp_path_factory.mktemp("honest") / "run", "plain")
    assert main(["report", str(run), "--out", str(run / "page.html")]) == 0
    return Page((run / "page.html").read_text(encoding="utf-8"))


@a_few_texts
def test_a_run_is_reported_and_compared(
    tmp_path: Path, text: str, honest_page: Page, capsys: pytest.CaptureFixture[str]
) -> None:
    run, text = tmp_path / "run", text[:200_000]
    hostile_run(run, text)
    assert main(["report", str(run), "--out", str(run / "page.html")]) == 0
    assert main(["compare", str(run)]) == 0
    assert main(["compare", str(run), "--json"]) == 0
    printed = capsys.readouterr()
    check_shown(printed.out, 10_000_000)
    check_shown(printed.err)
    page = Page((run / "page.html").read_text(encoding="utf-8"))
    assert set(page.tags) == set(honest_page.tags)
    assert page.tags.count("script") == honest_page.tags.count("script")
    assert page.names <= honest_page.names
    for each in page.texts:
        check_shown(each, 400_000)


@a_few_texts
def test_the_live_page_shows_a_run(tmp_path: Path, text: str) -> None:
    hostile_run(tmp_path / "run", text[:200_000])
    with LiveServer(RunWatcher(tmp_path)) as server:
        server.watcher.look()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            news = json.loads(json.dumps(server.watcher.since(-1), allow_nan=False))
            assert [*news["runs"]] == ["run"]
            assert "problem" not in news["runs"]["run"]
            for each in strings(news):
                check_shown(each, 30_000)
            for page in ("charts", "report"):
                with closing(http.client.HTTPConnection(HOST, server.server_port, timeout=60)) as connection:
                    connection.request("GET", f"/{server.secret}/{page}?run=run")
                    answer = connection.getresponse()
                    content = answer.read().decode()
                    assert answer.status == 200
                for each in strings(json.loads(content)) if page == "charts" else Page(content).texts:
                    check_shown(each, 400_000)
        finally:
            server.shutdown()


def strings(value: object) -> Iterator[str]:
    """All texts in plain values, and all keys."""
    match value:
        case str():
            yield value
        case dict():
            yield from (text for item in value.items() for each in item for text in strings(each))
        case list():
            yield from (text for each in value for text in strings(each))


@each_text
def test_a_spreadsheet_computes_nothing(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = hostile_run(tmp_path / "run", text[:20_000])
    assert main(["export", str(run), "--to", "csv"]) == 0
    for row in csv.reader(io.StringIO((run / "rounds.csv").read_text(encoding="utf-8"))):
        for cell in row:
            assert not re.match(r"\s*[=+@-]", cell) or re.fullmatch(r"-?[\d.e-]+", cell)
            check_shown(cell)
            assert "\n" not in cell
    check_shown(capsys.readouterr().out)


@a_few_texts
@pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard")
def test_tensorboard_is_given_names_that_it_shows(tmp_path: Path, text: str) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = hostile_run(tmp_path / "run", text[:20_000])
    assert main(["export", str(run), "--to", "tensorboard"]) == 0
    events = accumulator.EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    tags = events.Tags()
    for name in tags["scalars"]:
        check_shown(name, 3000)
    for name in tags["tensors"]:
        for event in events.Tensors(name):
            check_shown(event.tensor_proto.string_val[0].decode(), 100_000)


@a_few_texts
def test_mlflow_is_given_names_that_it_takes(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    run = hostile_run(tmp_path / "run", text[:20_000])
    assert main(["export", str(run), "--to", "mlflow"]) == 0
    client = MlflowClient((tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("tacit")
    assert experiment is not None
    (stored,) = client.search_runs([experiment.experiment_id])
    for each in (*stored.data.metrics, *strings(stored.data.params), *strings(stored.data.tags)):
        check_shown(each, 20_000)


# HTML


@each_text
def test_html_shows_a_text(text: str) -> None:
    page = Page(str(element("p", text, title=text)) + str(data({"a": [text]}, id="a")))
    assert page.tags == ["p", "script"]
    assert page.names <= {"title", "type", "id"}
    for each in page.texts:
        check_shown(each, 400_000)


# The terminal


@each_text
def test_whatever_a_command_prints_is_shown(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what was printed without a thought of who wrote it, and what an unexpected error says."""

    def printing(args: Any) -> int:
        print(text[:20_000])  # noqa: T201
        raise ValueError(text)

    monkeypatch.setattr("tacit.cli.commands.methods.run", printing, raising=False)
    monkeypatch.setattr("tacit.cli.call", printing)
    assert main(["methods"]) == 1
    printed = capsys.readouterr()
    for out in (printed.out, printed.err):
        wrong = {each for each in out if not (each.isprintable() or each in "\n\t")}
        assert not wrong
        assert len(out) < 400_000


def test_a_terminal_without_unicode_shows_escapes(capfd: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    monkeypatch.setattr("sys.stdout", ascii_only)
    assert main(["card", "geyer"]) == 0
    ascii_only.flush()
    printed: Callable[[], bytes] = ascii_only.buffer.getvalue
    assert b"\\u03b5" in printed()
