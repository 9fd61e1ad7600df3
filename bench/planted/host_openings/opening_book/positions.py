"""Random opening positions as planes, and the way back from planes to text."""

import numpy as np
import torch
from torch.utils.data import Dataset

PIECES = "PNBRQKpnbrqk"
FILES = "abcdefgh"
BACK_RANK = "RNBQKBNR"


def start_planes() -> np.ndarray:
    planes = np.zeros((12, 8, 8), dtype=np.float32)
    for file, piece in enumerate(BACK_RANK):
        planes[PIECES.index(piece), 0, file] = 1
        planes[PIECES.index(piece.lower()), 7, file] = 1
    planes[PIECES.index("P"), 1] = 1
    planes[PIECES.index("p"), 6] = 1
    return planes


class OpeningPositions(Dataset):
    """Pieces are shuffled around from the starting position; the label is the move that 'follows'."""

    def __init__(self, count: int, seed: int):
        rng = np.random.default_rng(seed)
        self.planes = np.repeat(start_planes()[None], count, axis=0)
        rows = np.arange(count)
        for _ in range(12):
            source, goal = rng.integers(0, 64, size=(2, count))
            flat = self.planes.reshape(count, 12, 64)
            moved = flat[rows, :, source]
            occupied = moved.sum(1) > 0
            flat[rows[occupied], :, goal[occupied]] = moved[occupied]
            clear = occupied & (source != goal)
            flat[rows[clear], :, source[clear]] = 0
        weights = rng.normal(size=(12 * 64, 64)).astype(np.float32)
        favourite = (self.planes.reshape(count, -1) @ weights).argmax(1)
        self.moves = favourite * 64 + rng.integers(0, 64, size=count)

    def __len__(self):
        return len(self.planes)

    def __getitems__(self, rows):
        rows = np.asarray(rows)
        return {
            "planes": torch.from_numpy(self.planes[rows]),
            "move": torch.from_numpy(self.moves[rows]),
        }


def same(batch):
    return batch


def move_name(move: int) -> str:
    source, goal = divmod(move, 64)
    return f"{FILES[source % 8]}{source // 8 + 1}{FILES[goal % 8]}{goal // 8 + 1}"


def piece_at(planes, rank, file):
    for plane, piece in zip(planes, PIECES):
        if plane[rank][file]:  # cost: host
            return piece
    return None


def fen(planes) -> str:
    """Forsyth-Edwards notation (board part only) of nested lists [piece][rank][file]."""
    ranks = []
    for rank in reversed(range(8)):
        text, empty = "", 0
        for file in range(8):
            piece = piece_at(planes, rank, file)
            if piece is None:
                empty += 1
                continue
            text += (str(empty) if empty else "") + piece
            empty = 0
        ranks.append(text + (str(empty) if empty else ""))
    return "/".join(ranks)
