"""HTML from values: every text is escaped, so that a run called `<script>` is shown, not run.

Characters that a browser obeys instead of showing, such as those that reverse a sentence, are escaped too.
"""

import html
import json
from collections.abc import Iterable, Sequence

from tacit.core.texts import plain
from tacit.errors import one_line

VOID = ("meta", "link", "br", "img", "input")
_MAX_TEXT = 50_000  # characters
DRAWN = ("rect", "path")  # SVG: self-closing


class Html(str):
    """Text that is HTML already; any other text is escaped where it is used."""

    __slots__ = ()


def escape(value: object) -> Html:
    """A value as HTML.

    Example:
        >>> escape("<script>"), escape(Html("<b>"))
        ('&lt;script&gt;', '<b>')
    """
    return value if isinstance(value, Html) else Html(_escape(value))


def _escape(value: object) -> str:
    return html.escape(one_line(value, _MAX_TEXT))


def join(parts: Iterable[object]) -> Html:
    """Concatenate values; None is omitted."""
    return Html("".join(escape(part) for part in parts if part is not None))


def element(name: str, /, *children: object, **attributes: object) -> Html:
    """An element. Attributes that are None or False are omitted; `_` in a name becomes `-`, and is dropped at its end.

    Example:
        >>> element("p", "a < b", class_="note", hidden=True, id=None)
        '<p class="note" hidden>a &lt; b</p>'
    """
    html_attributes = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    written = "".join(
        f" {key}" if value is True else f' {key}="{_escape(value)}"'
        for key, value in html_attributes.items()
        if value is not None and value is not False
    )
    if name in VOID:
        return Html(f"<{name}{written}>")
    if name in DRAWN:
        return Html(f"<{name}{written}/>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def section(anchor: str, title: str, *children: object) -> Html:
    """A part of a page with a heading."""
    heading = element("h2", title, id=f"{anchor}-title")
    return element("section", heading, *children, id=anchor, aria_labelledby=f"{anchor}-title")


def table(
    caption: str, header: Sequence[object], rows: Iterable[Sequence[object]], *, numbers: int = 0, hidden: bool = False
) -> Html:
    """A table with a header for each column and row; the last `numbers` columns are aligned right.

    It scrolls by itself if it is wider than the page.
    """
    first = len(header) - numbers

    def cell(column: int, value: object) -> Html:
        kind = "number" if column >= first else None
        return element("td", value, class_=kind) if column else element("th", value, scope="row", class_=kind)

    names = [element("th", name, scope="col", class_="number" if i >= first else None) for i, name in enumerate(header)]
    body = [element("tr", *(cell(i, value) for i, value in enumerate(row))) for row in rows]
    title = element("caption", caption, class_="unseen" if hidden else None)
    whole = element("table", title, element("thead", element("tr", *names)), element("tbody", *body))
    return element("div", whole, class_="scroll", tabindex="0", role="group", aria_label=caption)


def details(summary: str, *children: object) -> Html:
    """Content that a click on its summary opens, and that is always printed."""
    return element("details", element("summary", summary), *children)


def pairs(rows: Iterable[tuple[str, object]], kind: str) -> Html:
    """Names and their values."""
    entries = (element("div", element("dt", name), element("dd", value)) for name, value in rows)
    return element("dl", *entries, class_=kind)


def data(value: object, **attributes: object) -> Html:
    """A value as JSON for a script of the page; no text in it can end the element."""
    text = json.dumps(plain(value), allow_nan=False, separators=(",", ":"))
    safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return element("script", Html(safe), type="application/json", **attributes)
