"""Does the sampler see stacks of one moment, whatever the main thread leaves meanwhile?"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from diagnose.measure.script.watch.stacks import Stacks
from diagnose.measure.script.watch.where import Sources, line_at


def squares(count: int) -> Iterator[int]:
    yield from (each * each for each in range(count))


def add_squares() -> int:
    return sum(each for each in squares(50))


def count(letters: str, places: dict[str, int], found: list[int]) -> None:
    for letter in letters:
        place = places.get(letter)
        if place is not None:
            found[place] += 1


def test_the_jump_back_is_the_loops_whichever_way_its_body_went() -> None:
    """Python changes threads there: the last line of the body has no more of them than another."""
    code, first = count.__code__, count.__code__.co_firstlineno
    lines = {line - first for _, _, line in code.co_lines() if line is not None}
    assert lines == {0, 1, 2, 3, 4}
    own = {offset: line for start, end, line in code.co_lines() for offset in range(start, end)}
    back = [
        each.offset
        for each in dis.get_instructions(code)
        if each.opname.startswith("JUMP_BACK") and own[each.offset] is None
    ]
    assert [line_at(code, each) - first for each in back] == [1] * len(back)
    assert back or sys.version_info[:2] != (3, 11)


def test_every_walk_leads_to_the_outermost_frame(tmp_path: Path) -> None:
    """Frames of generators come and go all the time: a walk across two moments would end there."""
    stacks = Stacks(Sources(tmp_path), frozenset())
    walks: list[int] = []
    depth = len(stacks._look())

    def look() -> None:
        while len(walks) < 20_000:
            walks.append(len(stacks._look()))

    watcher = threading.Thread(target=look)
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        watcher.start()
        while watcher.is_alive():
            add_squares()
    finally:
        sys.setswitchinterval(usual)
        watcher.join()
    # _look itself was one frame deeper than this function.
    whole = [walk for walk in walks if walk]
    assert len(whole) > 0.99 * len(walks)
    assert min(whole) >= depth - 1
    assert max(walks) > depth, "some walks must begin inside a generator"
