"""Defaults of methods for populations and models that are smaller than those of their papers.

A default that does not fit is adapted, with a warning that states the change. A chosen value is never changed: if it
does not fit, it is refused.
"""

import warnings
from dataclasses import replace

from tacit import methods
from tacit.core import Key, Method
from tacit.data import Task
from tacit.pieces.samplers import Everyone

RATIO = 0.1  # of the weights of a model with so few that the default ratio selects none


def fit_defaults(method: Method, task: Task) -> Method:
    """The method with defaults that fit the task; a method that is not known by its name has none."""
    if method.name not in methods.definitions():
        return method
    return _fit_ratio(_fit_cohort(method, len(task.population)), task)


def _fit_cohort(method: Method, population: int) -> Method:
    """Every client takes part, if the default cohort is larger than the population."""
    size = getattr(method.sampler, "size", 0)
    if size <= population or method.sampler != methods.make(method.name).sampler:
        return method
    private = " Sampling does not lower ε then: it is that of full participation." if method.terms.changes_rows else ""
    warnings.warn(
        f"{method.name} samples {size:g} clients a round by default, but there are {population}: every client takes "
        f"part in every round.{private}",
        stacklevel=2,
    )
    return replace(method, sampler=Everyone())


def _fit_ratio(method: Method, task: Task) -> Method:
    """A larger part of the weights, if the default one is less than a single weight."""
    default = methods.definitions()[method.name].parameters.get("ratio", "")
    if not default or method.codec != methods.make(method.name).codec:
        return method
    model = task.make_model(Key.from_seed(0))
    weights = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    if float(default) * weights >= 1 or weights * RATIO < 1:
        return method
    warnings.warn(
        f"{method.name} sends {100 * float(default):g} % of the weights by default, which is none of {weights}: it "
        f"sends {100 * RATIO:g} % of them. Choose another part with ratio.",
        stacklevel=2,
    )
    return replace(method, codec=methods.make(method.name, {"ratio": RATIO}).codec)
