"""In which coordinates a client says what it learnt. Saying everything is neutral and lives in `tacit.core`."""

from tacit.core import Identity
from tacit.pieces.codecs.select import FixedRandom, RandomK, Select, TopK, Vote
from tacit.pieces.codecs.sensing import Sense
from tacit.pieces.codecs.size import Size

__all__ = ["FixedRandom", "Identity", "RandomK", "Select", "Sense", "Size", "TopK", "Vote"]
