"""Draws the pictures of the documents: `python docs/site/pictures.py` writes them to docs/pictures.

A test compares the files with what is drawn here. Each follows the reader's preference for light or dark colours.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from tacit.privacy.guarantee import detection_limit
from tacit.report.markup import Html, element

FOLDER = Path(__file__).resolve().parents[1] / "pictures"
LINE = 19  # between two lines of text
STYLE = Path(__file__).with_suffix(".css").read_text()


def picture(width: int, height: int, title: str, *parts: object) -> str:
    """A whole SVG file."""
    body = element(
        "svg",
        element("title", title),
        element("style", Html(STYLE)),
        element("rect", width=width, height=height, rx=8, class_="page"),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        role="img",
    )
    return body + "\n"


def text(x: float, y: float, words: str, kind: str = "") -> Html:
    """One line of text."""
    return element("text", words, x=round(x, 1), y=round(y, 1), class_=kind or None)


def box(x: float, y: float, width: float, lines: Sequence[str], kind: str = "box", height: float = 0) -> Html:
    """A box with a name and lines below it."""
    height = height or 16 + LINE * len(lines)
    first = y + height / 2 - LINE * len(lines) / 2 + 14
    words = [text(x + width / 2, first + LINE * i, line, "quiet" if i else "name") for i, line in enumerate(lines)]
    return element("g", element("rect", x=x, y=y, width=width, height=height, rx=8, class_=kind), *words)


def arrow(x: float, y: float, to_x: float, to_y: float) -> Html:
    """A straight arrow."""
    angle = math.atan2(to_y - y, to_x - x)
    corners = [(to_x - 10 * math.cos(angle + turn), to_y - 10 * math.sin(angle + turn)) for turn in (-0.45, 0.45)]
    head = f"M{to_x:.1f} {to_y:.1f}" + "".join(f"L{cx:.1f} {cy:.1f}" for cx, cy in corners) + "Z"
    end_x, end_y = to_x - 8 * math.cos(angle), to_y - 8 * math.sin(angle)
    return element(
        "g",
        element("path", d=f"M{x:.1f} {y:.1f}L{end_x:.1f} {end_y:.1f}", class_="line"),
        element("path", d=head, class_="head"),
    )


def same_method() -> str:
    """Simulate here, deploy there."""
    parts = [
        box(20, 30, 170, ["Your data", "a table, or tensors", "one part per client"], "own"),
        box(20, 158, 170, ["A method", "seven pieces", "fl-top-dp, dp-fedsgd …"]),
        arrow(190, 67, 268, 105), arrow(190, 193, 268, 180),
        box(270, 65, 210, ["tacit run", "simulation: all clients", "on one machine, fast"], height=70),
        box(270, 150, 210, ["tacit federation run", "federation: a site for each,", "own keys and ledgers"], height=70),
        arrow(480, 100, 558, 115), arrow(480, 185, 558, 160),
        box(560, 60, 180, ["Results", "a model", "its ε", "its bytes, up and down", "a page to sign"], "own", 160),
        text(380, 262, "Same method, same code on both sides: in test mode bitwise the same model.", "quiet"),
    ]  # fmt: skip
    return picture(760, 280, "The same method is simulated on one machine and deployed between organisations", *parts)


def two_ways() -> str:
    """Data that travel, and data that stay."""
    parts: list[Html] = []
    for left, name in ((0, "Central training: the data travel"), (390, "Federated learning: the data stay")):
        parts.append(text(left + 185, 28, name, "name"))
        federated = left > 0
        kept = "and sums of updates" if federated else "and everybody's data"
        parts.append(box(left + 95, 45, 180, ["Server", "the model", kept], "box" if federated else "alarm"))
        for number in range(3):
            x = left + 20 + 120 * number
            held = [f"Hospital {'ABC'[number]}", "its data", *(["trains here"] if federated else [])]
            parts.append(box(x, 205, 100, held, "own"))
            end = left + 135 + 50 * number
            parts.append(arrow(x + 50 - 6 * federated, 203, end - 6 * federated, 121))
            if federated:
                parts.append(arrow(end + 10, 121, x + 64, 203))
        parts.append(text(left + 330, 160, "updates up," if federated else "data up", "quiet"))
        if federated:
            parts.append(text(left + 330, 178, "model down", "quiet"))
    return picture(770, 292, "Central training collects data; federated learning sends models and updates", *parts)


def _bell(middle: float, width: float, kind: str) -> Html:
    """A bell-shaped distribution over the line at y = 190."""
    xs = [40 + 4 * i for i in range(76)]
    points = [(x, 190 - 140 * math.exp(-((x - middle) ** 2) / (2 * width**2))) for x in xs]
    path = "M40 190" + "".join(f"L{x:.0f} {y:.1f}" for x, y in points) + "L340 190Z"
    return element("path", d=path, class_=kind)


def two_worlds() -> str:
    """What comes out with a patient and without, with little noise and with much."""
    panels = []
    for left, name, width in ((0, "Little noise: large ε", 20.0), (385, "Much noise: small ε", 62.0)):
        drawn = [
            text(190, 28, name, "name"),
            _bell(160, width, "one"),
            _bell(220, width, "two"),
            element("path", d="M30 190H350", class_="line"),
            text(190, 214, "a number that is released, such as one weight", "quiet"),
        ]
        panels.append(element("g", *drawn, transform=f"translate({left} 0)"))
    keys = [
        element("rect", x=205, y=232, width=16, height=12, class_="one"),
        text(228, 243, "without the patient", "quiet start"),
        element("rect", x=420, y=232, width=16, height=12, class_="two"),
        text(443, 243, "with the patient", "quiet start"),
    ]
    return picture(770, 260, "Two distributions of a release, with and without one patient", *panels, *keys)


def detected(epsilons: Iterable[float] = (0.1, 0.5, 1, 2, 3, 4, 8), alarms: float = 0.01) -> str:
    """The most that any test for a patient can detect."""
    bars = []
    for number, epsilon in enumerate(epsilons):
        share = detection_limit(epsilon, 1e-5, alarms)
        x, height = 75 + 98 * number, round(170 * share, 1)
        bars += [
            element("rect", x=x, y=215 - height, width=56, height=height, class_="weak" if share > 0.5 else "bar"),
            text(x + 28, 207 - height, f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %", "name"),
            text(x + 28, 236, f"ε = {epsilon:g}", "quiet"),
        ]
    title = f"What the best test finds at most, if it accuses {100 * alarms:.0f} % of those who were not in the data"
    frame = element("path", d="M55 215H745", class_="line")
    return picture(770, 252, title, text(385, 26, title, "name"), *bars, frame)


def three_places() -> str:
    """Where noise is added, and whom that protects against."""
    one = "for each client: one update"
    columns = (
        ("The server adds it", ["clips", "sends its update"], ["sees every update", "adds the noise"], one,
         "trust: the server", "geyer"),
        ("Clients add shares of it", ["clips, adds a share", "and a pad"], ["sees only the sum,", "with all the noise"],
         "secure aggregation", "trust: most of the clients", "fl-top-dp, dp-fedsgd"),
        ("Each client adds all of it", ["adds all the noise", "to its own update"], ["sees noisy updates"], one,
         "trust: nobody else", "dp-sgd"),
    )  # fmt: skip
    parts = []
    for number, (name, client, server, between, trust, example) in enumerate(columns):
        x = 15 + 252 * number
        parts += [
            text(x + 118, 28, name, "name"),
            box(x + 28, 45, 180, ["Client", *client], "own"),
            arrow(x + 118, 119, x + 118, 168),
            text(x + 118, 134 + LINE * 3.9, between, "quiet"),
            box(x + 28, 218, 180, ["Server", *server], "alarm" if number == 0 else "box", 72),
            text(x + 118, 314, trust, ""),
            text(x + 118, 334, example, "quiet"),
        ]
    return picture(770, 350, "Noise of the server, in shares, and of each client", *parts)


PICTURES = {
    "same-method": same_method,
    "two-ways": two_ways,
    "two-worlds": two_worlds,
    "detected": detected,
    "three-places": three_places,
}


def main() -> None:
    """Write all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw())


if __name__ == "__main__":
    main()
