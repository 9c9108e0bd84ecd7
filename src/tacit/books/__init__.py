"""What a run cost: folds over its reports, and what they prove.

The privacy books are not loaded here: they need `dp_accounting`, which takes a second.
"""

from tacit.books.bandwidth import Bandwidth

__all__ = ["Bandwidth"]
