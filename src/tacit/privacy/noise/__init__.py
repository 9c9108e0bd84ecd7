"""Exact noise: integer-valued, from a cryptographic source, on grids whose rounding is part of the proof."""
