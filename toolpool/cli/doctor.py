"""`toolpool doctor`: finds what is wrong with a set-up, and says how to correct it."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from toolpool.cli import screen
from toolpool.cli.exit_codes import ExitCode
from toolpool.cli.options import JsonOption, load_settings

if TYPE_CHECKING:
    from toolpool.checks import Finding

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(json: JsonOption = False) -> int:
    """Find what is wrong with this set-up, and say how to correct it.

    Exits 1 if something must be corrected, else 0.
    """
    from toolpool.checks import Finding, Level, examine
    from toolpool.contract.errors import Misconfigured

    try:
        findings = examine(load_settings())
    except Misconfigured as error:
        remedy = "correct the value, or unset the variable"
        findings = [Finding("settings", Level.FAIL, str(error), remedy)]
    failed = any(finding.level is Level.FAIL for finding in findings)
    if json:
        screen.write_json({"ok": not failed, "findings": [asdict(each) for each in findings]})
    else:
        _show(findings)
    return ExitCode.FAILED if failed else ExitCode.OK


def _show(findings: "list[Finding]") -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in findings:
        told = Text(finding.message)
        if finding.remedy:
            told.append(f"\n→ {finding.remedy}", style="bold")
        level = Text(finding.level.value, style=_STYLES[finding.level.value])
        table.add_row(level, Text(finding.name), told)
    screen.show(table)
