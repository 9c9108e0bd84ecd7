"""Codecs: in which coordinates an update is sent. The neutral codec, `Identity`, is in `tacit.core`."""

from tacit.core import Identity
from tacit.pieces.codecs.select import FixedRandom, RandomK, Select, Size, TopK, Vote
from tacit.pieces.codecs.sensing import Sense

__all__ = ["FixedRandom", "Identity", "RandomK", "Select", "Sense", "Size", "TopK", "Vote"]
