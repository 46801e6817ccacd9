"""Reads a page of metrics as Prometheus does."""

import socket
import urllib.request
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

Figures = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def free_port() -> int:
    """A port of this host that nobody listens at just now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def page(port: int) -> str:
    """The page as it is."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def parsed(text: str) -> Figures:
    """Every sample of a page, by its name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scraped(port: int) -> Figures:
    """Every sample that is served at a port."""
    return parsed(page(port))


def value(figures: Figures, name: str, **labels: str) -> float:
    """One sample's; 0 where there is none."""
    return figures.get((name, frozenset(labels.items())), 0.0)


def by_code(figures: Figures, name: str) -> dict[tuple[str, str, str], float]:
    """What was counted of each tool, by error type and code."""
    found = {}
    for (sample, labels), count in figures.items():
        if sample == name and count:
            of = dict(labels)
            found[of["tool"], of["error_type"], of["code"]] = count
    return found
