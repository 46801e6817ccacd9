"""The installed version of toolpool."""

from importlib import metadata

try:
    VERSION = metadata.version("toolpool")
except metadata.PackageNotFoundError:  # a source tree that was never installed
    VERSION = "0.0.0"
