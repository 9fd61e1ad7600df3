"""Does `script` run a script as Python does, whatever it does, and say what happened?"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from diagnose import load
from diagnose.commands.cli import main
from diagnose.commands.shared.progress import LiveLine
from diagnose.commands.shared.verdict import show_lines
from diagnose.measure.script.program import NoScript, run_program
from diagnose.records.script import CAUSES
from diagnose.render.script.terminal import Line
from tests.support.cli import command, diagnose_here, start, started
from tests.support.script_runs import write_script

TRAINING = """
import os, sys, time, torch
print("started", sys.argv[1:], __name__, os.path.basename(__file__), flush=True)
torch.set_num_threads(1)
model = torch.nn.Linear(32, 32)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
os.chdir("/")
def update():
    optimizer.zero_grad()
    model(torch.randn(8, 32)).sum().backward()
    optimizer.step()
"""


def run(*words: object, **extra: str) -> subprocess.CompletedProcess[str]:
    return start(command("script", *words), extra)


def never(error: BaseException) -> bool:
    return False


# What a machine that only renders reports has: no torch.
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from diagnose.commands.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_output_arguments_json_and_report_of_a_run(tmp_path: Path) -> None:
    code = TRAINING + "while True:\n    update()\n    time.sleep(0.02)\n"
    script, found, reports = write_script(tmp_path, code), tmp_path / "found.json", tmp_path / "r"
    options = ("--seconds", 20, "--steps", 90, "--json", found, "--label", "mine", "--reports")
    gate = ("--fail-on", "host>0.1%")
    trace = tmp_path / "steps.json.gz"
    keep = ("--keep-trace", trace)
    done = run(*gate, *keep, *options, reports, script, "--lr", "3", "--json")
    assert done.returncode == 1, done.stderr
    kept_steps = diagnose_here("trace", trace, "--json", "-")
    assert json.loads(kept_steps.out)["steps"] >= 4
    assert "diagnose: --fail-on host>0.1%: FAILED, host at " in done.stderr
    assert done.stdout == "started ['--lr', '3', '--json'] __main__ train.py\n"
    told = [each for each in done.stderr.splitlines() if each.startswith("diagnose: train.py · ")]
    assert len(told) == 1
    assert "Traceback" not in done.stderr
    diagnosis = json.loads(found.read_text())
    assert diagnosis["schema"] == 2
    assert diagnosis["step_ms"]["low"] <= diagnosis["step_ms"]["high"]
    assert diagnosis["steps"] >= 30
    causes = [each["cause"] for each in diagnosis["findings"]]
    assert causes[0] == "host"
    assert set(causes) <= set(CAUSES)
    gains = [each["gain_ms"] for each in diagnosis["findings"]]
    assert gains == sorted(gains, reverse=True)
    fields = "cause file line function gain_ms gain_ci share verified evidence advice"
    assert set(diagnosis["findings"][0]) >= set(fields.split())
    assert "unattributed" in diagnosis["phases"]
    assert diagnosis["record"]["samples"]["value"] == 8
    rate = 8e3 / diagnosis["step_ms"]["mean"]
    assert diagnosis["speed"]["samples_per_second"]["value"] == pytest.approx(rate)
    assert diagnosis["environment"]["arguments"] == ["--lr", "3", "--json"]
    assert diagnosis["environment"]["commit"]["value"] is None
    assert f" {rate:,.0f} samples/s, " in done.stderr
    assert diagnosis["worth"][0]["per_1000_steps"] == pytest.approx(gains[0])
    loaded = load(found)
    assert loaded.sentence == diagnosis["sentence"]
    kept = load(reports / "mine" / "script.json")
    assert kept.environment is not None
    assert kept.environment.arguments == ("--lr", "(hidden)", "--json")
    # The record is judged again where there is no torch, with the same result.
    report = (reports / "mine" / "report.md").read_text()
    # The terminal names the whole path; what is kept may be published.
    published = diagnosis["sentence"].replace(str(tmp_path), "…")
    assert published in report.replace("\\", "")
    assert str(tmp_path) not in (reports / "mine" / "script.json").read_text()
    for words in (["report"], ["check", "--allow-dirty"]):
        again = start([sys.executable, "-c", WITHOUT_TORCH, *words, "--reports", str(reports)], {})
        assert again.returncode == 0, again.stderr
    assert (reports / "mine" / "report.md").read_text() == report
    assert {each.name for each in (reports / "mine").iterdir()} >= {"script.json", "script.svg"}


def test_a_short_script_is_run_again_for_one_verdict(tmp_path: Path) -> None:
    script = write_script(tmp_path, TRAINING + "for _ in range(40):\n    update()\n")
    found = tmp_path / "found.json"
    done = run("--again", 2, "--json", found, script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("started") == 2
    assert done.stderr.count("diagnose: train.py · ") == 1
    told = json.loads(found.read_text())
    assert told["steps"] == 80
    assert told["notes"][0] == "2 runs are told as one"
    assert told["findings"]


def test_a_script_that_holds_every_exception_is_ended_with_its_verdict(tmp_path: Path) -> None:
    code = "while True:\n    try:\n        update()\n    except BaseException:\n        pass\n"
    script, found = write_script(tmp_path, TRAINING + code), tmp_path / "found.json"
    done = run("--seconds", 20, "--steps", 40, "--json", found, script)
    assert done.returncode == 0, done.stderr
    assert json.loads(found.read_text())["findings"]


def test_interrupt_keeps_what_is_known(tmp_path: Path) -> None:
    code = TRAINING + "for step in range(10**9):\n    update()\n    print(step, flush=True)\n"
    script, found = write_script(tmp_path, code), tmp_path / "found.json"
    with started(command("script", "--json", found, script)) as child:
        assert child.process.stdout is not None
        for line in child.process.stdout:
            if line.strip() == "30":
                break
        done = child.interrupt()
    assert (done.code, done.left) == (130, ()), done.err
    assert "Traceback" not in done.err
    told = json.loads(found.read_text())
    assert told["findings"]
    assert told["notes"][0].startswith("it was interrupted after ")


@pytest.mark.alone
def test_two_ranks_make_one_report(tmp_path: Path) -> None:
    code = """
    import time, torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        optimizer.zero_grad()
        model(torch.randn(8, 32)).sum().backward()
        optimizer.step()
        if dist.get_rank() == 1:
            time.sleep(0.02)  # here
    """
    script, found = write_script(tmp_path, code), tmp_path / "found.json"
    words = ["--seconds", "20", "--steps", "150", "--json", str(found), str(script)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    done = start([*torchrun, "-m", "diagnose", "script", *words], {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("diagnose: train.py · ") == 1
    first = json.loads(found.read_text())["findings"][0]
    assert first["cause"] == "straggler"
    assert "rank 1 takes" in first["evidence"]
    assert first["line"] == 13


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["missing.py"], "there is no script missing.py"),
        (["--label", "../x", "train.py"], "the label '../x' cannot name a directory"),
        (["--json", "train.py", "train.py"], "--json would overwrite train.py"),
        (["--json", "nowhere/found.json", "train.py"], "--json: there is no directory"),
    ],
)
def test_wrong_usage_is_one_sentence(
    capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    assert main(["script", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("diagnose: ")
    assert complaint in lines[0]


@pytest.mark.parametrize(
    ("code", "expected", "said"),
    [
        ("import sys\nsys.exit(7)\n", 7, ""),
        ("import sys\nsys.exit('no data')\n", 1, "no data"),
        ("import sys\nsys.exit()\n", 0, ""),
        ("raise SystemExit(3)\n", 3, ""),
        ("x = (\n", 1, "SyntaxError"),
        ("def f():\n    return 1 / 0\nf()\n", 1, "ZeroDivisionError: division by zero"),
    ],
)
def test_exit_code_and_errors_are_the_scripts_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: str, expected: int, said: str
) -> None:
    script = write_script(tmp_path, code)
    assert run_program(script, [], never).code == expected
    err = capsys.readouterr().err
    assert said in err
    assert "diagnose" not in err.replace(str(tmp_path), "")


def test_the_script_sees_itself_as_main(tmp_path: Path) -> None:
    write_script(tmp_path, "VALUE = 4\n", "bench.py")
    code = """
    import sys, __main__, bench
    class Here: pass
    assert __name__ == "__main__" and __main__.Here is Here and __spec__ is None
    assert sys.argv == [sys.argv[0], "a", "--b"] and sys.argv[0].endswith("train.py")
    assert bench.VALUE == 4
    assert sys.path[0] == __import__("os").path.dirname(__file__)
    """
    script = write_script(tmp_path, code)
    before = sys.argv, sys.path[:], sys.modules["__main__"]
    assert run_program(script, ["a", "--b"], never).code == 0
    sys.modules.pop("bench", None)
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before


def test_unreadable_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoScript, match="cannot read"):
        run_program(tmp_path, [], never)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_and_colors_are_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        line = LiveLine(stream)
        assert line.is_shown is (stream is terminal)
        if line.is_shown:
            line.show("trying: [x] · 3 steps · 12 s left")
        line.clear()
        show_lines([Line("a title", "title"), Line("[plain]")], stream)
    assert "trying: [x] · 3 steps" in terminal.getvalue()
    assert "\x1b[2K" in terminal.getvalue()
    assert "\x1b[1ma title" in terminal.getvalue()
    assert "[plain]" in terminal.getvalue()
    assert pipe.getvalue() == "a title\n[plain]\n"
