"""Analyses of tables that are sums of bounded terms: queries, their release, and what follows from noisy sums."""

import sys

from tacit.analyses.describe import DescribeTerms
from tacit.analyses.fitting import FitLayout, FitPlan, FitStep
from tacit.analyses.metrics import ScoreCells
from tacit.analyses.regression import Design, RegressionTerms
from tacit.analyses.survival import SurvivalCells
from tacit.core.plain_form import allow

__all__ = [
    "DescribeTerms",
    "Design",
    "FitLayout",
    "FitPlan",
    "FitStep",
    "RegressionTerms",
    "ScoreCells",
    "SurvivalCells",
]

allow(sys.modules[__name__])  # methods in their canonical form may name these
