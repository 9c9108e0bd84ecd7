"""Serialisation: frames of named parts, sets of indices, sparse rows, the fields of messages, and the hash chain."""
