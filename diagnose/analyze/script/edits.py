"""Which mechanical edit follows from a finding? One line of the script, before and after."""

from __future__ import annotations

import re

from diagnose.records.script import Cause, ScriptRecord, Site

_LAST_PARENTHESIS = re.compile(r"\)([^)\w]*)$")


def find_edit(cause: Cause, site: Site, advice: str, record: ScriptRecord) -> tuple[str, ...]:
    """The line as it stands and as it should; empty where no edit is that simple."""
    if cause == "optimizer":
        form = re.search(r"\b(fused|foreach)=True", advice)
        return _changed(site, _with_option(site.code, form.group())) if form else ()
    loader = record.loaders[0] if record.loaders else None
    if cause == "input" and loader is not None and loader.site is not None:
        workers = re.search(r"num_workers=\d+", advice)
        if workers and "DataLoader(" in loader.site.code:
            return _changed(loader.site, _with_option(loader.site.code, workers.group()))
    if cause == "sync":
        return _changed(site, re.sub(r"(\+=\s*[\w.]+)\.item\(\)", r"\1.detach()", site.code))
    return ()


def _changed(site: Site, code: str) -> tuple[str, ...]:
    if not code or code == site.code:
        return ()
    return f"{site.file}:{site.line}", f"- {site.code}", f"+ {code}"


def _with_option(code: str, option: str) -> str:
    """In a call that stands on one line."""
    name = option.partition("=")[0]
    others = ("fused", "foreach") if name in ("fused", "foreach") else (name,)
    for each in others:
        present = re.search(rf"\b{each}=[\w.]+", code)
        if present:
            return code[: present.start()] + option + code[present.end() :]
    if code.count("(") != code.count(")") or not _LAST_PARENTHESIS.search(code):
        return ""
    comma = "" if re.search(r"\(\s*\)[^)\w]*$", code) else ", "
    return _LAST_PARENTHESIS.sub(rf"{comma}{option})\1", code)
