"""Clipping per record: the sum of the gradients of single records, each clipped to a bound."""

from tacit.engine.learners.records.choice import CANNOT_MAP, AutoRecords, RecordLearner, check_records
from tacit.engine.learners.records.one_by_one import ReferenceRecords

__all__ = ["CANNOT_MAP", "AutoRecords", "RecordLearner", "ReferenceRecords", "check_records"]
