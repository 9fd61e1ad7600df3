"""How fast is the link? `torchrun --nproc-per-node=2 diagnose/ddp_bandwidth.py`"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:
    # Whoever runs this file puts its folder first, where its neighbours would shadow libraries.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from diagnose.commands.cli import door

if __name__ == "__main__":
    sys.exit(door("link", "torchrun --nproc-per-node=N diagnose/ddp_bandwidth.py"))
