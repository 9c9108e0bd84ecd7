"""Clipping per record: the sum of the gradients of single records, each clipped to a bound."""
