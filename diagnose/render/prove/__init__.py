"""What does a person read about a change?"""

from diagnose.render.prove.report import PART as PART
