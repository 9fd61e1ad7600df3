"""Has each side its own files, with the data linked in, and is everything gone afterwards?"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from diagnose.measure.prove.sides import PREFIX, Request, open_sides
from diagnose.measure.prove.turns import find_cadence
from diagnose.measure.session import Refused
from tests.support.cli import git


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two commits of train.py; data that is ignored; a folder to start from."""
    folder = tmp_path / "project"
    (folder / "work" / "data").mkdir(parents=True)
    git(tmp_path, "init", "-q", "-b", "main", str(folder))
    (folder / ".gitignore").write_text("data/\n")
    (folder / "work" / "data" / "rows.txt").write_text("rows")
    (folder / "work" / "helper.py").write_text("A = 1\n")
    for text in ("x = 1\nfor i in range(3):\n    x += i\nprint(x)\n", "x = 4\nprint(x)\n"):
        (folder / "work" / "train.py").write_text(text)
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", "change")
    monkeypatch.chdir(folder / "work")
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as a hook that started this would leave it
    return folder


def test_two_commits_are_worktrees_with_the_data(repository: Path) -> None:
    (repository / "work" / "helper.py").write_text("A = 2\n")
    with open_sides(Request(("HEAD~1", "main"), "train.py", ("--lr", "1"))) as sides:
        before, after = sides.before, sides.after
        assert before.script.read_text().startswith("x = 1")
        assert after.script.read_text().startswith("x = 4")
        assert before.cwd.name == "work"
        assert (before.cwd / "data" / "rows.txt").read_text() == "rows"
        assert (before.cwd / "helper.py").read_text() == "A = 1\n"  # what is asked for
        assert sides.notes == (
            "the working tree has uncommitted changes, which are in neither side",
        )
        (edit,) = sides.edits
        assert (edit.before_file, edit.before_first, edit.before_last) == ("train.py", 1, 3)
        assert (edit.after_first, edit.after_last) == (1, 1)
        assert before.show("train.py") == "train.py"
        assert before.show(str(before.script)) == "train.py"
        folder = before.script.parents[2]
    assert not folder.exists()
    assert len(git_worktrees(repository)) == 1


def git_worktrees(repository: Path) -> list[str]:
    # Named, because a test sets GIT_DIR to something else.
    return git(repository, "--git-dir", ".git", "worktree", "list").splitlines()


def test_a_submodule_is_linked(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GIT_DIR")
    commit = git(repository, "rev-parse", "HEAD").strip()
    git(repository, "update-index", "--add", "--cacheinfo", f"160000,{commit},work/library")
    git(repository, "commit", "-q", "-m", "library")
    (repository / "work" / "library").mkdir()
    (repository / "work" / "library" / "own.py").write_text("A = 1\n")
    for request in (Request(("HEAD", "HEAD"), "train.py"), Request(("train.py", "train.py"))):
        with open_sides(request) as sides:
            assert (sides.before.cwd / "library" / "own.py").read_text() == "A = 1\n"


def test_two_files_are_copies_that_can_be_written(repository: Path) -> None:
    Path("other.py").write_text("x = 4\nprint(x)\nprint(2)\n")
    with open_sides(Request(("train.py", "other.py"))) as sides:
        (sides.before.cwd / "helper.py").write_text("broken")
        sides.before.script.write_text("broken")
        assert (sides.after.cwd / "helper.py").read_text() == "A = 1\n"
        assert (sides.after.cwd / "data").is_symlink()
        assert not sides.after.script.is_symlink()  # also if git does not track it
        assert sides.after.script.resolve() == sides.after.script
        assert [(e.before_file, e.after_file, e.after_first) for e in sides.edits] == [
            ("train.py", "other.py", 3)
        ]
    assert Path("helper.py").read_text() == "A = 1\n"
    assert Path("train.py").read_text().startswith("x = 4")


def test_a_script_in_a_folder_that_git_does_not_track(repository: Path) -> None:
    for name in ("one", "two"):
        folder = repository / "work" / "new" / name
        folder.mkdir(parents=True)
        (folder / "train.py").write_text(f"# {name}\n")
        (folder / "helper.py").write_text("A = 1\n")
        (folder / "rows.csv").write_text("1,2")
    with open_sides(Request(("new/one/train.py", "new/two/train.py"))) as sides:
        assert sides.after.script.resolve() == sides.after.script
        assert sides.after.show(str(sides.after.script)) == "new/two/train.py"
        (sides.after.script.parent / "helper.py").write_text("broken")
        assert (sides.after.script.parent / "rows.csv").read_text() == "1,2"
    assert (repository / "work" / "new" / "two" / "helper.py").read_text() == "A = 1\n"


def test_files_outside_any_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("here", "there"):
        (tmp_path / name / "package").mkdir(parents=True)
        (tmp_path / name / "train.py").write_text(f"# {name}\n")
        for file in ("util.py", "package/__init__.py", "package/layers.py"):
            (tmp_path / name / file).write_text(f"# {name}\n")
    (tmp_path / "here" / "package" / "loop").symlink_to("..")
    (tmp_path / "here" / "rows.csv").write_text("1,2")
    monkeypatch.chdir(tmp_path / "here")
    with open_sides(Request(("train.py", "../there/train.py"))) as sides:
        assert sides.after.script.read_text() == "# there\n"
        assert (sides.after.script.parent / "util.py").read_text() == "# there\n"
        assert (sides.after.cwd / "rows.csv").read_text() == "1,2"  # the same working directory
        layers = sides.before.script.parent / "package" / "layers.py"
        assert layers.resolve() == layers  # what is imported is named as the user knows it
        assert sides.before.show(str(layers)) == "package/layers.py"
        packaged = {"package/__init__.py", "package/layers.py"}
        assert {each.before_file for each in sides.edits} == {"train.py", "util.py", *packaged}
    (tmp_path / "there" / "train.py").write_text("# here\n")
    with open_sides(Request(("train.py", "../there/train.py"))) as sides:
        same = sides.edits[0]  # equal files have other names, and no line that differs
        assert (same.before_file, same.after_file) == ("train.py", "../there/train.py")
        assert (same.before_last, same.after_last) == (0, 0)


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        (Request(("HEAD", "nonsense"), "train.py"), "there is no commit 'nonsense'"),
        (Request(("HEAD", "HEAD~1"), "missing.py"), "HEAD has no missing.py"),
        (Request(("HEAD", "HEAD~1"), "/etc/passwd.py"), "not in the repository"),
        (Request(("train.py", "missing.py")), "there is no script missing.py"),
    ],
)
def test_what_is_not_there_is_named(repository: Path, request_: Request, complaint: str) -> None:
    with pytest.raises(Refused, match=complaint), open_sides(request_):
        pass
    assert len(git_worktrees(repository)) == 1


def test_commits_need_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(Refused, match="inside a git repository"),
        open_sides(Request(("main", "HEAD"), "train.py")),
    ):
        pass


def test_what_a_killed_run_left_is_removed(repository: Path, tmp_path: Path) -> None:
    """Its worktree too; a run that goes on keeps its own."""
    request = Request(("HEAD", "HEAD~1"), "train.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GIT_DIR")
        patch.setattr(tempfile, "tempdir", str(tmp_path))
        left = tmp_path / f"{PREFIX}left"
        left.mkdir()
        (left / "lock").touch()
        git(repository, "worktree", "add", "-q", "--detach", str(left / "before"))
        with open_sides(request) as running:
            assert not left.exists()
            with open_sides(request):
                assert running.before.script.exists()
    assert len(git_worktrees(repository)) == 1
    assert not list(tmp_path.glob(f"{PREFIX}*"))


def test_a_cadence_is_found_where_it_is_regular() -> None:
    assert find_cadence([1.0] * 20) == 1
    assert find_cadence(([1.0] * 4 + [3.0]) * 4) == 5
    assert find_cadence([1.0, 3.0, 1.0, 1.0, 3.0, 1.0, 1.0, 1.0, 1.0, 3.0, 1.0]) == 1
