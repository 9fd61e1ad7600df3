from __future__ import annotations

from diagnose.measure.words import one_sentence, without_paths

WORKER_ERROR = """Caught FileNotFoundError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/home/ann/venv/lib/python3.11/site-packages/torch/utils/data/worker.py", line 349, in x
    data = fetcher.fetch(index)
FileNotFoundError: [Errno 2] No such file or directory: '/home/ann/data/7.png'
"""


def test_a_path_is_reduced_to_its_last_part() -> None:
    assert without_paths("cannot open '/home/ann/x/y.bin': denied") == "cannot open 'y.bin': denied"
    assert without_paths(r"cannot open C:\Users\ann\y.bin") == "cannot open y.bin"
    assert without_paths("a ratio of 3/4 and n/a stay") == "a ratio of 3/4 and n/a stay"


def test_of_a_worker_traceback_the_cause_is_left() -> None:
    assert one_sentence(WORKER_ERROR) == (
        "in a loader worker: FileNotFoundError: [Errno 2] No such file or directory: '7.png'"
    )


def test_long_and_empty_messages() -> None:
    assert one_sentence("") == "no message"
    assert len(one_sentence("word " * 500)) == 300
    assert one_sentence("two\n  lines") == "two lines"
