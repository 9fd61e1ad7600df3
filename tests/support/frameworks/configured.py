"""Settings that are code, run over the globals of the script."""

import os

import kept

steps, rate = 10, 1.0
exec(open(os.path.join(os.path.dirname(__file__), "configured_settings.py")).read())
kept.leave(*kept.train(steps, rate))
