"""How does a script of ours run on two hosts?"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench import two_hosts as namespaces
from tests.support.cli import ROOT, environment

LIMIT_SECONDS = 600


@dataclass(frozen=True)
class Ended:
    """What one host's torchrun said."""

    code: int
    out: str
    err: str

    @property
    def complaints(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("diagnose: ")]


@dataclass(frozen=True)
class Link:
    own: namespaces.Link

    def start(self, script: str, words: list[str]) -> list[subprocess.Popen[str]]:
        return self.own.start([str(ROOT / "diagnose" / script), *words], environment({}))

    def run(self, script: str, *words: object) -> list[Ended]:
        started = self.start(script, [str(each) for each in words])
        try:
            return [
                Ended(each.returncode, out, err)
                for each in started
                for out, err in [each.communicate(timeout=LIMIT_SECONDS)]
            ]
        finally:
            for each in started:
                each.kill()

    def cut(self) -> None:
        self.own.cut()


@contextmanager
def two_hosts(rate: str) -> Iterator[Link]:
    with namespaces.two_hosts(rate) as own:
        yield Link(own)
