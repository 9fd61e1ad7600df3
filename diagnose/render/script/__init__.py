"""What does a person read about their script?"""

from diagnose.render.script.report import PART as PART
