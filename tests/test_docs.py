"""Is what the README and docs/ say true? Links, quotes, and every command of every block."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import date, timedelta
from pathlib import Path

import pytest

from tests.support.cli import ROOT
from tests.support.documented_commands import COMMANDS, ELSEWHERE
from tests.test_workflows import find_makefile_targets

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
README_MOST_LINES = 120
# Blocks of commands are run; any other says what it is, and is only shown.
COMMAND_BLOCKS = ("", "sh")
SHOWN_BLOCKS = ("text", "python")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SECONDS = 200
# Commands at the same time; each has one thread.
AT_ONCE = 2


# What the pages are made of.


def find_commands() -> list[str]:
    """Every line of every block of commands, without comments, long ones in one piece."""
    found = []
    for page in PAGES:
        for language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
            if language in COMMAND_BLOCKS:
                whole = re.sub(r"\\\n\s*", "", block)
                lines = [re.sub(r"\s+#.*$", "", line).strip() for line in whole.splitlines()]
                found += [line for line in lines if line]
    return list(dict.fromkeys(found))


def find_words(line: str) -> set[str]:
    """What a line says, however the program is started and whatever make passes on."""
    words = shlex.split(line.replace("python -m diagnose", "diagnose"))
    passed = [each.removeprefix("ARGS=") for each in words if each.startswith("ARGS=")]
    plain = [each for each in words if not each.startswith(("ARGS=", "PYTHON="))]
    return {*plain, *shlex.split(" ".join(passed))}


def find_anchors(page: Path) -> set[str]:
    """The headings of a page, as GitHub links to them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each).strip().lower().replace(" ", "-") for each in headings}


def find_quotes(page: Path) -> list[str]:
    """Every quoted paragraph, in one line."""
    quoted = re.findall(r"(?:^> .*\n?)+", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [" ".join(each.replace("\n> ", " ").removeprefix("> ").split()) for each in quoted]


def read_rows(path: Path) -> list[list[str]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("| ") and not line.startswith("| :--")
    ]


def test_the_readme_is_short() -> None:
    assert len(PAGES[0].read_text(encoding="utf-8").splitlines()) <= README_MOST_LINES


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_links_and_pictures_exist(page: Path) -> None:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for target in LINK.findall(text):
        if "://" not in target:
            name, _, anchor = target.partition("#")
            path = (page.parent / name).resolve() if name else page
            assert path.exists(), target
            assert not anchor or anchor in find_anchors(path), target


def test_the_readme_leads_to_every_page() -> None:
    text = PAGES[0].read_text(encoding="utf-8")
    for page in PAGES[1:]:
        assert f"(docs/{page.name})" in text
        question = page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        assert question.endswith("?")
        assert f"| {question} | [{page.stem}]" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_quotes_are_what_a_report_says(page: Path) -> None:
    reports = " ".join(
        path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("reports/*/report.md"))
    )
    for quote in find_quotes(page):
        assert quote in " ".join(reports.split())


def test_the_accuracy_in_the_readme_is_that_of_the_report() -> None:
    reported = read_rows(ROOT / "reports" / "accuracy-unseen" / "report.md")
    named = [row for row in read_rows(PAGES[0]) if row[0] in {each[0] for each in reported[1:5]}]
    assert len(named) == 4
    for name, goal, *figures in named:
        rows = [row for row in reported if row[0] == name][: len(figures)]
        assert [row[1] for row in rows] == [goal] * len(figures)
        for figure, row in zip(figures, rows, strict=True):
            assert figure in row


def test_every_make_target_that_is_named_exists() -> None:
    for page in PAGES:
        named = re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.M)
        assert set(named) <= find_makefile_targets(), page.name


# Every command is run, or it is said why not.


def test_blocks_say_what_they_are() -> None:
    for page in PAGES:
        for language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
            assert language in (*COMMAND_BLOCKS, *SHOWN_BLOCKS), (page.name, block)


def test_every_command_has_a_row_and_none_is_run_for_nothing() -> None:
    documented = set(find_commands())
    assert sorted(documented - {*COMMANDS, *ELSEWHERE}) == []
    assert sorted({*COMMANDS} - documented) == []


@pytest.mark.parametrize("documented", COMMANDS)
def test_the_small_line_has_every_word_of_the_documented_one(documented: str) -> None:
    assert find_words(documented) <= find_words(COMMANDS[documented].line)


@pytest.mark.parametrize("documented", ELSEWHERE)
def test_what_is_not_run_here_is_tested_elsewhere(documented: str) -> None:
    elsewhere = ELSEWHERE[documented]
    assert elsewhere.mentions in (ROOT / elsewhere.test).read_text(encoding="utf-8")
    program, _, ours = documented.partition(".py ")
    if ours and "diagnose/" in program:
        door = ROOT / "diagnose" / f"{program.rpartition('/')[2]}.py"
        said = subprocess.run(
            [sys.executable, str(door), "--help"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        ).stdout
        for option in re.findall(r"--[\w-]+", ours):
            assert option in said


# A clone in which a reader has put their own files, and where the commands mean this Python.

TRAIN = """
import sys
import torch

model = torch.nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def make_batch():
    return torch.tensor([[float(i * j % 7) for j in range(64)] for i in range(256)])

for step in range(int(sys.argv[3]) if sys.argv[3:] else 10_000):
    model(make_batch()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
PROGRAMS = {
    "python": "",
    "diagnose": "-m diagnose",
    "torchrun": "-m torch.distributed.run",
}


def write_programs(folder: Path) -> Path:
    folder.mkdir()
    for name, words in PROGRAMS.items():
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        path.chmod(0o755)
    return folder


def write_clone(folder: Path) -> Path:
    from tests.support.model_directories import write_text_model

    folder.mkdir()
    for name in ("Makefile", "bench", "conftest.py", "diagnose", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    # Apart from reports/, where commands write at the same time.
    shutil.copytree(ROOT / "reports" / "cpu-vqa", folder / "committed" / "cpu-vqa")
    (folder / "measured" / "cpu-dgca").mkdir(parents=True)
    shutil.copy(ROOT / "reports" / "cpu-dgca" / "scaling.json", folder / "measured" / "cpu-dgca")
    shutil.copy(ROOT / "bench" / "examples" / "my_job.py", folder)
    (folder / "train.py").write_text(TRAIN)
    (folder / "sentences.tsv").write_text("我门去学校\t我们去学校\n天气很号\t天气很好\n" * 40)
    days = [date(2024, 1, 1) + timedelta(days=each) for each in range(300)]
    rows = [f"{day},{each % 7}" for each, day in enumerate(days)]
    (folder / "air.csv").write_text("\n".join(["date,pm25", *rows]) + "\n")
    (folder / "questions.jsonl").write_text('{"question": "what is this", "answer": "a cat"}\n' * 8)
    write_text_model(folder / "checkpoint")
    return folder


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clone(tmp_path_factory.mktemp("docs") / "clone")


@pytest.fixture(scope="module")
def runs(
    clone: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    """Every small line once, in the order of the table; no more are started when the tests end."""
    programs = write_programs(tmp_path_factory.mktemp("programs") / "bin")
    inherited = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    environment = {**inherited, "PATH": f"{programs}:{os.environ['PATH']}"}

    def run(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", line],
            cwd=clone,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    pool = ThreadPoolExecutor(AT_ONCE)
    lines = dict.fromkeys(small.line for small in COMMANDS.values())
    yield {line: pool.submit(run, line) for line in lines}
    pool.shutdown(cancel_futures=True)


@pytest.mark.child
@pytest.mark.parametrize("documented", COMMANDS)
def test_a_documented_command_works(
    documented: str, clone: Path, runs: dict[str, Future[subprocess.CompletedProcess[str]]]
) -> None:
    small = COMMANDS[documented]
    done = runs[small.line].result()
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert not small.leaves or list(clone.glob(small.leaves)), done.stdout
