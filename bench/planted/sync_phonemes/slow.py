"""Phoneme recogniser: dilated convolutions over filterbank frames, trained with CTC."""

import os
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

BLANK = 0
PHONEMES = 40


@dataclass
class Settings:
    steps: int = int(os.environ.get("STEPS", 15_000))
    batch: int = 24
    frames: int = 320  # before subsampling by two
    bands: int = 40
    width: int = 48
    lr: float = 1e-3
    seed: int = 29


class Speech:
    """Utterances: every phoneme has a spectrum and lasts for a few frames."""

    def __init__(self, s: Settings, utterances=400):
        g = torch.Generator().manual_seed(s.seed)
        spectra = torch.randn(PHONEMES, s.bands, generator=g)
        self.length = torch.randint(15, 29, (utterances,), generator=g)
        self.phonemes = torch.randint(1, PHONEMES, (utterances, 28), generator=g)
        which = torch.arange(s.frames) * self.length[:, None] // s.frames
        self.frames = spectra[self.phonemes.gather(1, which)]
        self.frames += 0.7 * torch.randn(self.frames.shape, generator=g)
        self.order = g

    def batch(self, size):
        rows = torch.randint(0, len(self.frames), (size,), generator=self.order)
        return self.frames[rows], self.phonemes[rows], self.length[rows]


class Recogniser(nn.Module):
    def __init__(self, s: Settings):
        super().__init__()
        self.ear = nn.Sequential(
            nn.Conv1d(s.bands, s.width, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv1d(s.width, s.width, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(s.width, s.width, 5, padding=8, dilation=4),
            nn.ReLU(),
        )
        self.out = nn.Linear(s.width, PHONEMES)

    def forward(self, frames):
        hidden = self.ear(frames.transpose(1, 2)).transpose(1, 2)
        return self.out(hidden).log_softmax(-1)


class GreedyDecoder:
    """Best phoneme per frame, repetitions merged, blanks removed; and how sure we were."""

    def __call__(self, log_probs, lengths):
        score, best = log_probs.max(-1)
        decoded = []
        for u, length in enumerate(lengths):
            previous, spoken, sure = BLANK, [], 0.0
            for t in range(length):
                phoneme, logp = best[u, t].item(), score[u, t].item()  # culprit: sync
                sure += logp
                if phoneme != previous and phoneme != BLANK:
                    spoken.append(phoneme)
                previous = phoneme
            decoded.append((spoken, sure / length))
        return decoded


class LengthError:
    """Cheap stand-in for the phoneme error rate: are we saying about the right amount?"""

    def __init__(self, decoder):
        self.decoder = decoder
        self.average = None
        self.sure = 0.0

    def update(self, log_probs, lengths, wanted):
        decoded = self.decoder(log_probs, lengths)
        spoken = [len(phonemes) for phonemes, _ in decoded]
        self.sure = sum(sure for _, sure in decoded) / len(decoded)
        error = sum(abs(a - b) for a, b in zip(spoken, wanted)) / sum(wanted)
        self.average = error if self.average is None else 0.95 * self.average + 0.05 * error
        return self.average


def main():
    s = Settings()
    torch.manual_seed(s.seed)
    speech, model = Speech(s), Recogniser(s)
    optimizer = torch.optim.Adam(model.parameters(), lr=s.lr)
    metric = LengthError(GreedyDecoder())
    lengths = [s.frames // 2] * s.batch
    frame_lengths = torch.tensor(lengths)

    for step in range(s.steps):
        frames, phonemes, count = speech.batch(s.batch)
        log_probs = model(frames)
        loss = F.ctc_loss(log_probs.transpose(0, 1), phonemes, frame_lengths, count, blank=BLANK)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        error = metric.update(log_probs.detach(), lengths, count.tolist())
        print(f"step {step} ctc {loss.item():.6f} length error {error:.3f} sure {metric.sure:.3f}")


if __name__ == "__main__":
    main()
