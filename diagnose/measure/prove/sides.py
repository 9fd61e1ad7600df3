"""What are the two sides? Two commits, two files, or one script with and without a change.

Each side has its own copy of the tracked files, so that neither writes into the other's, nor into
the user's; data that git does not track, and large files, are linked. Loads no torch.
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from diagnose.measure.script.put_back import Restored, Watch
from diagnose.measure.session import Refused
from diagnose.records.prove import AFTER, BEFORE, Edit

# Larger files are data, tracked or not.
LARGEST_COPIED_BYTES = 16 * 2**20
GIT_SECONDS = 600
PREFIX = "diagnose-prove-"
SUBMODULE = "160000"  # the mode that git has for it


@dataclass(frozen=True)
class Request:
    """What is to be compared, as the user named it."""

    names: tuple[str, ...]  # two commits, two files or one file
    script: str = ""  # of two commits
    arguments: tuple[str, ...] = ()
    change: str = ""


@dataclass(frozen=True)
class Copy:
    """One side on disk."""

    name: str
    title: str
    script: Path
    cwd: Path
    copies: Mapping[str, str]  # folders of the user's, and where this side has them
    aside: Path  # what a script does to a linked file is undone from here
    change: str = ""
    commit: str = ""
    tree: str = ""

    def find(self, file: Path) -> Path:
        """Where this side has a file of the user's."""
        for folder, copy in self.copies.items():
            if file.is_relative_to(folder):
                return Path(copy) / file.relative_to(folder)
        return file

    def show(self, file: str) -> str:
        """A file of this side, as the user knows it."""
        path = self.cwd / file
        for folder, copy in self.copies.items():
            if path.is_relative_to(copy):
                return os.path.relpath(Path(folder) / path.relative_to(copy))
        return file


@dataclass(frozen=True)
class Sides:
    """Both, and how their files differ."""

    before: Copy
    after: Copy
    arguments: tuple[str, ...]
    edits: tuple[Edit, ...] = ()
    notes: tuple[str, ...] = field(default=())
    left_over: Restored = field(default_factory=Restored)  # of a run that was killed
    restored: list[Restored] = field(default_factory=list)  # when these were closed

    @property
    def is_one(self) -> bool:
        """Whether both sides are the same files, so that no line can differ."""
        before, after = self.before, self.after
        same = (before.title, before.tree) == (after.title, after.tree)
        return same or bool(before.tree and before.tree == after.tree)

    def with_change(self, change: str) -> Sides:
        """Of one script: the side after has this change, which has a name."""
        title = f"{self.before.title} --with {change}"
        return replace(self, after=replace(self.after, title=title, change=change))


@contextlib.contextmanager
def open_sides(request: Request) -> Iterator[Sides]:
    """The copies, which are gone after the block, however it ends."""
    here = Path.cwd().resolve()
    root = _top(here)
    with contextlib.ExitStack() as stack:
        folder = _own_folder(stack)
        notes: list[str] = []
        commits: list[str] = []
        if request.script:
            if root is None:
                raise Refused("two commits are compared inside a git repository; this is none")
            commits = [_commit(root, each) for each in request.names]
            script = _inside(here / request.script, root)
            made = [
                stack.enter_context(_worktree(root, commit, folder / name))
                for name, commit in zip((BEFORE, AFTER), commits, strict=True)
            ]
            scripts, titles = [script, script], [*request.names]
            if _git(root, "status", "--porcelain", "--untracked-files=no"):
                notes.append("the working tree has uncommitted changes, which are in neither side")
        else:
            files = [(here / each).resolve() for each in (*request.names, request.names[-1])[:2]]
            for each in files:
                if not each.is_file():
                    raise Refused(f"there is no script {os.path.relpath(each)}")
            top = root or here
            made = [_copy_tree(top, folder / name) for name in (BEFORE, AFTER)]
            scripts, titles = [*files], [os.path.relpath(each) for each in files]
            root = top
        watch, restored = _protect(here, stack)
        trees = [_git(root, "rev-parse", f"{each}^{{tree}}").strip() for each in commits]
        copies = [
            _copy(name, title, script, here, {root: copy}, folder, watch.folder)
            for name, title, script, copy in zip(
                (BEFORE, AFTER), titles, scripts, made, strict=True
            )
        ]
        if commits:
            copies = [
                replace(copy, commit=commit, tree=tree)
                for copy, commit, tree in zip(copies, commits, trees, strict=True)
            ]
        pairs = _changed_files(root, commits) if request.script else _twin_files(scripts)
        edits = tuple(_edits(pairs, copies))
        sides = Sides(
            copies[0],
            copies[1],
            request.arguments,
            edits,
            tuple(notes),
            watch.left_over,
            restored,
        )
        yield sides.with_change(request.change) if request.change else sides


def _own_folder(stack: contextlib.ExitStack) -> Path:
    """Where the copies go; those of a run that was killed are removed, as nobody holds its lock."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/lock"):
        with contextlib.suppress(OSError), lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX))).resolve()
    held = stack.enter_context((folder / "lock").open("w"))
    fcntl.flock(held, fcntl.LOCK_EX)
    return folder


def _copy(
    name: str,
    title: str,
    script: Path,
    here: Path,
    copies: Mapping[Path, Path],
    folder: Path,
    aside: Path,
) -> Copy:
    """Where the script and the working directory are in the copy of this side."""
    (root, copied), *_ = copies.items()
    places = dict(copies)
    if not script.is_relative_to(root):  # a file from elsewhere keeps its neighbors
        home = _top(script.parent) or script.parent
        places[home] = _copy_tree(home, folder / f"{name} of elsewhere")
    home = next(each for each in places if script.is_relative_to(each))
    moved = places[home] / script.relative_to(home)
    _own(places[home], script.relative_to(home))
    if not moved.is_file():
        raise Refused(f"{title} has no {os.path.relpath(script)}")
    cwd = copied / here.relative_to(root)
    cwd.mkdir(parents=True, exist_ok=True)
    named = {str(place): str(copy) for place, copy in places.items()}
    return Copy(name, title, moved, cwd, named, aside)


def _protect(here: Path, stack: contextlib.ExitStack) -> tuple[Watch, list[Restored]]:
    """Linked files are the user's: as `script` does, they are put back at the end."""
    restored: list[Restored] = []
    try:
        watch = Watch(here, keep_new=False)
    except OSError as error:
        raise Refused(f"there is no place to keep changed files in: {error.strerror}") from None
    stack.callback(lambda: restored.extend(filter(None, [watch.leave()])))
    return watch, restored


def _inside(script: Path, root: Path) -> Path:
    script = Path(os.path.abspath(script))
    if not script.is_relative_to(root):
        raise Refused(f"{script.name} is not in the repository of the commits")
    return script


@contextlib.contextmanager
def _worktree(root: Path, commit: str, target: Path) -> Iterator[Path]:
    add = ("worktree", "add", "--detach", str(target), commit)
    try:
        _git(root, "-c", "core.hooksPath=/dev/null", *add)  # no hook of the user's is to run
        _link_rest(root, target)
        yield target
    finally:
        shutil.rmtree(target, ignore_errors=True)
        with contextlib.suppress(Refused):
            _git(root, "worktree", "prune")


def _copy_tree(root: Path, target: Path) -> Path:
    """The tracked files, or those of Python beside the script where there is no git."""
    target.mkdir()
    if _top(root) == root:
        tracked = _git(root, "ls-files", "-z").split("\0")
    else:
        tracked = [each.name for each in root.glob("*.py")]
    for name in filter(None, tracked):
        source, copy = root / name, target / name
        if not os.path.lexists(source) or (source.is_dir() and not source.is_symlink()):
            continue  # deleted, or a submodule
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not source.is_symlink() and source.stat().st_size > LARGEST_COPIED_BYTES:
            copy.symlink_to(source)
        else:
            shutil.copy2(source, copy, follow_symlinks=False)
    _link_rest(root, target)
    return target


def _link_rest(root: Path, target: Path) -> None:
    """Whatever git does not track: data, caches, environments; and other repositories inside."""
    if _top(root) == root:
        rest = _git(root, "ls-files", "-z", "--others", "--directory").split("\0")
        staged = _git(root, "ls-files", "-z", "--stage").split("\0")
        rest += [each.partition("\t")[2] for each in staged if each.startswith(SUBMODULE)]
    else:
        rest = os.listdir(root)
    for name in filter(None, rest):
        link = target / name.rstrip("/")
        if link.is_dir() and not link.is_symlink() and not any(link.iterdir()):
            link.rmdir()  # git leaves an empty folder for a submodule
        if not os.path.lexists(link) and not target.is_relative_to(root / name):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(root / name.rstrip("/"))


def _own(target: Path, script: Path) -> None:
    """The script and the files of Python beside it are the side's own, also if git has none."""
    for folder in reversed(script.parents):
        _open_link(target / folder)
    _own_python((target / script).parent, set())


def _own_python(folder: Path, known: set[Path]) -> None:
    """Also those of packages, but not of an environment."""
    for each in [*folder.iterdir()]:
        if not each.is_symlink():
            continue
        if each.is_dir():
            is_package = any(each.glob("*.py")) and not (each / "pyvenv.cfg").exists()
            if is_package and each.resolve() not in known:
                known.add(each.resolve())
                _open_link(each)
                _own_python(each, known)
        elif each.suffix == ".py" and each.is_file():
            source = each.resolve()
            each.unlink()
            shutil.copy2(source, each)


def _open_link(link: Path) -> None:
    """A folder of links instead of a link to a folder."""
    if link.is_symlink() and link.is_dir():
        linked = link.resolve()
        link.unlink()
        link.mkdir()
        for each in linked.iterdir():
            (link / each.name).symlink_to(each)


def _top(folder: Path) -> Path | None:
    """Of the repository that this folder is in."""
    with contextlib.suppress(Refused):
        return Path(_git(folder, "rev-parse", "--show-toplevel").strip()).resolve()
    return None


def _commit(root: Path, name: str) -> str:
    try:
        return _git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").strip()
    except Refused:
        raise Refused(f"there is no commit {name!r} in this repository") from None


def _git(folder: Path, *words: str) -> str:
    # Variables of a hook that started this would name another repository.
    clean = {name: each for name, each in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=folder,
            env=clean,
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise Refused("git is not installed") from None
    except subprocess.TimeoutExpired:
        raise Refused(f"git {words[0]} took over {GIT_SECONDS} s") from None
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        raise Refused(f"git {words[0]} failed: {last}") from None
    return done.stdout


def _changed_files(root: Path, commits: Sequence[str]) -> Iterator[tuple[Path, Path]]:
    for name in _git(root, "diff", "--name-only", "-z", *commits, "--", "*.py").split("\0"):
        if name:
            yield root / name, root / name


def _twin_files(scripts: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """Two files that were named are taken for one, and so are those beside them elsewhere."""
    before, after = scripts
    yield before, after
    if before.parent != after.parent:
        for file in sorted(before.parent.rglob("*.py")):
            twin = after.parent / file.relative_to(before.parent)
            if file != before and twin.is_file():
                yield file, twin


def _edits(pairs: Iterable[tuple[Path, Path]], copies: Sequence[Copy]) -> Iterator[Edit]:
    for files in pairs:
        names = [os.path.relpath(each) for each in files]
        moved = [copy.find(file) for copy, file in zip(copies, files, strict=True)]
        yield from _compare(names, moved)


def _compare(names: Sequence[str], files: Sequence[Path]) -> list[Edit]:
    try:
        before, after = (each.read_bytes() for each in files)
    except OSError:
        return []
    if before == after:
        # No line at all, but whoever compares lines must know that the files are the same.
        return [] if names[0] == names[1] else [Edit(names[0], 1, 0, names[1], 1, 0)]
    texts = [each.decode(errors="replace").splitlines() for each in (before, after)]
    matcher = difflib.SequenceMatcher(None, texts[0], texts[1], autojunk=False)
    return [
        Edit(names[0], a + 1, b, names[1], c + 1, d)
        for kind, a, b, c, d in matcher.get_opcodes()
        if kind != "equal"
    ]
