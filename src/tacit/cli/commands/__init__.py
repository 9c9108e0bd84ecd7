"""What each command does: `run(args)` executes it and returns the exit code."""
