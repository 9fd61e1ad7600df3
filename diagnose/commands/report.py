"""What does `report` do? Renders reports again from their records."""

from __future__ import annotations

import argparse

from diagnose.commands.shared.arguments import add_reports_option
from diagnose.records.exit_codes import FINE
from diagnose.render import store

MANUAL = """example:
  python -m diagnose report"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_reports_option(parser)
    parser.add_argument("labels", nargs="*", metavar="LABEL", help="(default: all)")


def run(arguments: argparse.Namespace) -> int:
    from diagnose.render.check import find_reports, write_index, write_report

    named = [store.record_path(arguments.reports, label).parent for label in arguments.labels]
    for directory in named or find_reports(arguments.reports):
        print(write_report(directory))
    write_index(arguments.reports)
    return FINE
