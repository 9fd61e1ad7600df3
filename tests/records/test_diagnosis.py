"""Is the JSON documented as it is, and does `diagnose.load` read it, or say why not?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import diagnose
from diagnose.analyze.script import rules
from diagnose.records import codec
from diagnose.records.script import without_paths
from tests.support.cli import ROOT, TIMEOUT_SECONDS
from tests.support.records.script import golden_record, record
from tests.support.schema_page import make_page

PAGE = ROOT / "docs" / "json.md"


def test_the_page_says_what_the_classes_are() -> None:
    if os.environ.get("UPDATE_GOLDEN") == "1":
        PAGE.write_text(make_page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == make_page()
    assert "| `gain_ci` | 2 numbers | its 95 % interval |" in make_page()


def written(path: Path, **changes: Any) -> Path:
    content = json.loads(codec.dumps(rules.diagnose(golden_record())))
    path.write_text(json.dumps({**content, **changes}), encoding="utf-8")
    return path


def test_both_kinds_of_file_give_the_same_diagnosis(tmp_path: Path) -> None:
    expected = rules.diagnose(golden_record())
    assert diagnose.load(written(tmp_path / "why.json")) == expected
    kept = tmp_path / "script.json"
    kept.write_bytes(codec.dumps(golden_record()))
    assert diagnose.load(str(kept)) == expected
    assert diagnose.load(written(tmp_path / "newer.json", more=1)) == expected


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "why.json cannot be read: No such file"),
        (b"", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[]", "no schema number"),
        (b'{"schema": "2"}', "no schema number"),
        (b'{"schema": 1}', "older"),
        (b'{"schema": 3}', "newer"),
        (b'{"schema": 2}', r"damaged: record.sentence: missing"),
        (b'{"header": {"schema": 1}}', "older"),
        (b'{"header": {"schema": 2}}', "damaged"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(
    tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    path = tmp_path / "why.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=complaint) as raised:
        diagnose.load(path)
    assert "\n" not in str(raised.value)


def test_importing_and_loading_need_neither_torch_nor_pandas(tmp_path: Path) -> None:
    code = """
import sys
import diagnose
light = {"torch", "pandas", "matplotlib", "diagnose.records"} & set(sys.modules)
assert not light, light
print(diagnose.load(sys.argv[1]).findings[0].cause)
heavy = {"torch", "pandas", "matplotlib"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(written(tmp_path / "why.json"))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "input\n"), done.stderr


def test_a_kept_record_has_names_of_arguments_and_no_values() -> None:
    words = ("--lr", "3e-4", "--token=abc", "-pabc", "-v", "data/secret", "-5", "--", "--a=b=c")
    kept = without_paths(record(arguments=words)).arguments
    hidden = "(hidden)"
    assert kept == (
        "--lr",
        hidden,
        f"--token={hidden}",
        f"-p={hidden}",
        "-v",
        hidden,
        hidden,
        hidden,
        f"--a={hidden}",
    )
