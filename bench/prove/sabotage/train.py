"""A small training script with everything that a careless change can break."""

import torch
from torch import nn

STEPS, ROWS, LENGTH, WIDTH, CLASSES = 100_000, 512, 12, 32, 8


class Prompted(nn.Module):
    """Puts trained vectors into each row, at places of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.prompts = nn.Parameter(torch.randn(2, WIDTH))
        self.body = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(64, CLASSES)

    def forward(
        self, tokens: torch.Tensor, places: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        tokens = tokens.clone()
        for row in range(len(tokens)):
            tokens[row, places[row]] = self.prompts
        hidden = self.body(tokens) * mask[..., None]
        scores: torch.Tensor = self.head(hidden.sum(1) / mask.sum(1, keepdim=True))
        return scores


torch.manual_seed(0)
tokens = torch.randn(ROWS, LENGTH, WIDTH)
labels = torch.randint(0, CLASSES, (ROWS,))
places = torch.stack([torch.randperm(LENGTH)[:2] for _ in range(ROWS)])
lengths = torch.randint(4, LENGTH, (ROWS,))
mask = (torch.arange(LENGTH) < lengths[:, None]).float()
model = Prompted()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
place = 0
for step in range(STEPS):
    rows = torch.arange(place, place + 16) % ROWS
    place += 16
    optimizer.zero_grad()
    for part in rows.chunk(2):
        scores = model(tokens[part], places[part], mask[part])
        loss = nn.functional.cross_entropy(scores, labels[part]) / 2
        loss = loss + 1e-3 * scores.square().mean()
        loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
