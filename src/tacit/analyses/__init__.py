"""Analyses of tables that are sums of bounded terms: queries, their release, and what follows from noisy sums."""

import sys

from tacit.analyses import regression_tables  # noqa: F401  (registers the results of regressions)
from tacit.analyses.boosting import BoostStep, BoostTerms, Columns
from tacit.analyses.describe import DescribeTerms
from tacit.analyses.fitting import FitLayout, FitPlan, FitStep, MomentStart
from tacit.analyses.hazards import HazardStart, HazardTerms
from tacit.analyses.metrics import ScoreCells
from tacit.analyses.regression import Design, RegressionTerms
from tacit.analyses.survival import SurvivalCells
from tacit.core.plain_form import allow

__all__ = [
    "BoostStep",
    "BoostTerms",
    "Columns",
    "DescribeTerms",
    "Design",
    "FitLayout",
    "FitPlan",
    "FitStep",
    "HazardStart",
    "HazardTerms",
    "MomentStart",
    "RegressionTerms",
    "ScoreCells",
    "SurvivalCells",
]

allow(sys.modules[__name__])  # methods in their canonical form may name these
