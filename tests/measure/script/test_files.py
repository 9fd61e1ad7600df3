"""Is everything that was there before a run the same after it, however the run writes and ends?"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from diagnose.measure.script.put_back import Restored, Watch
from tests.support.cli import ROOT
from tests.support.folders import delivered, fill, look

SECONDS = 60
# Without torch, whose own writers have their test below.
BEGIN = """
import os, sys
sys.path.insert(0, {root!r})
from diagnose.measure.script.writers import Writers
writers = Writers({folder!r})
"""


def start(watch: Watch, code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    begin = BEGIN.format(root=str(ROOT), folder=str(watch.folder))
    return subprocess.run(
        [sys.executable, "-c", begin + textwrap.dedent(code)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def run(folder: Path, code: str, keep_new: bool = False) -> Restored:
    """Run it as the child of `script` runs it, and put back as its parent does."""
    watch = Watch(folder, keep_new)
    done = start(watch, code, folder)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    restored = watch.leave()
    assert restored is not None
    assert not restored.problem
    return restored


# How it writes, and what of it must be found in the folder of the run.
WRITES = {
    "anew": ("open('best.pt', 'wb').write(b'worse')", {"best.pt": b"worse"}),
    "through a link": ("open('latest', 'w').write('worse')", {"last.pt": b"worse"}),
    "append": ("open('log.csv', 'a').write('2,0.4')", {"log.csv": b"step,loss\n1,0.5\n2,0.4"}),
    "in place": ("f = open('array.bin', 'r+b'); f.seek(9); f.write(b'x'); f.close()", None),
    "memory map": (
        "import numpy as np; a = np.memmap('array.bin', np.uint8, 'r+'); a[:] = 7; a.flush()",
        {"array.bin": b"\7" * 4096},
    ),
    "array to file": ("import numpy as np; np.zeros(9).tofile('array.bin')", None),
    "truncate": ("os.truncate('best.pt', 3)", {"best.pt": b"bes"}),
    "low level": ("os.write(os.open('best.pt', os.O_WRONLY | os.O_TRUNC), b'x')", None),
    "tmp and replace": (
        "for i in range(3): open('tmp', 'w').write(str(i)); os.replace('tmp', 'best.pt')",
        {"best.pt": b"2"},
    ),
    "fsspec": (
        "import fsspec; f = fsspec.open('file://' + os.path.abspath('best.pt'), 'wb')\n"
        "with f as file: file.write(b'worse')",
        {"best.pt": b"worse"},
    ),
    "rotate": (
        "for i in range(3):\n"
        "    os.replace('last.pt', 'epoch-1.pt'); open('last.pt', 'w').write(str(i))",
        {"last.pt": b"2", "epoch-1.pt": b"1"},
    ),
    "rename twice": (
        "os.rename('last.pt', 'x.pt'); open('x.pt', 'a').write('!'); os.rename('x.pt', 'y.pt')",
        None,
    ),
    "delete": ("os.remove('epoch-1.pt'); os.remove('latest'); os.unlink('best.pt')", {}),
    "delete and write": (
        "os.remove('best.pt'); open('best.pt', 'w').write('worse')",
        {"best.pt": b"worse"},
    ),
    "rename a folder": (
        "os.rename('old', 'older'); open('older/notes.txt', 'a').write('!')\n"
        "os.mkdir('old'); open('old/new.pt', 'w').write('n')",
        {"older/notes.txt": b"notes!", "old/new.pt": b"n"},
    ),
    "delete a folder": (
        "import shutil; shutil.rmtree('old'); os.makedirs('old/deep')\n"
        "open('old/deep/weights.pt', 'w').write('new')",
        {"old/deep/weights.pt": b"new"},
    ),
    "replace an empty folder": ("os.mkdir('t'); os.rename('t', 'empty')", None),
    "into a new folder": (
        "os.mkdir('kept'); os.rename('best.pt', 'kept/best.pt'); os.rename('kept', 'k')\n"
        "open('k/best.pt', 'w').write('worse'); open('k/n', 'w').write('n')",
        {"k/n": b"n", "k/best.pt": b"worse"},
    ),
    "to another file system": (
        "import shutil; shutil.move('old', '/dev/shm/diagnose-test-old')\n"
        "shutil.rmtree('/dev/shm/diagnose-test-old')",
        {},
    ),
    "hard link": (
        "os.link('last.pt', 'copy.pt'); open('copy.pt', 'w').write('worse')",
        {"copy.pt": b"worse"},
    ),
    "mode and times": ("os.chmod('best.pt', 0o777); os.utime('last.pt'); os.chmod('old', 0)", {}),
    "database": (
        "import sqlite3; c = sqlite3.connect('runs.db')\n"
        "c.execute('insert into runs values (1)'); c.commit(); c.close()",
        None,
    ),
    "rename that fails": (
        "import contextlib\n"
        "with contextlib.suppress(OSError): os.rename('best.pt', 'nowhere/best.pt')\n"
        "with contextlib.suppress(OSError): os.rmdir('old')\n"
        "with contextlib.suppress(OSError): os.replace('empty', 'last.pt')\n"
        "open('best.pt', 'w').write('x'); open('last.pt', 'w').write('x')\n"
        "open('old/notes.txt', 'w').write('x')",
        {"best.pt": b"x", "last.pt": b"x", "old/notes.txt": b"x"},
    ),
    "new": (
        "os.makedirs('a/b'); open('a/b/c', 'w').write('c'); os.symlink('b/c', 'a/d')\n"
        "os.rename('a', 'e'); open('f', 'w').write('f')",
        {"e/b/c": b"c", "e/d": b"c", "f": b"f"},
    ),
    "fork": (
        "import multiprocessing as mp\n"
        "def write(i): open('log.csv', 'a').write(str(i)); open(f'w{i}', 'w').write('w')\n"
        "jobs = [mp.get_context('fork').Process(target=write, args=(i,)) for i in range(4)]\n"
        "[j.start() for j in jobs]; [j.join() for j in jobs]",
        None,
    ),
    "threads": (
        "import threading\n"
        "def write(i):\n"
        "    for k in range(20): open('log.csv', 'a').write('x'); open(f't{i}-{k}', 'w').close()\n"
        "jobs = [threading.Thread(target=write, args=(i,)) for i in range(8)]\n"
        "[j.start() for j in jobs]\n"
        "for k in range(10):\n"
        "    if not os.fork(): open('log.csv', 'a').write('y'); os._exit(0)\n"
        "[j.join() for j in jobs]; [os.wait() for k in range(10)]",
        None,
    ),
    "odd names": (
        "open(b'\\xff\\xfe', 'w').write('x'); open('new\\nline', 'w').write('x')\n"
        "open('\\u00e9' * 100, 'w').write('x')",
        None,
    ),
    "killed while writing": (
        "import signal\nf = open('best.pt', 'w'); f.write('half'); f.flush()\n"
        "open('n', 'w').close(); os.kill(os.getpid(), signal.SIGKILL)",
        {"best.pt": b"half", "n": b""},
    ),
}


@pytest.mark.parametrize("keep_new", [False, True])
@pytest.mark.parametrize("how", WRITES)
def test_what_was_there_is_there_again(tmp_path: Path, how: str, keep_new: bool) -> None:
    folder = fill(tmp_path / "job")
    before = look(folder)
    code, expected = WRITES[how]
    run(folder, code, keep_new)
    after = look(folder)
    # The links still lead to one file.
    assert (folder / "best.pt").samefile(folder / "best-again.pt")
    if keep_new:
        assert {name: facts for name, facts in after.items() if name in before} == before
        return
    assert after == before
    found = delivered(folder)
    if expected is not None:
        assert found == expected


def test_without_protection_the_same_writes_do_harm(tmp_path: Path) -> None:
    folder = fill(tmp_path / "job")
    before = look(folder)
    code = "writers.stop()\n" + "\n".join(WRITES[how][0] for how in ("anew", "append", "delete"))
    assert not run(folder, code)
    assert sum(before[name] != look(folder).get(name) for name in before) >= 4
    assert delivered(folder) == {}


def test_nothing_is_left_of_a_run_that_only_reads(tmp_path: Path) -> None:
    folder = fill(tmp_path / "job")
    before = sorted(os.listdir(folder))
    code = """
    import tempfile
    open('best.pt').read()
    tempfile.mkstemp(dir=tempfile.gettempdir())
    open(os.devnull, 'w').write('x')
    os.makedirs('__pycache__', exist_ok=True)
    """
    assert not run(folder, code)
    assert sorted(os.listdir(folder)) == sorted([*before, "__pycache__"])


def test_a_process_that_multiprocessing_starts_takes_part(tmp_path: Path) -> None:
    folder = fill(tmp_path / "job")
    before = look(folder)
    (folder / "work.py").write_text("def write():\n    open('best.pt', 'w').write('x')\n")
    code = """
    import multiprocessing as mp
    sys.path.insert(0, os.getcwd())
    import work
    for method in ('spawn', 'forkserver'):
        each = mp.get_context(method).Process(target=work.write)
        each.start()
        each.join()
        assert each.exitcode == 0
    """
    run(folder, code)
    assert delivered(folder) == {"best.pt": b"x"}
    assert {name: facts for name, facts in look(folder).items() if name in before} == before


def test_the_last_of_two_watchers_puts_back(tmp_path: Path) -> None:
    folder = fill(tmp_path / "job")
    before = look(folder)
    first, second = Watch(folder, False), Watch(folder, False)
    assert start(first, WRITES["anew"][0], folder).returncode == 0
    assert start(second, "open('best.pt', 'w').write('second')", folder).returncode == 0
    assert first.leave() is None
    assert (folder / "best.pt").read_bytes() == b"second"
    assert second.leave() == Restored(1, next(folder.glob("diagnose-run-*")))
    assert look(folder) == before
    assert delivered(folder) == {"best.pt": b"second"}


def test_what_a_killed_watcher_left_is_put_back_by_the_next(tmp_path: Path) -> None:
    folder = fill(tmp_path / "job")
    before = look(folder)
    code = "\n".join(WRITES[how][0] for how in ("rotate", "rename a folder", "delete", "append"))
    killed = f"""
    import pathlib, signal
    from diagnose.measure.script.put_back import Watch
    watch = Watch(pathlib.Path({str(folder)!r}), False)
    """
    done = start(Watch(tmp_path, False), killed + "os.kill(os.getpid(), 9)", tmp_path)
    assert done.returncode == -signal.SIGKILL
    begin = BEGIN.format(root=str(ROOT), folder=str(folder / ".diagnose-aside"))
    subprocess.run([sys.executable, "-c", begin + code], cwd=folder, check=True, timeout=SECONDS)
    assert look(folder) != before
    watch = Watch(folder, False)
    assert watch.left_over.files >= 4
    assert {**look(folder), **before} == {
        **before,
        **{name: facts for name, facts in look(folder).items() if ".diagnose-aside" in name},
    }
    assert watch.leave() == Restored()
    assert look(folder) == before


def test_a_put_back_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    """Killed after every single step of it, it ends the same."""
    folder = fill(tmp_path / "job")
    before = look(folder)
    watch = Watch(folder, False)
    hows = ("rotate", "rename a folder", "delete and write", "append", "replace an empty folder")
    code = "\n".join(WRITES[how][0] for how in hows)
    assert start(watch, code, folder).returncode == 0
    killed = f"""
    import pathlib
    from diagnose.measure.script import put_back
    steps = 0
    def hear(event, arguments):
        global steps
        if event in ("os.rename", "os.truncate", "os.remove", "os.mkdir"):
            steps += 1
            if steps > limit: os._exit(9)
    limit = int(sys.argv[1])
    undo = put_back._Undo(pathlib.Path({str(folder)!r}), pathlib.Path({str(watch.folder)!r}), False)
    sys.addaudithook(hear)
    undo.all(pathlib.Path({str(watch.folder)!r}, "journal"))
    """
    text = f"import os, sys\nsys.path.insert(0, {str(ROOT)!r})\n" + textwrap.dedent(killed)
    codes = [
        subprocess.run([sys.executable, "-c", text, str(limit)], timeout=SECONDS).returncode
        for limit in (1, 2, 3, 4, 5, 1, 2, 3, 4, 5)
    ]
    assert codes[:4] == [9] * 4
    restored = watch.leave()
    assert restored is not None
    assert look(folder) == before


def test_a_folder_that_cannot_be_written_is_served_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fill(tmp_path / "job")
    (folder / ".diagnose-aside").write_text("in the way")
    before = look(folder)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    run(folder, WRITES["anew"][0])
    assert look(folder) == before
    monkeypatch.setattr("tempfile.tempdir", str(folder / "best.pt"))
    with pytest.raises(OSError, match="Not a directory"):
        Watch(folder, False)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no second file system here")
def test_a_file_of_another_file_system_is_copied_or_moved_there(tmp_path: Path) -> None:
    folder = fill(tmp_path / "job")
    other = fill(Path(f"/dev/shm/diagnose-test-{os.getpid()}/out"))
    before = look(other)
    watch = Watch(other, False)
    try:
        code = f"os.chdir({str(folder)!r}); " + WRITES["append"][0]
        there = look(folder)
        assert start(watch, code, other).returncode == 0
        assert watch.leave()
        assert look(folder) == there
        assert look(other) == before
        assert [name.split("/")[0] for name in delivered(other)] == ["outside"]
    finally:
        shutil.rmtree(other.parent)


def test_temporary_files_of_the_run_are_its_own(tmp_path: Path) -> None:
    """They are neither moved nor put back; one that becomes a checkpoint is moved."""
    folder = fill(tmp_path / "job")
    before = look(folder)
    code = """
    import shutil, tempfile
    made = tempfile.mkdtemp()
    open(made + '/a', 'w').write('a')
    os.link(made + '/a', made + '/b')
    shutil.rmtree(made)
    file, name = tempfile.mkstemp()
    os.write(file, b'worse')
    shutil.move(name, 'best.pt')
    open(tempfile.mkstemp()[1], 'w').write('left')
    """
    assert run(folder, code).files == 1
    assert look(folder) == before
    assert delivered(folder) == {"best.pt": b"worse"}
