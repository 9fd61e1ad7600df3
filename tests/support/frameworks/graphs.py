"""torch_geometric: a small graph network over batches of graphs."""

import kept
import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GCNConv(8, 16), GCNConv(16, 16)
        self.last = torch.nn.Linear(16, 2)

    def forward(self, x, edge_index, batch):
        x = self.first(x, edge_index).relu()
        x = self.second(x, edge_index).relu()
        return self.last(global_mean_pool(x, batch))


kept.seed()
graphs = [
    Data(x=torch.randn(10, 8), edge_index=torch.randint(0, 10, (2, 30)), y=torch.tensor([each % 2]))
    for each in range(64)
]
loader = DataLoader(graphs, batch_size=8, shuffle=True)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
losses = []
for _ in range(10):
    for batch in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(
            model(batch.x, batch.edge_index, batch.batch), batch.y
        )
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
kept.leave(losses, model)
