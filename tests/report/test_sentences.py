"""Law *pages*: every sentence of a page is known here, with its condition, which the run behind the page fulfils.

Conditions are about the run in memory, not about its files. A sentence without a condition fails: write one.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from math import isclose
from pathlib import Path

import pytest

from report.worlds import WORLDS, World
from tacit.core.prices import Adjacency, Unit
from tacit.privacy.guarantee import Guarantee, LeakageGuarantee
from tacit.report.guarantee_section import STRONG, WEAK, limit_in_words
from tacit.report.page import run_page
from tacit.report.run_data import RunData
from tacit.runs.manifest import FederationEntry

Condition = Callable[[World, re.Match[str]], bool]
HIDDEN, VOID = (
    ("nav", "script", "style", "details", "pre", "svg", "footer"),
    ("meta", "link", "br", "img", "rect", "path"),
)
NUMBER = r"([\d.e,-]+?)"


class Texts(HTMLParser):
    """The texts of paragraphs, list items and definitions, with what they contain, and rows of tables."""

    def __init__(self, page: str) -> None:
        HTMLParser.__init__(self)
        self.paragraphs: list[str] = []
        self.rows: list[list[str]] = []
        self._open: list[list[str]] = []
        self._hidden: list[bool] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in VOID:
            return
        self._hidden.append(self.hidden or tag in HIDDEN or dict(attrs).get("class") in ("eyebrow", "sub", "cards"))
        if tag == "tr":
            self.rows.append([])
        if tag in ("p", "li", "dd", "td", "th"):
            self._open.append([tag, ""])

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1][0] == tag:
            text = self._open.pop()[1].strip()
            if tag in ("td", "th"):
                self.rows[-1].append(text)
            elif text and not self.hidden:
                self.paragraphs.append(text)
        if tag not in VOID:
            self._hidden.pop()

    @property
    def hidden(self) -> bool:
        return bool(self._hidden) and self._hidden[-1]

    def handle_data(self, data: str) -> None:
        for each in self._open:
            each[1] += data


# What a run was


def guarantees(world: World) -> dict[Unit, Guarantee | LeakageGuarantee]:
    return world.run.guarantees


def proved(world: World, unit: str = "") -> bool:
    return any(each.proved and unit in ("", key) for key, each in guarantees(world).items())


def dp(world: World, unit: str) -> Guarantee | None:
    each = guarantees(world).get(Unit(unit))
    return each if isinstance(each, Guarantee) and each.proved else None


def word(world: World) -> str:
    return "site" if world.federated else "client"


def entry(world: World) -> FederationEntry:
    assert world.run.spec.federation is not None
    return world.run.spec.federation


def population(world: World) -> int:
    return len(world.run.spec.task.population)


def took_part(world: World) -> Counter[int]:
    return Counter(client for report in world.run.history for client in report.clients)


def delivered(world: World) -> Counter[int]:
    return Counter(client for each in world.run.history for client in each.clients if client not in each.rejected)


def secret_cohorts(world: World) -> bool:
    of_clients = guarantees(world).get(Unit.CLIENT)
    rate = world.run.spec.method.sampler.sampling(population(world), 0).rate
    return isinstance(of_clients, Guarantee) and of_clients.proved and rate < 1 and of_clients.amplified


def noisy(world: World) -> bool:
    """Whether noise is added for anybody, by what the pieces' prices say."""
    terms = world.run.spec.method.terms
    return any(not price.reason.startswith("no noise") for price in terms.prices.values())


def equal(text: str, value: float | None) -> bool:
    """Whether a number was rounded to this text: by half a unit of its last digit at most."""
    if value is None:
        return False
    digits = text.rstrip(",.")
    rounding = 0.5 * 10.0 ** -len(digits.partition(".")[2]) if "." in digits and "e" not in digits else 0.0
    return isclose(float(digits), value, rel_tol=2e-3, abs_tol=max(rounding, 1e-12))


def is_analysis(world: World) -> bool:
    return world.run.spec.method.trainer.sends == "terms"


def as_proved(world: World, match: re.Match[str]) -> bool:
    """The guarantee itself says so."""
    return any(match[0].strip() in str(each) for each in guarantees(world).values())


def strength(world: World, low: float, high: float) -> bool:
    limits = [
        each.detection_limit for each in guarantees(world).values() if isinstance(each, Guarantee) and each.proved
    ]
    return any(low < limit <= high for limit in limits)


def neighbours(world: World, adjacency: Adjacency, unit: str) -> bool:
    each = dp(world, unit)
    return each is not None and each.adjacency == adjacency


SENTENCES: list[tuple[str, Condition]] = [
    # The guarantee: what is proved, against whom
    (
        (
            rf"\(ε = {NUMBER}, δ = {NUMBER}\)-differential privacy for every (\w+) \((.+?)\), over (\d+) "
            r"rounds?, against (.+)\."
        ),
        lambda w, m: (
            (g := dp(w, m[3])) is not None
            and equal(m[1], g.epsilon)
            and equal(m[2], w.run.spec.method.delta)
            and m[4] == g.adjacency
            and int(m[5]) == len(w.run.history)
            and ("server is trusted" in m[6]) is (w.run.spec.method.terms.noise_from == ("sum",))
            and ("server included" in m[6]) is (Unit(m[3]) is not Unit.CLIENT)
        ),
    ),
    (
        r"d-privacy for every client, against .+\.",
        lambda w, _: w.run.leakage is not None and proved(w),
    ),
    (
        r"Nothing is proved: (.+)\.",
        lambda w, _: not proved(w),
    ),
    (
        r"Nothing is proved:",
        lambda w, _: not proved(w),
    ),
    (
        r"no noise is added, so updates can reveal training data\.",
        lambda w, _: not noisy(w),
    ),
    (
        r"NbAFL assumes .+",
        lambda w, _: w.run.spec.method.name in ("nbafl", "priority") and not proved(w),
    ),
    (
        r"Leakage between two models .+",
        lambda w, _: w.run.leakage is not None,
    ),
    (
        r"Noise is sampled in floating point; .+|A radius or noise level .+",
        lambda w, _: w.run.leakage is not None,
    ),
    (
        r"Nominal leakage.+",
        lambda w, _: w.run.leakage is not None and not proved(w),
    ),
    # In plain words
    (
        (
            r"Suppose one of those named above wants to find out whether a given client, with all of its "
            r"data, was in the population, by whatever means, and accepts one false accusation in a hundred "
            r"clients that were not\."
        ),
        lambda w, _: neighbours(w, Adjacency.ADD_OR_REMOVE, "client"),
    ),
    (
        (
            r"Suppose .+ whether one given record, such as one of Mrs X, was in the data, .+ a hundred "
            r"records that were not\."
        ),
        lambda w, _: neighbours(w, Adjacency.ADD_OR_REMOVE, "record"),
    ),
    (
        r"Suppose .+ whether Mrs X was in the data, .+ a hundred people who were not\.",
        lambda w, _: neighbours(w, Adjacency.ADD_OR_REMOVE, "person"),
    ),
    (
        (
            r"Suppose .+ whether a given client sent its update or zeros, .+ a hundred clients that sent "
            r"zeros\."
        ),
        lambda w, _: neighbours(w, Adjacency.ZERO_OUT, "client"),
    ),
    (
        (
            r"If (?:she was, she|it was, it|it sent its update, that) is found with a probability of at most "
            r"(.+)\."
        ),
        lambda w, m: (
            m[1] in {limit_in_words(g.detection_limit) for g in guarantees(w).values() if isinstance(g, Guarantee)}
        ),
    ),
    (
        r"Without any information it would be 1%\.",
        lambda w, _: proved(w),
    ),
    (
        r"That is a strong guarantee\.",
        lambda w, _: strength(w, 0.0, STRONG),
    ),
    (
        r"That is neither a strong nor a weak guarantee\.",
        lambda w, _: strength(w, STRONG, WEAK),
    ),
    (
        r"Such a bound promises little by itself; .+",
        lambda w, _: strength(w, WEAK, 1.0),
    ),
    # What it rests on
    (
        (
            r"Add-or-remove: What is released would be about as likely if the client were not in the "
            r"population\."
        ),
        lambda w, _: neighbours(w, Adjacency.ADD_OR_REMOVE, "client"),
    ),
    (
        (
            r"Add-or-remove: What is released would be about as likely if the (record|person) were not among "
            r"the data of its client\."
        ),
        lambda w, m: neighbours(w, Adjacency.ADD_OR_REMOVE, m[1]),
    ),
    (
        (
            r"Zero-out: What is released would be about as likely if the client had sent zeros instead of "
            r"its update, with its share of the noise; that it belongs to the population is not protected\."
        ),
        lambda w, _: neighbours(w, Adjacency.ZERO_OUT, "client"),
    ),
    (
        (
            r"Worst (client|site): (?:number )?([\w-]+), after (\d+) steps? with noise; no (record|person) "
            r"of another \1 has a larger ε\."
        ),
        lambda w, m: (
            m[1] == word(w)
            and (g := dp(w, m[4])) is not None
            and m[2] == (entry(w).sites[g.worst_client or 0] if w.run.spec.federation else str(g.worst_client))
            and int(m[3]) == g.steps
        ),
    ),
    (
        r"Against the server and the other clients of a round, .+",
        lambda w, _: "shares" in w.run.spec.method.terms.noise_from,
    ),
    (
        r"What is released would be about as likely if the client had sent zeros; .+",
        as_proved,
    ),
    (
        (
            r"Sampling: (?:Poisson cohorts|every client takes part).*?(; ε assumes that who took part is "
            r"secret)?\."
        ),
        lambda w, m: dp(w, "client") is not None and (m[1] is not None) is secret_cohorts(w),
    ),
    (
        (
            r"Sampling: Poisson batches, each (record|person) with probability .+; ε assumes that which \1s "
            r"a batch contains is secret\."
        ),
        lambda w, m: dp(w, m[1]) is not None,
    ),
    (
        r"Sampling: every batch contains every (record|person)\.",
        lambda w, m: (g := dp(w, m[1])) is not None and not g.amplified,
    ),
    (
        r"Accountant: pld\.|δ includes .+",
        lambda w, _: proved(w) and w.run.leakage is None,
    ),
    (
        r"It assumes noise from at least (\d+) honest clients? in every round: .+",
        lambda w, m: (
            "shares" in w.run.spec.method.terms.noise_from
            and int(m[1]) <= min(len(report.clients) for report in w.run.history) - 1
        ),
    ),
    (
        r"ε includes \d+ further attempts? at rounds that failed or were interrupted; what clients sent was charged\.",
        lambda w, m: w.federated and as_proved(w, m),
    ),
    # What it does not cover
    (
        r"Hyperparameters that were tuned on the same data are not accounted for\.",
        lambda w, _: noisy(w),
    ),
    (
        rf"The number of clients, {NUMBER}, is public\.",
        lambda w, m: int(m[1].replace(",", "")) == population(w),
    ),
    (
        r"A person with several records is protected as that many records, .+",
        lambda w, _: w.run.spec.task.population.unit is Unit.RECORD and noisy(w),
    ),
    (
        (
            r"A person with records at several clients is protected at each of them by itself, and not as "
            r"one\."
        ),
        lambda w, _: w.run.spec.task.population.unit is Unit.PERSON,
    ),
    (
        r"At how many clients a person is, at most, is public: .+",
        lambda w, _: w.run.spec.task.population.unit is Unit.PERSON,
    ),
    (
        r"That a client takes part, and what its records have in common, is not protected\.",
        lambda w, _: Unit.CLIENT not in guarantees(w),
    ),
    (
        r"The last bits of a (record|person)'s gradient .+",
        lambda w, m: dp(w, m[1]) is not None,
    ),
    (
        r"Numbers of (record|person)s in the method are public, also where they were counted in the data: .+\.",
        lambda w, m: w.run.spec.method.terms.record_bound is not None and dp(w, m[1]) is not None,
    ),
    (
        r"The number of (record|person)s of every client is public: .+",
        lambda w, m: "steps" in w.run.spec.method.terms.noise_from and w.run.spec.task.population.unit == m[1],
    ),
    (
        r"Clients are assumed to add their shares of the noise\.",
        lambda w, _: "shares" in w.run.spec.method.terms.noise_from,
    ),
    (
        r"Whether a client drops out is assumed to depend neither .+",
        lambda w, _: "shares" in w.run.spec.method.terms.noise_from,
    ),
    (
        r"Secure aggregation is assumed: .+",
        lambda w, _: w.run.spec.method.channel.messages_seen_by == "nobody",
    ),
    (
        (
            r"Whatever was computed from the clients' rows before the run, .+ the task does not declare its "
            r"preprocessing\."
        ),
        lambda w, _: w.run.spec.task.preprocessing is None or w.run.spec.task.preprocessing.source == "undeclared",
    ),
    (
        (
            r"Preprocessing used the clients' rows: .+|Declare them in a file with .+|\(on the command line "
            r"--encoding\)\."
        ),
        lambda w, _: w.run.spec.task.preprocessing is not None and w.run.spec.task.preprocessing.source == "private",
    ),
    (
        r"Held-out metrics, and what is decided by them: they are computed on samples that clients own\.",
        lambda w, _: w.evaluated and w.run.spec.task.test_overlap == "intended",
    ),
    (
        (
            r"Held-out metrics, which are exact, .+: whether held-out rows are of persons in training is not "
            r"known\."
        ),
        lambda w, _: w.evaluated and w.run.spec.task.population.unit is Unit.PERSON,
    ),
    (
        r"The run is (\w+): rounds after (\d+) are not included\.",
        lambda w, m: m[1] == w.status != "finished" and int(m[2]) == len(w.run.history),
    ),
    (
        r"Simulated enclave \(insecure\): .+",
        lambda w, _: w.run.spec.method.channel.messages_seen_by == "enclave" and not w.federated,
    ),
    # The federation
    (
        r"[0-9a-f]{64}",
        lambda w, m: w.federated and m[0] == entry(w).plan,
    ),
    (
        r"[0-9a-f]{16}",
        lambda w, m: w.federated and entry(w).server.startswith(m[0]),
    ),
    (
        r"all (\d+) sites\.",
        lambda w, m: len(delivered(w)) == int(m[1]) == population(w),
    ),
    (
        r"((?:site-\d,? ?)+); of the others it is not known\.",
        lambda w, m: m[1].split(", ") == [entry(w).sites[each] for each in sorted(delivered(w))],
    ),
    (
        r"every site that took part\.|Who took part is not shown\.",
        lambda w, _: secret_cohorts(w),
    ),
    (
        r"A site answers a round only after it has accepted the plan, and signs its answers\.",
        lambda w, _: w.federated,
    ),
    (
        r"at least (\d+) sites",
        lambda w, m: w.federated and int(m[1]) == entry(w).min_cohort,
    ),
    (
        (
            r"(at least (\d+) at every site, as the plan declares; )?how many there are, and what they "
            r"contain, is not known to the server"
        ),
        lambda w, m: not w.run.spec.method.weighted and int(m[2] or 0) == entry(w).records,
    ),
    (
        r"sites send how many they train on, which is not recorded",
        lambda w, _: w.federated and w.run.spec.method.weighted,
    ),
    (
        r"row (\d+), [0-9a-f]{64}",
        lambda w, _: w.federated and proved(w),
    ),
    (
        r"each site has its own, whose head is in its log \(tacit site log\)",
        lambda w, _: w.federated,
    ),
    # The result, the model, bytes and time
    (
        (
            r"The standard deviation of the noise .+|All cells have noise .+|Intervals of 95 % "
            r".+|\(?Numbers? (?!of \w+ in the method ).+"
        ),
        lambda w, _: is_analysis(w),
    ),
    (
        r"The model was not evaluated: the task has no held-out data\.",
        lambda w, _: not w.federated and w.run.spec.task.test is None and not w.run.metrics,
    ),
    (
        r"The model was not evaluated: the plan asks for no evaluation \(evaluate_every = 0\)\.",
        lambda w, _: w.federated and not w.evaluated and not w.run.metrics,
    ),
    (
        r"There are no metrics: too few sites .+",
        lambda w, _: w.federated and w.evaluated and not w.run.metrics,
    ),
    (
        r"Measured on packed messages\.",
        lambda w, _: bool(took_part(w)),
    ),
    (
        rf"Each time a (client|site) takes part it sends {NUMBER} (k?)B and receives .+, on average\.",
        lambda w, m: m[1] == word(w) and equal(m[2], w.run.bytes.up / took_part(w).total() / (1000 if m[3] else 1)),
    ),
    (
        r"All rounds took .+; the channel of this method measures no parts\.",
        lambda w, _: not w.run.timings,
    ),
    # Who took part
    (
        r"No message was rejected\.|Every site that was asked delivered its message\.",
        lambda w, m: ("site" in m[0]) is w.federated and not any(report.rejected for report in w.run.history),
    ),
    (
        r"Metrics are those of all held-out data together; none are recorded for single (client|site)s\.",
        lambda w, m: m[1] == word(w) and bool(w.run.metrics),
    ),
    (
        r"(\d+) of (\d+) (client|site)s never took part\.",
        lambda w, m: (int(m[1]), int(m[2])) == (population(w) - len(took_part(w)), population(w)) and m[3] == word(w),
    ),
    (
        r"Who took part how often is not shown: ε assumes that this is secret\.",
        lambda w, _: secret_cohorts(w),
    ),
    (
        r"The file rounds\.jsonl of the run contains it, so do not publish that file\.",
        lambda w, _: secret_cohorts(w),
    ),
    # Repeating and signing
    (
        r"The run was started from Python with tacit\.train\.|This is its method:",
        lambda w, _: not w.federated and not is_analysis(w),
    ),
    (
        r"The run is an analysis \((\w+)\)\.|This is what was asked, and how:",
        lambda w, _: is_analysis(w),
    ),
    (
        (
            r"Cohorts, batches and noise come from a new secret key each time, so that results differ "
            r"slightly\.|That is intended: noise that can be repeated can be subtracted\."
        ),
        lambda w, _: noisy(w),
    ),
    (
        r"Cohorts and batches come from a new secret key each time, so that results can differ slightly\.",
        lambda w, _: not noisy(w),
    ),
    (
        (
            r"I have read this page about the run run of (\S+) on (?:\S+|the table)(, which is interrupted,)? on the "
            r"(plan|data) .+\."
        ),
        lambda w, m: (
            m[1] == w.run.spec.method.name
            and (m[3] == "plan") is w.federated
            and bool(m[2]) is (w.status != "finished")
        ),
    ),
    (
        (
            r"I accept that its (model|result) is released .+ (although nothing is proved about it|with what "
            r"is guaranteed above \(.+\)), and I know what that does not cover\."
        ),
        lambda w, m: (m[1] == "result") is is_analysis(w) and ("nothing" in m[2]) is not proved(w),
    ),
]


def sentences(text: str) -> Iterator[str]:
    """The sentences of a paragraph: they end with a full stop before a capital letter, a bracket or ε."""
    yield from re.split(r"(?<=\.)\s+(?=[A-Z(εδ\d])", text)


@pytest.mark.law
@pytest.mark.parametrize("name", WORLDS)
def test_every_sentence_of_a_page_is_true(name: str, tmp_path: Path) -> None:
    world = WORLDS[name](tmp_path)
    assert world.run.directory is not None
    texts = Texts(run_page(RunData.read(world.run.directory)))
    for sentence in (each for text in texts.paragraphs for each in sentences(text)):
        found = [(match, holds) for pattern, holds in SENTENCES if (match := re.fullmatch(pattern, sentence))]
        assert found, f"no condition is known for: {sentence}"
        assert all(holds(world, match) for match, holds in found), sentence
    _check_parties(world, {row[0]: row[1] for row in texts.rows if len(row) == 2})


def _check_parties(world: World, seen: dict[str, str]) -> None:
    """The table of who sees what."""
    method = world.run.spec.method
    by_server = seen["the server"]
    assert ("every client's message" in by_server) is (method.channel.messages_seen_by == "server")
    assert ("how many samples" in by_server) is method.weighted
    of_messages = by_server.partition(";")[0]
    assert ("with noise" in of_messages) is (
        noisy(world) and (method.mechanism.requires in ("only the sum", "anything") or "enclave" in by_server)
    )
    recipients = next(text for who, text in seen.items() if who.startswith("clients and recipients"))
    assert ("without noise" in recipients) is not noisy(world)
    assert "Use a" not in " ".join(seen.values())
    if "tolerated" in seen and method.sampler.sampling(population(world), 0).rate == 1:
        assert str(population(world)) in seen["tolerated"]
