"""What does `check` do? Fails if a report is not what its record renders to."""

from __future__ import annotations

import argparse

from diagnose.commands.shared.arguments import add_reports_option
from diagnose.commands.shared.keep import complain
from diagnose.records.exit_codes import FINE, FOUND

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
    count = len(find_reports(arguments.reports))
    print(f"{count} report{'' if count == 1 else 's'} match their data")
    return FINE
