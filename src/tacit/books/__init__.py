"""What a run cost: folds over its reports."""

from tacit.books.bandwidth import Bandwidth

__all__ = ["Bandwidth"]
