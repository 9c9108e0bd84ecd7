"""One meaning for every word: what a machine can see of the glossary."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BANNED = {
    r"\bso many\b(?! that\b)": "this many, or the number",
    r"\b[Ll]ikewise\b": "the same, too",
    r"\ba sentence each\b": "as sentences",
    r"\bas far as it came\b": "until it stopped",
    r"\bsome minutes\b": "a few minutes",
    r"\boff line\b": "offline",
    r"\bone's own\b": "your own",
    r"\b[Ww]ho has it\b": "whoever has it",
    r"\bdoes not suffice\b": "say what to do instead",
    r"--noise (secret|seeded)|\bnoise=\"(secret|seeded)\"": "--randomness; noise is the multiplier",
    r"--study\b": "--folder; a study is of a paper",
    r"\b(tacit|federation) check\b": "tacit probe, tacit federation explain",
    r"\btacit plan\b": "tacit calibrate; a plan is a federation's",
    r"\b(?:least|fewest)_\w+|\b_?(?:MOST|LEAST|FEWEST)_\w+": "min_, max_",
    r"\b(Unsized|unsized|size_noise|OwnPart|STRIKES|let_go|unmasking|federated\(\)|Lies)\b": "see the glossary",
}
PLACES = (
    "src",
    "docs",
    "examples",
    "experiments",
    "README.md",
    "PACKAGE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "Makefile",
)
KINDS = (".py", ".md", ".toml", ".js", ".html", "")


def documents() -> list[Path]:
    """Everything that users and contributors read."""
    found = [path for place in PLACES for path in (ROOT / place, *(ROOT / place).rglob("*"))]
    history = ROOT / "docs" / "corrections.md"  # says how things were called
    return [path for path in found if path.is_file() and path.suffix in KINDS and path != history]


@pytest.mark.parametrize("pattern", BANNED)
def test_a_word_that_has_a_better_one_is_not_used(pattern: str) -> None:
    word = re.compile(pattern)
    used = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in documents()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1)
        if word.search(line)
    ]
    assert not used, f"Say {BANNED[pattern]}:\n" + "\n".join(used)


def test_a_banned_word_is_found() -> None:
    """The patterns find what they are for, and leave the words of the field alone."""
    found = {sentence: [word for word in BANNED if re.search(word, sentence)] for sentence in WRONG + RIGHT}
    assert all(found[sentence] for sentence in WRONG)
    assert not any(found[sentence] for sentence in RIGHT)


WRONG = (
    "rows of so many clients",
    "the same, likewise",
    "tacit run geyer --noise seeded",
    "MOST_ROWS = 3",
    "tacit plan --rate 1",
)
RIGHT = (
    "so many that no campaign ends",
    "tacit calibrate --noise 1.5",
    "tacit federation plan RUN",
    "at least 3",
    "MAX_ROWS = 3",
)
