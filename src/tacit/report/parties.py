"""A picture of the parties of a method: what travels between them, and what each of them sees."""

from collections.abc import Sequence
from dataclasses import dataclass

from tacit.core import Method
from tacit.report.disclosures import client_noise
from tacit.report.markup import Html, element

_WIDTH, _HEIGHT, _GAP, _LINE = 208, 104, 96, 18  # of a box, between two, and of a line of text


@dataclass(frozen=True)
class Party:
    """A box of the picture.

    Attributes:
        name: who it is.
        lines: what it does and sees, a few words each.
        arrow: what it sends to the next one, a few words each; empty: nothing.
        secret: whether it sees what no other party does.
    """

    name: str
    lines: Sequence[str]
    arrow: Sequence[str] = ()
    secret: bool = False


def parties_of(method: Method, clients: int, word: str = "client") -> list[Party]:
    """The parties, in the order of a round; `word`: what a client is called."""
    result = "sums" if method.trainer.sends == "terms" else "model"
    sends = {"server": ("update",), "enclave": ("encrypted", "update"), "nobody": ("update", "under a pad")}
    observer = method.channel.messages_seen_by
    first = Party(
        f"{clients:,} {word}{'s' * (clients != 1)}",
        ["each sees its own data", client_noise(method), f"and receives the {result}"],
        sends.get(observer, ("message",)),
        secret=True,
    )
    sums = ["adds the noise"] if "sum" in method.terms.noise_from else []
    noisy = "with noise" if method.terms.noise_from else "without noise"
    last = Party("Recipients", [f"see the {result}", "after every round", noisy])
    blind = Party("Server", ["sees only the sum", f"updates the {result}"], (result,))
    if observer == "enclave":
        return [first, Party("Enclave", ["sees every message", *sums, "sums"], ("sum",), secret=True), blind, last]
    if observer == "server":
        lines = ["sees every message", *sums, f"updates the {result}"]
        return [first, Party("Server", lines, (result,), secret=True), last]
    return [first, blind, last]


def draw_parties(parties: Sequence[Party]) -> Html:
    """The picture, twice: side by side for wide pages, and below each other for narrow ones."""
    return Html(_draw(parties, wide=True) + _draw(parties, wide=False))


def describe(parties: Sequence[Party]) -> str:
    """The picture in words.

    Example:
        >>> describe([Party("Client", ["has data"], ["update"]), Party("Server", ["sees updates"])])
        'Client: has data. It sends: update. Server: sees updates.'
    """
    sends = (f" It sends: {' '.join(party.arrow)}." if party.arrow else "" for party in parties)
    return " ".join(f"{p.name}: {', '.join(p.lines)}.{sent}" for p, sent in zip(parties, sends, strict=True))


def _draw(parties: Sequence[Party], *, wide: bool) -> Html:
    count = len(parties)
    along = (_WIDTH if wide else _HEIGHT) * count + _GAP * (count - 1) + 4
    width, height = (along, _HEIGHT + 4) if wide else (_WIDTH + 120, along - (_GAP - 52) * (count - 1))
    gap = _GAP if wide else 52
    boxes = []
    for number, party in enumerate(parties):
        x, y = (2 + number * (_WIDTH + gap), 2) if wide else (60, 2 + number * (_HEIGHT + gap))
        boxes.append(_box(party, x, y))
        if party.arrow:
            boxes.append(_arrow_right(party, x + _WIDTH, y) if wide else _arrow_down(party, x, y + _HEIGHT))
    return element(
        "svg",
        *boxes,
        viewBox=f"0 0 {width} {height}",
        class_=f"parties {'wide' if wide else 'tall'}",
        role="img",
        aria_label=describe(parties),
    )


def _box(party: Party, x: int, y: int) -> Html:
    middle = x + _WIDTH / 2
    top = y + _HEIGHT / 2 - _LINE * len(party.lines) / 2
    texts = [
        element("text", line, x=middle, y=top + _LINE * (i + 1) + 4, text_anchor="middle")
        for i, line in enumerate(party.lines)
    ]
    name = element("text", party.name, x=middle, y=top, text_anchor="middle", class_="name")
    box = element("rect", x=x, y=y, width=_WIDTH, height=_HEIGHT, rx=10)
    return element("g", box, name, *texts, class_="secret" if party.secret else None)


def _arrow_right(party: Party, x: int, y: int) -> Html:
    middle, end = y + _HEIGHT / 2, x + _GAP
    texts = [
        element("text", word, x=x + _GAP / 2, y=middle - 10 - 15 * (len(party.arrow) - 1 - i), text_anchor="middle",
                class_="quiet")
        for i, word in enumerate(party.arrow)
    ]  # fmt: skip
    shaft = element("path", d=f"M{x + 5} {middle}H{end - 12}")
    head = element("path", d=f"M{end - 5} {middle}l-9 -5v10z", class_="head")
    return element("g", shaft, head, *texts)


def _arrow_down(party: Party, x: int, y: int) -> Html:
    middle = x + _WIDTH / 2
    shaft = element("path", d=f"M{middle} {y + 5}V{y + 40}")
    head = element("path", d=f"M{middle} {y + 47}l-5 -9h10z", class_="head")
    return element("g", shaft, head, element("text", " ".join(party.arrow), x=middle + 14, y=y + 30, class_="quiet"))
