"""What does `report` do? Renders reports again from their records."""

from __future__ import annotations

import argparse
from pathlib import Path

from diagnose.commands.shared.arguments import add_reports_option
from diagnose.records.exit_codes import FINE
from diagnose.render import store

MANUAL = """example:
  python -m diagnose report"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_reports_option(parser)
    parser.add_argument(
        "--csv", type=Path, metavar="DIR", help="also write every table there, as CSV with units"
    )
    parser.add_argument(
        "labels", nargs="*", metavar="LABEL", help="reports to render (default: all)"
    )


def run(arguments: argparse.Namespace) -> int:
    from diagnose.render.check import find_reports, write_index, write_report, write_tables

    named = [store.record_path(arguments.reports, label).parent for label in arguments.labels]
    found = named or find_reports(arguments.reports)
    if not found:
        raise store.StoreError(f"{arguments.reports} holds no record; measure first")
    for directory in found:
        print(write_report(directory))
        for path in write_tables(directory, arguments.csv) if arguments.csv else ():
            print(path)
    write_index(arguments.reports)
    return FINE
