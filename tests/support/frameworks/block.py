"""`with diagnose.watch():` around a loop, where the first argument says so."""

import contextlib
import sys

import kept

import diagnose

watch = diagnose.watch(seconds=2, steps=60, json=sys.argv[1]) if sys.argv[1:] else None
with watch or contextlib.nullcontext():
    losses, model = kept.train()
kept.leave(losses, model)
