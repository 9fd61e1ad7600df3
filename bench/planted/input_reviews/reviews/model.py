"""An encoder with a mean on top, as a LightningModule."""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F

from reviews.tokenizer import PAD


class ReviewModule(L.LightningModule):
    def __init__(self, vocabulary, width, layers, max_length, lr):
        super().__init__()
        self.lr = lr
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.positions = nn.Parameter(torch.randn(max_length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 5)

    def forward(self, ids):
        padding = ids == PAD
        states = self.encoder(self.tokens(ids) + self.positions, src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(-1)
        return self.head((states * kept).sum(1) / kept.sum(1))

    def training_step(self, batch, batch_idx):
        ids, stars = batch
        return F.cross_entropy(self(ids), stars)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)
