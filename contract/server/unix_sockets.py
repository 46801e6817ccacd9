"""Whether a unix socket is this user's alone."""

import os
import stat
from pathlib import Path
from urllib.parse import unquote, urlsplit


def why_not_private(url: str) -> str | None:
    """Why other users can open or replace the socket of a `unix://` URL; None if they cannot.

    A missing socket is no conflict: connecting will fail.
    """
    path = Path(unquote(urlsplit(url).path))
    try:
        path = path.parent.resolve() / path.name
        if path.is_symlink():
            path = path.resolve()
        seen = path.stat()
        above = [(folder, folder.stat()) for folder in path.parents]
    except OSError:
        return None
    trusted = {0, os.geteuid()}
    for folder, its in above:
        if its.st_uid not in trusted:
            return f"its directory {folder} belongs to another user"
        if its.st_mode & 0o022 and not its.st_mode & stat.S_ISVTX:
            return f"others may write to its directory {folder}"
    if seen.st_uid != os.geteuid():
        return "it belongs to another user"
    if not seen.st_mode & 0o022:
        return None
    if any(its.st_uid == os.geteuid() and not its.st_mode & 0o011 for _, its in above):
        return None
    return f"other users may open it (its mode is {stat.S_IMODE(seen.st_mode):o})"
