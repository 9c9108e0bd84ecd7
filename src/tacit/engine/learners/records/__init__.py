"""Clipping per record: the sum of the gradients of single records, each clipped to a bound."""

from tacit.engine.learners.records.record_learners import (
    CANNOT_MAP,
    AutoRecords,
    RecordLearner,
    ReferenceRecords,
    check_records,
)

__all__ = ["CANNOT_MAP", "AutoRecords", "RecordLearner", "ReferenceRecords", "check_records"]
