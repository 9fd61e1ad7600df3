"""What does `check` do? Fails if a report is not what its record renders to."""

from __future__ import annotations

import argparse
from pathlib import Path

from diagnose.commands.shared.arguments import add_reports_option
from diagnose.commands.shared.keep import complain
from diagnose.measure.machine.describe import PROJECT, holds, read_trees
from diagnose.records.exit_codes import FINE, FOUND
from diagnose.records.header import Machine

MANUAL = """example:
  python -m diagnose check"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_reports_option(parser)
    parser.add_argument(
        "--allow-dirty",
        action="store_true",
        help="accept reports that were measured from uncommitted code",
    )


def run(arguments: argparse.Namespace) -> int:
    from diagnose.render.check import check, find_reports

    problems = check(arguments.reports, allow_dirty=arguments.allow_dirty)
    for problem in problems:
        complain(problem)
    if problems:
        return FOUND
    if unknown := find_unknown_code(arguments.reports, PROJECT):
        complain(
            "warning: this repository holds neither the commit nor the folders of code that "
            f"measured {', '.join(unknown)}"
        )
    count = len(find_reports(arguments.reports))
    print(f"{count} report{'' if count == 1 else 's'} match their data")
    return FINE


def find_unknown_code(reports: Path, project: Path) -> list[str]:
    """Reports that nobody can measure again with the same code; none where there is no checkout."""
    from diagnose.render.check import find_reports
    from diagnose.render.parts import load_parts

    if not read_trees(project):
        return []
    return [
        directory.name
        for directory in find_reports(reports)
        if not all(_is_known(each.record.header.machine, project) for each in load_parts(directory))
    ]


def _is_known(machine: Machine, project: Path) -> bool:
    """By the commit, or after a squash by the folders that it held."""
    commit, trees = machine.git_commit.value, machine.code_trees.values()
    if commit is None or holds(project, commit.removesuffix("-dirty")):
        return True
    return bool(trees) and all(holds(project, each) for each in trees)
