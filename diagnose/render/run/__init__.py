"""What does the report on a run look like?"""

from diagnose.render.run.report import PART as PART
