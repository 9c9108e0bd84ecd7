"""The threat model names the tests that hold its statements, and they exist."""

import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "concepts" / "threat-model.md"
NAMED = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def test_the_tests_that_the_threat_model_names_exist() -> None:
    named = NAMED.findall(PAGE.read_text(encoding="utf-8"))
    files = {path.name: path.read_text(encoding="utf-8") for path in HERE.rglob("test_*.py")}
    assert len(named) > 25
    assert [(file, test) for file, test in named if f"def {test}(" not in files.get(file, "")] == []


def test_every_statement_about_a_hostile_party_names_its_test() -> None:
    """In the lists of what a server, a stranger and a host cannot do."""
    text = PAGE.read_text(encoding="utf-8")
    for heading in (
        "### A server that may do anything",
        "### Whoever is not the server",
        "### A server with an enclave",
    ):
        section = text.split(heading, 1)[1].split("\n### ", 1)[0]
        items = re.findall(r"^- \*\*.*?(?=^- |^$|\Z)", section, re.MULTILINE | re.DOTALL)
        assert len(items) >= 4, heading
        assert [item for item in items if not NAMED.search(item)] == []
