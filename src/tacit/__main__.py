"""`python -m tacit` is `tacit`."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the current folder, which `tacit` does not search: a torch.py beside a plan is not installed code

from tacit.cli import main

if __name__ == "__main__":
    sys.exit(main())
