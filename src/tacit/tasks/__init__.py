"""Named tasks: data sets with checksums, ways to split them over clients, and the papers' models."""
