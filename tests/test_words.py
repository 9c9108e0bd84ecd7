"""One meaning for every word: what a machine can see of the glossary."""

import ast
import re
from collections.abc import Iterator
from functools import cache
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
    r"\b[Rr]ecords? of seven\b|\bfrozen records?\b|\brecord_text\b": "a value, a dataclass; a record is a row of data",
    r"\bsome seconds\b": "a few seconds",
    r"\b(Method\.reach|REACH)\b": "max_row_norm, MAX_MEAN_SIZE",
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
    "A method is a record of seven pieces.",
    "after some seconds",
    "see `Method.reach`",
)
RIGHT = (
    "so many that no campaign ends",
    "tacit calibrate --noise 1.5",
    "tacit federation plan RUN",
    "at least 3",
    "MAX_ROWS = 3",
)


PARTICIPLE = re.compile(
    r"\w*[a-z]ed|\w+ing|(?:re)?(?:shown|drawn|known|given|taken|written|hidden|chosen|thrown|made|built|kept|sent|held|told"
    r"|found|lost|left|spent|meant|begun)|without"
)
FUNCTIONS = {
    "need": "no participle: a verb",
    "accounting_of binding encoding encoding_and_model encoding_beside embedding meaning meaning_for packing_of "
    "rounding rounding_sources sampling training_parameters": "a noun of the field",
    "averaged merged_with opened sampled scaled summed without_code": "a copy that is changed, of a value that is not",
    "accepted_plan charged_epsilon charged_unit claimed_adjacency clipped_sum clipped_sums completed_points "
    "declared_loss expected_rates fixed_cohort measured_noise missing_members opened_surplus "
    "oriented_gradients packed_size perturbed_scores planned_participations planned_rounds received_bound "
    "received_mask remaining_rounds rounded_bound sampled_linear seeded_secrets simulated_configuration simulated_host "
    "simulated_identity squared_norms weighted_loss": "a noun with its adjective, of what is returned",
    "ping ping_often": "a verb that ends as a participle does",
    "masked_pruning": "the name of a method",
    "differencing": "an attack, and a command's name",
}
ALLOWED = {name: why for names, why in FUNCTIONS.items() for name in names.split()}


def trees() -> Iterator[tuple[Path, ast.Module]]:
    """The files of the package."""
    package = ROOT / "src" / "tacit"
    for path in package.rglob("*.py"):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def functions() -> Iterator[tuple[Path, str]]:
    """Every function with its file; properties have the names of values."""
    for path, tree in trees():
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() if not any(map(is_property, node.decorator_list)):
                    yield path, node.name


def is_property(decorator: ast.expr) -> bool:
    return "property" in ast.unparse(decorator)


def is_participle(function: str) -> bool:
    """Whether the first word of a function's name ends as a participle does."""
    return PARTICIPLE.fullmatch(function.strip("_").split("_")[0]) is not None


def test_functions_are_named_by_verbs_or_by_what_they_return() -> None:
    wrong = [f"{path.relative_to(ROOT)}: {name}" for path, name in functions() if is_participle(name)]
    assert [each for each in wrong if each.rsplit(" ", 1)[1].strip("_") not in ALLOWED] == []


def test_exceptions_are_still_needed() -> None:
    assert {name.strip("_") for _, name in functions() if is_participle(name)} == ALLOWED.keys()


def test_a_participle_is_found() -> None:
    assert all(map(is_participle, ("_checked_counts", "drawn", "_without_gaps", "rebuilt_task", "trusting", "_shown")))
    assert not any(map(is_participle, ("draw", "check_counts", "add_surplus", "own_parts", "unknown_keys", "open")))


def test_nothing_is_called_found() -> None:
    """A parameter, a field or a variable is called what it is."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, tree in trees()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Name) and node.id == "found") or (isinstance(node, ast.arg) and node.arg == "found")
    ]
    assert found == []


CODE = re.compile(r"`([A-Z]\w+)\.(\w+)(?:\([^`]*\))?`")  # Class.member, in a page


@cache
def members() -> dict[str, set[str]]:
    """What every class of the sources defines or inherits, by its name."""
    bodies: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                bodies.setdefault(node.name, set()).update(_names(node))
                bases.setdefault(node.name, set()).update(ast.unparse(base).partition("[")[0] for base in node.bases)
    return {name: set().union(*(bodies.get(each, set()) for each in _line(name, bases))) for name in bodies}


def _names(node: ast.ClassDef) -> set[str]:
    own = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    targets: list[ast.expr] = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
    targets += [target for each in node.body if isinstance(each, ast.Assign) for target in each.targets]
    return own | {target.id for target in targets if isinstance(target, ast.Name)}


def _line(name: str, bases: dict[str, set[str]]) -> set[str]:
    """A class and all that it inherits from."""
    return {name}.union(*(_line(base, bases) for base in bases.get(name, set())))


def test_pages_name_members_that_exist() -> None:
    pages = [path for path in documents() if path.suffix == ".md" and path.name not in ("CHANGELOG.md", "SECURITY.md")]
    mentioned = [(page, found[1], found[2]) for page in pages for found in CODE.finditer(page.read_text("utf-8"))]
    known = [each for each in mentioned if each[1] in members()]
    gone = [
        f"{page.relative_to(ROOT)}: {name}.{member}" for page, name, member in known if member not in members()[name]
    ]
    assert len(known) > 10
    assert not gone
