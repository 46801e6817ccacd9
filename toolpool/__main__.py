"""`python -m toolpool` is the `toolpool` command."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the current folder, which may be a workspace; see `code_folders`
    from toolpool.cli import main

    raise SystemExit(main())
