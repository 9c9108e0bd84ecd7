"""A self-contained page about runs: one file without network access, for reading, printing and signing.

Styles and scripts are part of the page. A policy in its head (Content-Security-Policy) allows exactly these, by their
digests, and no request of any kind; all text from files is escaped.
"""

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.resources import files as resources

import torch

from tacit import __version__
from tacit.core.schema import SLOTS
from tacit.privacy.guarantee import Guarantee
from tacit.report import run_groups
from tacit.report.analyses import result_section
from tacit.report.chart_data import Chart, run_charts
from tacit.report.disclosures import who_sees
from tacit.report.federation_section import federation_section, write_statement
from tacit.report.guarantee_section import show_guarantee
from tacit.report.labels import number, size
from tacit.report.markup import Html, details, element, join, pairs, section, table
from tacit.report.parties import draw_parties, parties_of
from tacit.report.run_data import ERRORS, RunData
from tacit.report.run_groups import RunGroup
from tacit.runs.bandwidth import Savings

STYLES, SCRIPTS = ("uplot.min.css", "page.css"), ("uplot.min.js", "charts.js")
BADGES = {"finished": "good", "running": "warn", "interrupted": "warn", "failed": "bad"}
BAR = element("span", "share as a bar", class_="unseen")
GIVEN = ("rounds", "budget", "patience", "report_delta")  # fields of a method besides its pieces


@cache
def asset(name: str) -> str:
    """A style sheet, script or page of the package."""
    return (resources("tacit.report") / "assets" / name).read_text(encoding="utf-8")


def run_page(run: RunData) -> str:
    """The page of one run."""
    return _page(f"{run.label}: {run.name}", _run_header(run), join(_run_sections(run)))


def comparison_page(runs: Sequence[RunData]) -> str:
    """The page that compares several runs, grouped by everything but their seeds."""
    groups, notes = run_groups.group_runs(runs)
    title = f"Comparison of {len(runs)} runs"
    tasks = ", ".join(dict.fromkeys(group.task for group in groups))
    sub = f"{len(groups)} settings on {tasks}; runs of one setting differ in seed or noise"
    return _page(title, _top("Comparison", title, sub), join(_comparison_sections(groups, notes)))


def _page(title: str, header: Html, content: Html) -> str:
    style, script = "\n".join(map(asset, STYLES)), "\n".join(map(asset, SCRIPTS))
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        element("style", Html(style)),
    )
    footer = element("footer", f"Written by Tacit {__version__} from the files of the run. Nothing was sent.")
    body = element("body", header, element("main", content), footer, element("script", Html(script)))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _top(eyebrow: str, title: object, sub: str, *more: Html | None) -> Html:
    parts = [element("p", eyebrow, class_="eyebrow"), element("h1", title), element("p", sub, class_="sub"), *more]
    return element("header", element("div", *parts), class_="top")


def _run_header(run: RunData) -> Html:
    manifest = run.manifest
    badge = element("span", manifest.status, class_=f"badge {BADGES[manifest.status]}")
    planned = "" if run.rounds_planned is None else f" of {run.rounds_planned:,}"
    rounds = f"{len(run.reports):,}{planned} round{'s' * (len(run.reports) != 1 or bool(planned))}"
    samples = f" with {manifest.task.samples:,} samples" if manifest.task.samples else ""
    numbers = "sums" if run.is_analysis else "weights"
    sub = (
        f"{rounds} · {_count(manifest.task.clients, run.word)}{samples} · "
        f"{manifest.task.parameters:,} {numbers} · seed {manifest.seed}"
    )
    caveat = element("p", manifest.caveat, class_="caveat") if manifest.caveat else None
    return _top(
        f"Run {run.name}", join([run.label, " ", badge]), sub, _cards(_run_figures(run)), caveat, _contents(run)
    )


def _contents(run: RunData) -> Html:
    parts = {
        "guarantee": "Guarantee",
        **({} if run.manifest.federation is None else {"federation": "Federation"}),
        **({} if run.result is None else {"result": "Result"}),
        "parties": "Who sees what",
        **({"training": "Training"} if run.result is None else {}),
        "traffic": "Bytes and time",
        "clients": f"{run.word.capitalize()}s",
        "settings": "Settings",
        "repeat": "How to repeat it",
    }
    links = [element("li", element("a", name, href=f"#{anchor}")) for anchor, name in parts.items()]
    return element("nav", element("ul", *links), aria_label="Parts of this page")


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'s' * (number != 1)}"


def _cards(figures: Iterable[tuple[str, str, str]]) -> Html:
    """Values with a name and a note each."""
    return pairs(
        [(name, join([value, element("small", note) if note else None])) for name, value, note in figures], "cards"
    )


def _run_figures(run: RunData) -> Iterator[tuple[str, str, str]]:
    for name, value in list(run.metrics.items())[:2]:
        yield name.replace("_", " "), number(value), "on held-out data"
    yield _privacy_figure(run)
    saved = _savings(run)
    yield f"sent by {run.word}s", size(run.bandwidth.up), _factor(saved.up)
    yield f"received by {run.word}s", size(run.bandwidth.down), _factor(saved.down)
    yield "time", _seconds(run.seconds), f"{_seconds(run.seconds / max(1, len(run.reports)))} a round"


def _privacy_figure(run: RunData) -> tuple[str, str, str]:
    guarantee = run.guarantee
    if not guarantee.proved:
        return "privacy", "not proved", "see below"
    if isinstance(guarantee, Guarantee):
        limit = "" if run.budget is None else f" of {run.budget:g}"
        return "ε" + limit, f"{guarantee.epsilon:.4g}", f"at δ = {guarantee.delta:g}, for every {guarantee.unit}"
    return "leakage", f"{guarantee.leakage:.4g}", f"d-privacy within radius {guarantee.radius:g}"


def _savings(run: RunData) -> Savings:
    messages = sum(len(report.clients) for report in run.reports)
    return Savings.of(run.bandwidth, messages, torch.empty(run.manifest.task.parameters, device="meta"))


def _factor(times: float) -> str:
    return f"{times:.3g}× less than whole models" if times > 1.05 else ""


def _seconds(value: float) -> str:
    if value >= 7200:
        return f"{value / 3600:.3g} h"
    return f"{value / 60:.3g} min" if value >= 120 else f"{value:.3g} s"


def _run_sections(run: RunData) -> Iterator[Html]:
    first, *others = run.guarantees.values()
    statements = [show_guarantee(first, run.manifest.method.nominal), *map(show_guarantee, others)]
    if others:
        statements.append(element("p", "These guarantees hold side by side. Their ε are never added."))
    yield section("guarantee", "What is guaranteed, and what is not", *statements)
    if run.manifest.federation is not None:
        yield section("federation", "The federation", federation_section(run, run.manifest.federation))
    if run.result is not None:
        yield section("result", run.result.title, result_section(run.result))
    yield section("parties", "Who sees what", _parties(run))
    if run.result is None:
        yield section("training", "Training", _charts(run_charts(run.reports, run.budget, run.word)), _final(run))
    yield section("traffic", "Bytes and time", _traffic(run), _timings(run))
    yield section("clients", f"{run.word.capitalize()}s", _clients(run))
    yield section("settings", "Settings", _settings(run))
    yield section("repeat", "How to repeat it", _repeat(run))
    signature = pairs([(name, "") for name in ("Name", "Role", "Date", "Signature")], "sign")
    yield section("sign", "Read and accepted", element("p", write_statement(run)), signature)


def _parties(run: RunData) -> Html:
    if run.method is None:
        return element("p", "The method has pieces that are not known here: its manifest has their names (below).")
    rows = [[who, what] for who, what in who_sees(run.method, run.cohort).items()]
    return join(
        [
            draw_parties(parties_of(run.method, run.manifest.task.clients, run.word)),
            table("What each party sees", ["who", "sees"], rows),
        ]
    )


def _charts(charts: Sequence[Chart]) -> Html:
    if not charts:
        return element("p", "No round is complete yet.")
    return element("div", *(chart.figure() for chart in charts), class_="charts")


def _final(run: RunData) -> Html | None:
    """The metrics of the model, and the best round of each."""
    if not run.metrics:
        return element("p", _not_evaluated(run)) if run.reports else None
    rows = []
    for name, value in run.metrics.items():
        sign = -1 if name.endswith(ERRORS) else 1
        measured = [report for report in run.reports if name in report.metrics]
        best = max(measured, key=lambda report: sign * report.metrics[name])
        rows.append([name.replace("_", " "), number(value), number(best.metrics[name]), best.round])
    chosen = "of the best round by loss (early stopping)" if run.method and run.method.patience else "of the last round"
    if run.reports[-1].metrics != run.metrics and not (run.method and run.method.patience):
        chosen = "of the last round that was evaluated"
    return table(f"Metrics on held-out data; the model is that {chosen}", ["metric", "model", "best", "in round"], rows,
                 numbers=3)  # fmt: skip


def _not_evaluated(run: RunData) -> str:
    """Why there are no metrics."""
    federation = run.manifest.federation
    if federation is not None and not federation.evaluate_every:
        return "The model was not evaluated: the plan asks for no evaluation (evaluate_every = 0)."
    if federation is not None:
        return "There are no metrics: too few sites sent any on their held-out data."
    if run.manifest.status == "finished":
        return "The model was not evaluated: the task has no held-out data."
    return "No round was evaluated so far."


def _traffic(run: RunData) -> Html:
    """Bytes by phase: updates and broadcasts, and the overhead of the channel's protocol."""
    bandwidth = run.bandwidth
    overhead = bandwidth.overhead
    parts = [("updates and broadcasts", bandwidth.up - overhead.up, bandwidth.down - overhead.down)]
    parts += [(f"protocol: {name}", phase.up, phase.down) for name, phase in bandwidth.phases.items()]
    total = max(1, bandwidth.up + bandwidth.down)
    rows = [[name, size(up), size(down), _bar((up + down) / total), f"{(up + down) / total:.1%}"]
            for name, up, down in parts]  # fmt: skip
    rows.append(["all", size(bandwidth.up), size(bandwidth.down), "", "100.0%"])
    participations = sum(len(report.clients) for report in run.reports)
    note = (
        f"Measured on packed messages. Each time a {run.word} takes part it sends "
        f"{size(bandwidth.up / max(1, participations))} and receives {size(bandwidth.down / max(1, participations))}, "
        "on average."
    )
    return join([table(f"Bytes of all {run.word}s, by phase", ["phase", "up", "down", BAR, "share"], rows, numbers=4),
                 element("p", note) if participations else None])  # fmt: skip


def _bar(share: float) -> Html:
    return element(
        "svg", element("rect", width=f"{100 * share:.2f}%", height="100%", rx=2), class_="bar", aria_hidden="true"
    )


def _timings(run: RunData) -> Html:
    names = dict.fromkeys(name for report in run.reports for name in report.timings)
    parts = {name: sum(report.timings.get(name, 0.0) for report in run.reports) for name in names}
    rest = run.seconds - sum(parts.values())
    if parts and rest > 0.001 * run.seconds:
        parts["other"] = rest
    if not parts:
        return element("p", f"All rounds took {_seconds(run.seconds)}; the channel of this method measures no parts.")
    total = max(run.seconds, 1e-9)
    rows = [[name, _seconds(value), _bar(value / total), f"{value / total:.1%}"] for name, value in parts.items()]
    rows.append(["all rounds", _seconds(run.seconds), "", "100.0%"])
    return table("Time by part of a round", ["part", "time", BAR, "share"], rows, numbers=3)


def _clients(run: RunData) -> Html:
    """Participation by client, where that may be shown, and messages that did not count."""
    lost = Counter(client for report in run.reports for client in report.rejected)
    declined = sum(len(report.declined) for report in run.reports)
    parts: list[Html | None] = [_fairness(run)]
    simulated = run.manifest.federation is None
    if not lost:
        nothing = "No message was rejected." if simulated else "Every site that was asked delivered its message."
        parts.append(element("p", nothing if run.reports else "No round is complete yet."))
    elif run.shows_clients:
        what = "Clients whose messages were rejected: not finite, or longer than the method accepts"
        if not simulated:
            what = "Sites that were asked and delivered nothing that counts: lost, late, or an invalid message"
        rows = [[run.name_of(client), count] for client, count in lost.most_common(100)]
        parts.append(table(what, [run.word, "rounds"], rows, numbers=1))
    else:
        counted = f"{lost.total():,} messages of {_count(len(lost), run.word)}"
        parts.append(element("p", f"{counted} {'were rejected' if simulated else 'did not arrive, or were invalid'}."))
    if dropped := sum(report.dropped for report in run.reports):
        parts.append(element("p", f"The sums of {_count(dropped, 'round')} were not used: they were longer than honest "
                                  f"{run.word}s can make them. What was charged for them stays charged."))  # fmt: skip
    if declined:
        parts.append(
            element("p", f"Clients declined {_count(declined, 'time')}, because they had reached their limit.")
        )
    return join(parts)


def _fairness(run: RunData) -> Html:
    if not run.shows_clients:
        return element(
            "p",
            "Who took part how often is not shown: ε assumes that this is secret. The file rounds.jsonl of the run "
            "contains it, so do not publish that file.",
        )
    counts = Counter(client for report in run.reports for client in report.clients)
    population = run.manifest.task.clients
    participations = sorted([*counts.values(), *[0] * max(0, population - len(counts))])
    bytes_sent = sorted(run.bandwidth.sent.values()) or [0]
    rows = [
        [f"rounds in which a {run.word} took part", *(f"{value:,}" for value in _spread(participations))],
        [f"bytes that a {run.word} sent", *(size(value) for value in _spread(bytes_sent))],
    ]
    header = [f"over {run.word}s", "least", "quarter", "half", "three quarters", "most"]
    absent = population - len(counts)
    notes = []
    if run.metrics:
        notes.append(f"Metrics are those of all held-out data together; none are recorded for single {run.word}s.")
    if absent and run.reports:
        notes.append(f"{absent:,} of {_count(population, run.word)} never took part.")
    return join(
        [
            table(f"How evenly {run.word}s took part", header, rows, numbers=5),
            element("p", " ".join(notes)) if notes else None,
        ]
    )


def _spread(values: Sequence[int]) -> list[int]:
    last = len(values) - 1
    return [values[round(last * share)] for share in (0, 0.25, 0.5, 0.75, 1)]


def _settings(run: RunData) -> Html:
    manifest = run.manifest
    settings = {f"method: {key}": value for key, value in (manifest.method.args or {}).items()}
    settings |= {f"task: {key}": value for key, value in (manifest.task.args or {}).items()}
    federation = manifest.federation
    every = manifest.evaluate_every if federation is None else federation.evaluate_every
    private = run.method is None or run.method.terms.adds_noise
    settings |= {
        "seed": manifest.seed,
        "randomness": "from a secret key"
        if manifest.randomness == "secret"
        else f"seeded: can be repeated{', and protects against nobody who knows the seed' * private}",
        "evaluated": {0: "never", 1: "every round"}.get(every, f"every {every} rounds"),
        "device": manifest.device,
        "loss": manifest.task.loss,
        **({"digest of the data, with its owner's key": manifest.task.data} if federation is None else {}),
    }
    versions = table("Versions", ["what", "version"], list(manifest.versions.items()))
    method = run.method
    if method is None:
        pieces = element("pre", manifest.method.canonical)
    else:
        records = [[slot, element("code", repr(getattr(method, slot)))] for slot in (*SLOTS, *GIVEN)]
        pieces = details("All pieces of the method", table("Pieces", ["slot", "piece"], records, hidden=True))
    first = table("Given", ["setting", "value"], [[key, str(value)] for key, value in settings.items()])
    return join([element("div", first, versions, class_="settings"), pieces])


def _repeat(run: RunData) -> Html:
    if run.command is None:
        started = "The run was started from Python with tacit.train. This is its method:"
        if run.is_analysis:
            started = f"The run is an analysis ({run.manifest.method.name}). This is what was asked, and how:"
        return join([element("p", started), element("pre", run.manifest.method.canonical)])
    noise = run.method is None or run.method.terms.adds_noise
    if run.manifest.randomness == "seeded":
        exact = "The same versions on the same type of processor give bitwise the same result."
    elif noise:
        exact = (
            "Cohorts, batches and noise come from a new secret key each time, so that results differ slightly. That is "
            "intended: noise that can be repeated can be subtracted."
        )
    else:
        exact = "Cohorts and batches come from a new secret key each time, so that results can differ slightly."
    return join([element("pre", run.command), element("p", exact)])


def _comparison_sections(groups: Sequence[RunGroup], notes: Sequence[str]) -> Iterator[Html]:
    header = run_groups.header(groups)
    numbers = len(header) - 2
    yield section(
        "results",
        "Results",
        table("Mean over runs ± half of the 95 % interval (Student's t); ε is the largest of a group", header,
              run_groups.rows(groups), numbers=numbers),
        *(element("p", note) for note in notes),
        element("p", "An interval needs two runs or more. Hyperparameters that were chosen by these figures make them "
                     "optimistic, and choosing them on private data is not accounted for."),
    )  # fmt: skip
    yield section("curves", "Over rounds", _charts(run_groups.group_charts(groups)))
    parts = [
        join([element("h3", labels), show_guarantee(guarantee)])
        for labels, guarantee in run_groups.guarantees(groups).items()
    ]
    yield section("guarantee", "What is guaranteed, and what is not", *parts)
    rows = [
        [run.name, group.label, run.manifest.seed, run.manifest.status, len(run.reports), str(run.path)]
        for group in groups
        for run in group.runs
    ]
    yield section("runs", "Runs", table("All runs", ["run", "group", "seed", "status", "rounds", "directory"], rows))
