"""How good are the answers of a model? `python diagnose/evaluate.py -m DIR -d FILE.jsonl`"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:
    # Whoever runs this file puts its folder first, where its neighbours would shadow libraries.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from diagnose.commands.cli import door

if __name__ == "__main__":
    sys.exit(door("evaluate", "python diagnose/evaluate.py"))
