"""What does a person read about a trace?"""

from diagnose.render.trace.report import PART as PART
