"""Results in print and in pictures. Everything here reads files and runs nothing."""
