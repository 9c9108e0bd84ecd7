"""In which coordinates a client says what it learnt. Saying everything is neutral and lives in `tacit.core`."""

from tacit.codecs.select import FixedRandom, RandomK, Select, TopK, Vote
from tacit.codecs.sensing import Sense
from tacit.codecs.size import Size
from tacit.core import Identity

__all__ = ["FixedRandom", "Identity", "RandomK", "Select", "Sense", "Size", "TopK", "Vote"]
