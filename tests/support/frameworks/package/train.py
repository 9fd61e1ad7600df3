"""Run as `python -m package.train`."""

import kept

from .settings import STEPS

kept.leave(*kept.train(STEPS))
