"""Reports of several lengths; the summary is every fourth word."""

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

PAD, END = 0, 1


class Reports(Dataset):
    def __init__(self, count, sizes):
        generator = torch.Generator().manual_seed(4)
        lengths = torch.randint(
            sizes.longest_report // 2, sizes.longest_report, (count,), generator=generator
        )
        shape = count, sizes.longest_report
        self.words = torch.randint(2, sizes.vocabulary, shape, generator=generator)
        self.lengths = lengths.tolist()

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        words = self.words[index, : self.lengths[index]]
        return {"report": words, "summary": torch.cat([words[::4], torch.tensor([END])])}


class PadReports:
    """Pads to the longest of the batch; what is padded in a summary counts for nothing."""

    def __call__(self, rows):
        reports = pad_sequence([row["report"] for row in rows], batch_first=True)
        summaries = [row["summary"] for row in rows]
        return {
            "input_ids": reports,
            "attention_mask": (reports != PAD).long(),
            "labels": pad_sequence(summaries, batch_first=True, padding_value=-100),
        }
