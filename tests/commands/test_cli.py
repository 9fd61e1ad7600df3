"""Wrong usage gets one sentence and exit code 2; nothing is written.

What else a workload file or a data file may do wrong is asked of its reader, in its own tests.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from diagnose.measure.machine.device import DeviceError, open_device
from diagnose.records.verbs import VERBS
from tests.support.cli import FAULTY, ROOT, diagnose, diagnose_here, start

DOORS = ("ddp_bandwidth", "ddp_scaling", "evaluate", "profile_accuracy")


@pytest.mark.parametrize(
    "words",
    [
        *(["-m", "diagnose", verb.name] for verb in VERBS),
        *([f"diagnose/{name}.py"] for name in DOORS),
    ],
)
def test_help_is_a_manual_and_loads_nothing_heavy(words: list[str]) -> None:
    done = start([sys.executable, "-X", "importtime", *words, "--help"], {})
    assert done.returncode == 0, done.stderr
    assert words[-1] in done.stdout.splitlines()[0]
    assert "exit codes:" in done.stdout
    assert "diagnose" in done.stdout.split("\n\n")[2], "an example"
    imported = re.findall(r"^import time:.*\| +(\S+)$", done.stderr, flags=re.MULTILINE)
    assert "argparse" in imported
    assert not {"torch", "pandas", "matplotlib", "transformers"} & set(imported)


def test_the_list_of_verbs_is_there_at_once() -> None:
    def seconds() -> float:
        begin = time.monotonic()
        assert start([sys.executable, "-m", "diagnose", "--help"], {}).returncode == 0
        return time.monotonic() - begin

    assert min(seconds() for _ in range(3)) < 0.5
    assert diagnose().complaint == "the following arguments are required: VERB; see --help"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--stages", "inferense"], "invalid choice: 'inferense' (choose from"),
        (["run", "--timeout", "soon"], "'soon' is not a positive number"),
        (["run", "--timeout", "-3"], "'-3' is not a positive number"),
        (["run", "--seed", "-1"], "'-1' is not a whole number of 0 or more"),
        (["run", "--quick", "--full"], "not allowed with argument"),
        (["run", "--device", "cuda:1"], "device 'cuda:1' is not available"),
        (["run", "--size", "huge"], "has no size 'huge'; it has only"),
        (["run", "--label", "../evil"], "cannot name a directory"),
        (["batch-size", "--batch-size", "0"], "'0' is not a whole number of 1 or more"),
        (["batch-size", "--max_crops_list", "-4"], "'-4' is not a whole number of 1 or more"),
        (["batch-size", "--sweep", "many"], "'many' is not a whole number of 1 or more"),
        (["batch-size", "--max-crops-list", "4"], "workload faulty has no max_crops"),
        (["optimize"], "workload faulty has nothing to try"),
        (["optimize", "--samples", "0"], "'0' is not a whole number of 1 or more"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    reports = tmp_path / "reports"
    outcome = diagnose_here(*arguments, "--workload", FAULTY, "--reports", reports)
    assert outcome.code == 2
    assert sentence in outcome.complaint
    assert not reports.exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["ddp_bandwidth.py", "--max-bytes", "much"], "'much' is not a size; write 4000000, 64M"),
        (["ddp_bandwidth.py", "--max-bytes", "12"], "'12' is below the smallest size, 1024"),
        (["ddp_bandwidth.py"], "no job to take part in: RANK, WORLD_SIZE, "),
        (["ddp_scaling.py"], "start it with torchrun --nproc-per-node=2 -m diagnose scaling"),
        (["ddp_scaling.py", "--only", "nonsense"], "invalid choice: 'nonsense'"),
    ],
)
def test_the_doors_say_what_is_wrong_too(words: list[str], sentence: str) -> None:
    done = start([sys.executable, str(ROOT / "diagnose" / words[0]), *words[1:]], {})
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("diagnose: ")
    assert sentence in line


def test_only_the_first_rank_complains() -> None:
    for rank, lines in (("0", 1), ("1", 0)):
        for words in (["link", "--timeout", "0"], ["link", "--label", "../up"]):
            place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
            outcome = diagnose_here(*words, RANK=rank, **place)
            assert outcome.code == 2
            assert len(outcome.err.splitlines()) == lines


@pytest.mark.parametrize(
    ("device", "sentence"),
    [
        ("cuda", "device 'cuda' is not available"),
        ("warp9", "sees only cpu"),
        ("cuda:1", "device 'cuda:1' is not available"),
    ],
)
def test_a_device_that_is_not_there_is_told(device: str, sentence: str) -> None:
    with pytest.raises(DeviceError, match=sentence):
        open_device(device)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    job, data = tmp_path / "job.py", tmp_path / "pairs.tsv"
    job.write_text(
        "from diagnose.workload import Network, Size, Workload\n"
        "WORKLOAD = Workload('x', {'s': Size(1, shape={'layers': [2]})}, Network(id, id), id)"
    )
    data.write_text("天地玄黄\t天地玄\n", encoding="utf-8")
    for words, sentence in (
        (["--workload", job], "shape['layers'] is a list"),
        (["--size", "tiny", "--data", data], "pairs.tsv"),
    ):
        outcome = diagnose_here("run", *words, "--reports", tmp_path / "reports")
        assert outcome.code == 2
        assert sentence in outcome.complaint


def test_a_missing_package_of_the_suite_is_named_with_the_line_that_installs_it(
    tmp_path: Path,
) -> None:
    absent = "raise ModuleNotFoundError('gone', name='transformers')\n"
    (tmp_path / "transformers.py").write_text(absent)
    words = ("run", "--workload", "bert", "--size", "tiny", "--device", "cpu")
    outcome = diagnose_here(*words, "--reports", tmp_path / "reports", PYTHONPATH=str(tmp_path))
    assert outcome.code == 2
    assert "needs the package transformers, which is not installed" in outcome.complaint
    assert 'pip install -e ".[suite]"' in outcome.complaint


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["report", "nothing"], "nothing holds no record; measure first"),
        (["report"], "reports holds no record; measure first"),
        (["scale", "--label", "x"], "x/scaling.json; measure it first: torchrun"),
    ],
)
def test_nothing_to_render_is_told_and_nothing_is_written(
    words: list[str], complaint: str, tmp_path: Path
) -> None:
    outcome = diagnose_here(*words, "--reports", tmp_path / "reports")
    assert outcome.code == 3
    assert complaint in outcome.complaint
    assert not (tmp_path / "reports").exists()
