"""How do the learned prompts get into the sentence? Three ways to write them over their slots.

`block_flag` is 1 on the 2P prompt slots of a row. The second P of them follow the source
sentence, so their place differs from row to row. None of the three changes `embeds` itself.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn


class PromptEncoder(nn.Module):
    """2P learned vectors that know of each other: an embedding, a two-way LSTM, two layers."""

    def __init__(self, prompt_length: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2 * prompt_length, hidden)
        self.lstm = nn.LSTM(hidden, hidden, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Sequential(
            nn.Linear(2 * hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
        )

    def forward(self) -> Tensor:
        """(2P, H)"""
        sequence = self.embedding.weight.unsqueeze(0)
        with _full_precision_on_cpu(sequence):
            states, _ = self.lstm(sequence)
        prompts: Tensor = self.head(states.squeeze(0))
        return prompts


def _full_precision_on_cpu(tensor: Tensor) -> AbstractContextManager[object]:
    """Most CPUs cannot train an LSTM in bfloat16, which autocast would choose."""
    if tensor.device.type == "cpu":
        return torch.autocast("cpu", enabled=False)
    return nullcontext()


def loop_prompts(embeds: Tensor, block_flag: Tensor, prompts: Tensor) -> Tensor:
    """As the job was first written: one assignment per slot of every sample."""
    index = find_slots(block_flag, len(prompts))
    x = embeds.clone()
    for i in range(len(x)):
        for j in range(len(prompts)):
            x[i, index[i, j]] = prompts[j]
    return x


def scatter_prompts(embeds: Tensor, block_flag: Tensor, prompts: Tensor) -> Tensor:
    """All slots of all samples in one operation, each row in its own places."""
    index = find_slots(block_flag, len(prompts))
    index = index.unsqueeze(-1).expand(-1, -1, embeds.shape[-1])
    source = prompts.to(embeds.dtype).expand(len(embeds), -1, -1)
    return embeds.scatter(1, index, source)


def copy_prompts_as_published(embeds: Tensor, block_flag: Tensor, prompts: Tensor) -> Tensor:
    """As the fix was published: the slots of sample 0 for everyone.

    Right only if all rows of `block_flag` are equal, that is, if all sentences are equally long.
    """
    index = block_flag[0].nonzero().squeeze(-1)
    source = prompts.to(embeds.dtype).expand(len(embeds), -1, -1)
    x = embeds.clone()
    return x.index_copy_(1, index, source)


def find_slots(block_flag: Tensor, count: int) -> Tensor:
    """(B, count): the places of the prompt slots of each row, in their order."""
    return torch.nonzero(block_flag)[:, 1].view(len(block_flag), count)
