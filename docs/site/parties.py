"""Writes the table of who learns what into docs/concepts/threat-model.md: `python docs/site/parties.py`.

Every cell follows from what the pieces of a method declare, as its card does. A test compares the page with this
table, so that it cannot become outdated unnoticed.
"""

from collections.abc import Iterator
from pathlib import Path

from tacit import methods
from tacit.core import Method
from tacit.core.prices import Leakage, Release, Unit, Unproved
from tacit.privacy.guarantee import within_adversary
from tacit.report.disclosures import noise_at_client, server_sees, who_sees

PAGE = Path(__file__).resolve().parents[1] / "concepts" / "threat-model.md"
BEGIN, END = "<!-- parties -->\n", "<!-- /parties -->"
HEADER = ("methods", "the server learns", "clients and recipients of the model learn", "guaranteed", "assumed")


def table() -> str:
    """The table as Markdown: methods with equal cells share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(methods.definitions()):
        method = methods.find(name)()
        cells = (server_sees(method), who_sees(method)["clients and recipients of the model"], _guarantee(method))
        rows.setdefault((*cells, ". ".join(_assumed(method))), []).append(f"`{name}`")
    lines = [HEADER, ["---"] * len(HEADER), *([", ".join(names), *cells] for cells, names in rows.items())]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _guarantee(method: Method) -> str:
    price = method.with_noise_multiplier(1.0).mechanism.price(0)
    if method.terms.units == (Unit.RECORD,):
        sums = "anyone who receives the models or sees the sums" if method.terms.record_bound is not None else ""
        return f"(ε, δ) for every record, against {within_adversary(sums=sums)}"
    match price:
        case Release():
            return f"(ε, δ) for every client, against {price.adversary}"
        case Leakage():
            return f"d-privacy for every client, against {price.adversary}"
        case Unproved():
            return f"none: {price.reason.partition(';')[0]}"
    raise AssertionError(f"no words for the price {price}")


def _assumed(method: Method) -> Iterator[str]:
    if "sum" in method.terms.noise_from:
        yield "The server clips, adds the noise, and keeps messages to itself"
    elif noise_at_client(method):
        yield "Clients clip and add their noise" + " in shares" * (method.mechanism.requires == "only the sum")
    else:
        yield "Nobody who learns these uses them to infer data"
    if method.channel.messages_seen_by == "enclave":
        yield "The enclave's hardware and program are sound"
    if method.channel.tolerates():
        tolerated = method.channel.tolerates().partition(".")[0].partition(":")[0]
        yield tolerated[0].upper() + tolerated[1:]


def split(text: str) -> tuple[str, str, str]:
    """The page before, in and after the table."""
    before, _, rest = text.partition(BEGIN)
    shown, _, after = rest.partition(END)
    return before + BEGIN, shown, END + after


def main() -> None:
    """Replace the table of the page."""
    before, _, after = split(PAGE.read_text())
    PAGE.write_text(before + table() + after)


if __name__ == "__main__":
    main()
