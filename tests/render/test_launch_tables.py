"""Does the launch map name the guilty line, whatever the code looks like?"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from diagnose.records.experiments import LaunchLine, LaunchMap
from diagnose.records.header import Reading
from diagnose.render.optimize.annotations import annotate
from diagnose.render.optimize.launch_figure import MOST_BARS, draw_launches
from diagnose.render.optimize.launches import MOST_LINES, launch_map

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


def make(*lines: LaunchLine, unattributed: int = 0, notes: tuple[str, ...] = ()) -> LaunchMap:
    count = sum(line.forward + line.backward for line in lines) + unattributed
    return LaunchMap("original", {"batch_size": 32}, lines, count, unattributed, notes)


def rows(block: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in block.splitlines()
    ]


def test_the_first_block_is_the_answer() -> None:
    answer = launch_map(make(LOOP, UPDATE, MODEL))[0]
    assert answer.startswith(
        "job/prompt.py:41 in write\\_slots launches 1 536 of 2 400 operators (64 %), "
        "1 152 of them in the backward pass: it runs 192 times per step."
    )
    assert "wait for an accelerator 192 times per step, 192 of 192 at job/prompt.py:41." in answer
    assert "The largest tensor, 86.5 MB (86 540 288 bytes), is made at job/model.py:7" in answer


def test_a_loop_behind_a_larger_line_is_named_too() -> None:
    larger = replace(MODEL, forward=2000)
    answer = launch_map(make(larger, LOOP))[0]
    assert answer.startswith("job/model.py:7 in encode launches 2 164 of 3 700")
    assert "it runs once per step. job/prompt.py:41 in write\\_slots launches 1 536" in answer


def test_lines_that_make_tensors_as_large_are_counted() -> None:
    more = replace(MODEL, line=8, allocated_bytes=950_000)
    answer = launch_map(make(LOOP, MODEL, more))[0]
    assert "is made at job/model.py:8" in answer
    assert "(one as large at 1 other line)" in answer


def test_the_table_of_launches() -> None:
    head, _, *body = rows(launch_map(make(LOOP, UPDATE, MODEL))[1])
    assert head[-3:] == ["self ms", "allocated", "largest tensor"]
    loop, update, model = body
    assert loop[0] == "job/prompt.py:41"
    assert loop[2:] == ["384", "1 152", "192", "64 %", "12.3", "600 kB", "3.00 kB"]
    assert update[0] == "optimizer"
    assert model[6] == "–¹"
    assert launch_map(make(LOOP, UPDATE, MODEL))[2] == "- ¹ the clock was away"


def test_lines_beyond_the_table_are_summed() -> None:
    lines = [replace(LOOP, line=at, forward=2, backward=1) for at in range(MOST_LINES + 3)]
    blocks = launch_map(make(*lines))
    assert len(rows(blocks[1])) == MOST_LINES + 2
    assert blocks[2] == "3 more lines launch 9 operators together."


def test_the_table_of_synchronisations_has_the_worst_line_first() -> None:
    once = replace(MODEL, syncs=1, sync_operators=("nonzero", "tolist"))
    (block,) = (each for each in launch_map(make(once, LOOP)) if "synchronises" in each)
    _, _, first, second = rows(block)
    assert first == [
        "job/prompt.py:41",
        "x\\[i, index\\[i, j\\]\\] = prompts\\[j\\]",
        "192",
        "\\_local\\_scalar\\_dense",
    ]
    assert second[2:] == ["1", "nonzero, tolist"]


def test_the_table_of_memory_is_in_order_and_without_the_optimizer() -> None:
    (block,) = (each for each in launch_map(make(LOOP, UPDATE, MODEL)) if "% of all" in each)
    _, _, *body = rows(block)
    assert [row[0] for row in body] == ["job/model.py:7", "job/prompt.py:41"]
    assert body[0][2:] == ["86.5 MB", "900 kB", "38 %"]


def test_what_is_not_there_is_said() -> None:
    assert launch_map(make()) == ["No operator ran in the step."]
    assert launch_map(make(unattributed=5))[0] == (
        "None of the 5 launches comes from a line of the job's code."
    )
    quiet = "\n\n".join(launch_map(make(MODEL, unattributed=1, notes=("read me",))))
    assert "No line makes the host wait for an accelerator." in quiet
    assert "- Launches that belong to no line of the job's own code: 1 of 265.\n- read me" in quiet


HOSTILE = "x | y <img src=x> [a](http://evil) @someone `b` \x1b[31m\nnext"


def test_hostile_code_stays_in_its_cell() -> None:
    hostile = replace(LOOP, code=HOSTILE, file="a|b.py", function="<b>")
    blocks = launch_map(make(hostile))
    text = "\n".join(blocks)
    for raw in ("<img", "<b>", "://", "@someone", "\x1b", " `b`"):
        assert raw not in text
    assert not re.search(r"(?<!\\)\]\(", text)
    for block in blocks[1:4]:
        assert len({len(row) for row in rows(block)}) == 1


def test_the_guilty_line_is_annotated_once_with_all_reasons() -> None:
    (warning,) = annotate(make(LOOP, UPDATE, replace(MODEL, allocated_bytes=100)))
    assert warning == (
        "::warning file=job/prompt.py,line=41::runs 192 times per step and launches 1 536 of "
        "2 400 operators (64 %25), 1 152 of them in the backward pass; makes the host wait for "
        "an accelerator 192 times per step (_local_scalar_dense): x[i, index[i, j]] = prompts[j]"
    )


def test_the_largest_tensor_is_annotated_where_the_line_matters() -> None:
    (warning,) = annotate(make(MODEL))
    assert warning == (
        "::warning file=job/model.py,line=7::makes the largest tensor of the step, 86.5 MB, and "
        "allocates 900 kB (100 %25 of all): result = self.encoder(x)"
    )


@pytest.mark.parametrize(
    ("trips", "forward", "expected"),
    [(9, 10, 1), (8, 10, 0), (9, 9, 0)],
)
def test_only_repeated_lines_with_a_tenth_of_the_launches_are_annotated(
    trips: int, forward: int, expected: int
) -> None:
    quiet = {"syncs": 0, "sync_operators": (), "allocated_bytes": 0, "largest_bytes": 0}
    line = replace(LOOP, trips=trips, forward=forward, backward=0, **quiet)  # type: ignore[arg-type]
    assert len(annotate(make(line, unattributed=100 - forward))) == expected


def test_annotations_cannot_be_broken_out_of() -> None:
    hostile = replace(LOOP, file="a,b:c%\r\n.py", code="100%\n::error::boo")
    (warning,) = annotate(make(hostile))
    assert warning.startswith("::warning file=a%2Cb%3Ac%25%0D%0A.py,line=41::")
    assert warning.endswith(": 100%25 ::error::boo")
    assert "\n" not in warning


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
