"""`python -m toolpool` is the `toolpool` command."""

from toolpool.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
