"""Does the report on batch sizes say what the record holds, on few lines?"""

from __future__ import annotations

import numpy as np

from diagnose.analyze.batch_size import judge
from diagnose.render.batch_size import figures, sweep_table
from tests.support.records.batch_size import (
    batch_size_record,
    broken,
    configuration,
    loader,
    probe,
)
from tests.support.rendered import told


def test_what_was_not_tried_is_not_called_too_large() -> None:
    probes = (probe(1), probe(25, fresh=True))
    cut = configuration(asked=(8, 40, 64), probes=(*probes, probe(50)), stopped="no time")
    assert sweep_table(judge(cut))[-2:] == [
        "Asked for, but too large to fit: 64.",
        "Asked for, but not tried: 40: no time.",
    ]
    hung = configuration(asked=(8, 64), probes=(*probes, broken(26, "hung")))
    assert "not tried: 64: batch 26 hung" in sweep_table(judge(hung))[-1]


def test_the_figure_depends_on_the_record_alone() -> None:
    (drawn,) = told(batch_size_record())[0].draw_all().values()
    assert drawn == told(batch_size_record())[0].draw_all()["batch_size.svg"]
    assert b"loader" not in drawn
    assert figures(batch_size_record(configuration(sweep=None))) == {}


def test_the_ring_marks_the_batch_to_use_and_no_loader_flattens_the_curve() -> None:
    for rate, use in ((250.0, 4), (50_000.0, 8)):
        made = batch_size_record(configuration(loader=loader(rate)))
        upper = figures(made)["batch_size.svg"]().axes[0]
        rings = [line for line in upper.lines if line.get_markersize() == 12]
        assert [np.asarray(ring.get_xdata()).tolist() for ring in rings] == [[use]]
        assert upper.get_ylim()[1] < 500, "the fastest batch makes 413 samples/s"
