"""sentence-transformers with a model made from a configuration, and one of its losses."""

import kept
import torch
from sentence_transformers import SentenceTransformer, losses
from sentence_transformers.models import BoW, Dense

kept.seed()
words = [f"word{number}" for number in range(50)]
bag = BoW(vocab=words, word_weights=dict.fromkeys(words, 1.0))
model = SentenceTransformer(modules=[bag, Dense(50, 16)], device="cpu")
loss_of = losses.MultipleNegativesRankingLoss(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
found = []
for step in range(80):
    pairs = [
        [
            " ".join(words[(step * row + part * 7 + each) % 50] for each in range(6))
            for row in range(8)
        ]
        for part in (0, 1)
    ]
    features = [model.tokenize(texts) for texts in pairs]
    loss = loss_of(features, torch.arange(8))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    found.append(loss.item())
kept.leave(found, model)
