"""The analysis of a plan: its question and its release, from plain values that all sites see."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tacit.analyses.questions import QUESTIONS, Question, question_of
from tacit.analyses.sums import SumRelease
from tacit.core import Method
from tacit.core.schema import list_names
from tacit.data.encoding import Encoding
from tacit.data.sum_task import SumModel
from tacit.data.tables import Table
from tacit.errors import UserError, expect

if TYPE_CHECKING:
    from tacit.federation.plan.plan import FederationPlan

SUM_MODEL_NAME = "sums"  # the model of an analysis
RELEASE = ("epsilon", "delta", "units", "dropouts", "persons")  # arguments that say how, and not what


def check_analysis(name: str, args: Mapping[str, object], encoding: Encoding) -> None:
    """Raise `UserError` unless the question of a plan's analysis fits rows in its encoding."""
    question = _question(name, args)
    try:
        _ = question.query(encoding)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"Expected an encoding made for the analysis {name}, got one with the inputs {list_names(encoding.names)}: "
            f"{error}. Write it with tacit {name} on test data, from whose directory it can be copied."
        ) from None


def analysis_method(plan: "FederationPlan") -> Method:
    """The method of a plan's analysis, before it is adapted to sites."""
    assert plan.encoding is not None  # a plan of an analysis has one
    check_analysis(plan.analysis, plan.args, plan.encoding)
    given = {key: plan.args[key] for key in RELEASE if key in plan.args}
    epsilon = given.pop("epsilon", None)
    needed = f"units = … in args of {plan.analysis}: the most {plan.unit}s of any site, which is public"
    expect("units" in given, needed)
    budget = None if epsilon in (None, "none") else float(str(epsilon))
    release = SumRelease(epsilon=budget, clients=plan.population, **given)  # type: ignore[arg-type]
    return _question(plan.analysis, plan.args).method(plan.encoding, release)


def analysis_model(plan: "FederationPlan") -> SumModel:
    """The state of a plan's analysis, in the place of a model."""
    assert plan.encoding is not None  # a plan of an analysis has one
    target, length = plan.encoding.target, analysis_method(plan).trainer.state_length
    assert length is not None  # an analysis has one
    return SumModel(length, 1 if target is None else target.outputs)


def remarks_of(plan: "FederationPlan", encoding: Encoding, table: Table) -> Iterator[str]:
    """What is lost of a site's rows in the encoding of a plan, as sentences."""
    return _question(plan.analysis, plan.args).notes(encoding, table) if plan.analysis else encoding.remarks(table)


def _question(name: str, args: Mapping[str, object]) -> Question:
    expect(name in QUESTIONS, f"analysis = {name!r} among {', '.join(QUESTIONS)}")
    return question_of(name, {key: value for key, value in args.items() if key not in RELEASE})
