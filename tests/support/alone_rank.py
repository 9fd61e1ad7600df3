"""How does a rank program run in this process? As a rank that has no others."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from functools import partial
from types import ModuleType
from typing import Any, cast

from diagnose.commands.cli import command
from diagnose.commands.shared.arguments import Parser, hyphenate
from diagnose.measure.evaluation import ranks
from diagnose.measure.machine.device import DeviceError, open_device
from diagnose.measure.ranks.job.ends import End, Outcome
from diagnose.measure.ranks.job.member import Member, describe_error
from diagnose.measure.ranks.job.rendezvous import Refusal
from diagnose.measure.ranks.job.supervise import OnLine
from tests.support import cli


class Alone:
    """What a program sees of its rank, where that is the only one."""

    rank = local_rank = node = 0
    world_size = local_world_size = nodes = 1

    def __init__(self, on_line: OnLine, device: str | None) -> None:
        self.where = "start"
        self._on_line = on_line
        try:
            self.device = open_device(device)
        except DeviceError as error:
            raise Refusal(str(error)) from None

    def at(self, text: str) -> None:
        self.where = text

    def still(self) -> None: ...

    def emit(self, kind: str, content: object) -> None:
        self._on_line(kind, json.loads(json.dumps(content)))

    def barrier(self) -> None: ...

    def broadcast(self, value: Any) -> Any:
        return value


def launch(program: str, request: Mapping[str, Any], on_line: OnLine, timeout: float) -> Outcome:
    where = "start"
    try:
        member = Alone(on_line, request["device"])
        try:
            ranks.run(cast(Member, member), json.loads(json.dumps(request)))
        finally:
            where = member.where
    except Exception as error:
        kind, reason = describe_error(error, timeout)
        return Outcome((End(0, kind, reason, where),))
    return Outcome((End(0, "done"),))


def run_here(verb: ModuleType, *words: object) -> cli.Outcome:
    """The verb with its rank in this process."""

    def run() -> int:
        parser = Parser(allow_abbrev=False)
        verb.add_options(parser)
        arguments = parser.parse_args(hyphenate([str(word) for word in words]))
        return command(argparse.Namespace(**vars(arguments), run=partial(verb.run, launch=launch)))

    return cli.heard(run)
