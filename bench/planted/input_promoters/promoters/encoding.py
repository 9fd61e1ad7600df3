"""Letters to numbers."""

import numpy as np


class OneHot:
    """Encodes a sequence as len(alphabet) planes; unknown letters (N) are all zero."""

    def __init__(self, alphabet: str = "ACGT"):
        self.alphabet = alphabet
        self.channels = {base: number for number, base in enumerate(alphabet)}

    def __call__(self, sequence: str) -> np.ndarray:
        planes = np.zeros((len(self.alphabet), len(sequence)), dtype=np.float32)
        for position, base in enumerate(sequence):  # culprit: input
            channel = self.channels.get(base)
            if channel is not None:
                planes[channel, position] = 1.0
        return planes

    def __repr__(self):
        return f"{type(self).__name__}({self.alphabet!r})"
