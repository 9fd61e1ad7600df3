"""Does the launch map name the guilty line, whatever the code looks like?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.analyze.optimize.launches import find_reasons
from diagnose.records.experiments import LaunchLine, LaunchMap
from diagnose.records.header import Reading
from diagnose.render.optimize.figures import MOST_BARS, draw_launches
from diagnose.render.optimize.launches import MOST_LINES, blamed_line, launch_map

LOOP = LaunchLine(
    file="job/prompt.py",
    line=41,
    function="write_slots",
    code="x[i, index[i, j]] = prompts[j]",
    forward=384,
    backward=1152,
    trips=192,
    syncs=192,
    sync_operators=("_local_scalar_dense",),
    allocated_bytes=600_000,
    largest_bytes=3_000,
    flops=0,
    seconds=Reading(0.0123),
    operators={"copy_": 576},
)
MODEL = replace(
    LOOP,
    file="job/model.py",
    line=7,
    function="encode",
    code="result = self.encoder(x)",
    forward=100,
    backward=164,
    trips=1,
    syncs=0,
    sync_operators=(),
    allocated_bytes=900_000,
    largest_bytes=86_540_288,
    seconds=Reading(None, "the clock was away"),
)
UPDATE = replace(
    MODEL, file="", line=0, function="optimizer", code="", forward=600, backward=0, largest_bytes=0
)


def make(*lines: LaunchLine, unattributed: int = 0, form: str = "original") -> LaunchMap:
    count = sum(line.forward + line.backward for line in lines) + unattributed
    return LaunchMap(form, {"batch_size": 32}, lines, count, unattributed)


def rows(block: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in block.splitlines()]


def test_the_line_to_blame_is_a_loop_and_shown_as_code() -> None:
    larger = replace(MODEL, forward=2000)
    blame, code = blamed_line(make(larger, LOOP))
    assert blame == (
        "`job/prompt.py:41` runs 192 times per training step and launches 1 536 of 3 700 operators "
        "(42 %), 1 152 of them in the backward pass; it makes the host wait for an accelerator "
        "192 times per training step (`_local_scalar_dense`)."
    )
    assert code.splitlines()[1] == f"{LOOP.code}  # job/prompt.py:41, in write_slots"
    assert blamed_line(make(larger))[0].startswith("`job/model.py:7` runs once per training step")
    nobody = blamed_line(make(unattributed=5))
    assert nobody == ["None of the 5 launches comes from a line of the job's code."]


def test_a_map_of_an_evaluation_speaks_of_no_training_step() -> None:
    of = make(LOOP, form="evaluation pass")
    text = "\n".join([*blamed_line(of), *launch_map(of)])
    label = draw_launches(of).axes[0].get_xlabel()
    assert "192 times per evaluation pass" in text
    assert label == "launches of one evaluation pass, 1 536 in all"
    assert "step" not in text + label


def test_the_table_of_lines() -> None:
    table, note, *_ = launch_map(make(LOOP, UPDATE, MODEL))
    _, _, loop, update, model = rows(table)
    assert loop == [
        "`job/prompt.py:41`",
        "`x[i, index[i, j]] = prompts[j]`",
        *["384", "1 152", "192", "64 %", "12.30", "192", "`_local_scalar_dense`"],
        *["600 kB", "3.00 kB"],
    ]
    assert update[0] == "`optimizer`"
    assert model[6:8] == ["–¹", ""]
    assert note == "- ¹ the clock was away"


def test_the_table_keeps_what_stands_out_and_sums_the_rest() -> None:
    small = replace(LOOP, forward=2, backward=1, syncs=0, sync_operators=(), largest_bytes=0)
    lines = [replace(small, line=at) for at in range(MOST_LINES + 3)]
    waits = replace(small, line=90, syncs=1, sync_operators=("nonzero",))
    table, notes = launch_map(make(*lines, waits, replace(small, line=91, largest_bytes=9)))
    assert len(rows(table)) == 2 + MOST_LINES + 2
    assert "3 more lines launch 9 operators together." in notes


def test_hostile_code_stays_in_its_cell_and_its_fence() -> None:
    hostile = replace(LOOP, code="x | y `b` ```\x1b[31m\nnext", file="a|b.py", function="f\n```")
    table = launch_map(make(hostile))[0]
    assert "| ````` x \\| y `b` ``` next ````` |".replace("`````", "````") in table
    assert "\x1b" not in table
    fence = blamed_line(make(hostile))[1].splitlines()
    assert (fence[0], fence[-1], len(fence)) == ("````python", "````", 3)


def test_the_largest_tensor_is_told_where_the_line_matters() -> None:
    assert find_reasons(MODEL, make(MODEL)) == [
        "makes the largest tensor of the training step, 86.5 MB, and allocates 900 kB "
        "(100 % of all)"
    ]
    assert find_reasons(MODEL, make(MODEL, replace(LOOP, allocated_bytes=9_000_000))) == []


@pytest.mark.parametrize(
    ("trips", "forward", "expected"),
    [(9, 10, 1), (8, 10, 0), (9, 9, 0)],
)
def test_only_repeated_lines_with_a_tenth_of_the_launches_stand_out(
    trips: int, forward: int, expected: int
) -> None:
    quiet = {"syncs": 0, "sync_operators": (), "allocated_bytes": 0, "largest_bytes": 0}
    line = replace(LOOP, trips=trips, forward=forward, backward=0, **quiet)  # type: ignore[arg-type]
    assert len(find_reasons(line, make(line, unattributed=100 - forward))) == expected


def test_the_figure_has_one_stacked_bar_per_line() -> None:
    (axes,) = draw_launches(make(LOOP, UPDATE, MODEL)).axes
    forward, backward = axes.containers
    assert [bar.get_width() for bar in forward] == [384, 600, 100]
    assert [bar.get_width() for bar in backward] == [1152, 0, 164]
    assert [bar.get_x() for bar in backward] == [384, 600, 100]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["job/prompt.py:41", "optimizer", "job/model.py:7"]
    texts = [text.get_text() for text in axes.texts]
    assert texts[0] == "1 536 (64 %), runs 192x"


def test_the_figure_keeps_to_the_first_lines_and_the_ends_of_paths() -> None:
    deep = [replace(LOOP, file=f"{'deep/' * 20}f.py", line=at) for at in range(MOST_BARS + 1)]
    (axes,) = draw_launches(make(*deep)).axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert len(labels) == MOST_BARS
    assert labels[3].startswith("…")
    assert labels[3].endswith("deep/f.py:3")
    assert draw_launches(make()).axes
