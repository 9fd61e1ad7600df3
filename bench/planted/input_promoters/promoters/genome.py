"""A made-up genome with motifs in it, and the windows around transcription start sites."""

import numpy as np

COMPLEMENT = str.maketrans("ACGTN", "TGCAN")
TATA, CAAT = "TATAAAAG", "GGCCAATCT"


def reverse_complement(sequence: str) -> str:
    return sequence.translate(COMPLEMENT)[::-1]


class Genome:
    """One chromosome as a string; sites are the middles of the windows that we cut out."""

    def __init__(self, length: int, sites: int, window: int, seed: int):
        rng = np.random.default_rng(seed)
        letters = rng.choice(np.frombuffer(b"ACGT", dtype=np.uint8), size=length)
        letters[rng.integers(0, length, size=length // 500)] = ord("N")  # assembly gaps
        self.window = window
        self.sites = rng.integers(window, length - window, size=sites)
        self.activity = rng.normal(0, 0.3, size=sites).astype(np.float32)
        tata = np.frombuffer(TATA.encode(), dtype=np.uint8)
        caat = np.frombuffer(CAAT.encode(), dtype=np.uint8)
        for number, site in enumerate(self.sites):
            if number % 2:
                letters[site - 30 : site - 30 + len(tata)] = tata
                self.activity[number] += 1.0
            if number % 3 == 0:
                letters[site - 80 : site - 80 + len(caat)] = caat
                self.activity[number] += 0.5
        self.sequence = letters.tobytes().decode("ascii")

    def around(self, number: int, shift: int = 0) -> str:
        start = int(self.sites[number]) - self.window // 2 + shift
        return self.sequence[start : start + self.window]
