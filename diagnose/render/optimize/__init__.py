"""What does the report on optimizations look like?"""

from diagnose.render.optimize.report import PART as PART
