"""What does `scale` do? Predicts larger clusters from a scaling that was measured."""

from __future__ import annotations

import argparse

from diagnose.analyze.links import LINK_NAMES
from diagnose.commands.shared.arguments import add_reports_option, count
from diagnose.measure.session import CouldNotOpen
from diagnose.records.exit_codes import FINE
from diagnose.records.ranks import ScalingRecord
from diagnose.render import store

MANUAL = """example:
  python -m diagnose scale --label cpu-dgca --ranks 8 64 512 --link ib400"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_reports_option(parser)
    add = parser.add_argument
    add("--label", required=True, help="a report that `scaling` wrote")
    add(
        "--ranks", type=count, nargs="+", default=[8, 64, 512], metavar="N", help="numbers of ranks"
    )
    add(
        "--link",
        choices=LINK_NAMES,
        default="measured",
        help="link between the ranks (default: as measured)",
    )


def run(arguments: argparse.Namespace) -> int:
    from diagnose.analyze.scaling.cluster import SimulationRefused, simulate_record
    from diagnose.render.scaling import render_scale

    directory = store.record_path(arguments.reports, arguments.label).parent
    path = directory / ScalingRecord.FILE_NAME
    if not path.exists():
        raise CouldNotOpen(
            f"there is no {path}; measure it first: torchrun --nproc-per-node=2 -m diagnose "
            f"scaling --label {arguments.label}"
        )
    record = store.load(path, ScalingRecord)
    try:
        print(render_scale(simulate_record(record, arguments.ranks, arguments.link)))
    except SimulationRefused as error:
        raise CouldNotOpen(str(error)) from None
    return FINE
