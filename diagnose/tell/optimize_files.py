"""Which files tell of an `optimize`? Written and checked by the same rendering."""

from __future__ import annotations

from pathlib import Path

from diagnose.model import OptimizeRecord
from diagnose.tell import derive, seal, store
from diagnose.tell.optimize_report import render_optimize

REPORT_NAME = "optimize.md"
FIGURE_NAME = "launches.svg"


def write_optimize(directory: Path, record: OptimizeRecord) -> Path:
    """optimize.md, and the figure of the first launch map if there is one."""
    text = render_optimize(record).encode()
    if record.maps:
        # Only writing draws: checking runs without the plotting library.
        from diagnose.tell.launch_plot import draw_launches
        from diagnose.tell.plots import save_figure

        figure = save_figure(lambda: draw_launches(record.maps[0]), derive.fingerprint(record))
        store.write_atomically(directory / FIGURE_NAME, figure)
    store.write_atomically(directory / REPORT_NAME, text)
    return directory / REPORT_NAME


def figure_fault(directory: Path, record: OptimizeRecord) -> str:
    """Empty, or what is wrong with the figure."""
    path = directory / FIGURE_NAME
    if not record.maps:
        return f"{path} is left over: this record has no launch map" if path.exists() else ""
    try:
        fault = seal.find_fault(path.read_bytes(), derive.fingerprint(record))
    except OSError as error:
        fault = f"cannot be read ({error.strerror})"
    return f"{path} {fault}: run `make report`" if fault else ""
