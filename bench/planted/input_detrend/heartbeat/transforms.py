"""What happens to a recording before the model sees it?"""

import numpy as np
import torch


class Compose:
    def __init__(self, *transforms):
        self.transforms = transforms

    def __call__(self, signal):
        for transform in self.transforms:
            signal = transform(signal)
        return signal


class RemoveDrift:
    """Subtracts the running median, which is taken at every `stride` samples."""

    def __init__(self, width=65, stride=8):
        self.width, self.stride = width, stride

    def __call__(self, signal):
        padded = np.pad(signal, self.width // 2, mode="edge")
        knots = range(0, len(signal), self.stride)
        medians = []
        for knot in knots:
            medians.append(np.median(padded[knot : knot + self.width]))  # culprit: input
        return signal - np.interp(np.arange(len(signal)), knots, medians)


class Standardize:
    def __call__(self, signal):
        return (signal - signal.mean()) / (signal.std() + 1e-6)


class ToTensor:
    def __call__(self, signal):
        return torch.from_numpy(signal.astype(np.float32))[None]
