import torch
from sessions.shop import PAD
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)
        self.between = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(self.before(x)).view(b, t, 3, self.heads, w // self.heads).unbind(2)
        seen = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        x = x + self.merge(seen.transpose(1, 2).reshape(b, t, w))
        return x + self.feed(self.between(x))


class SASRec(nn.Module):
    """Self-attention over the clicks, scored against all articles."""

    def __init__(self, articles, longest, width=64, layers=2, heads=2):
        super().__init__()
        self.article = nn.Embedding(articles, width, padding_idx=PAD)
        nn.init.normal_(self.article.weight, std=0.05)
        self.position = nn.Parameter(torch.zeros(longest, width))
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, clicked):
        x = self.article(clicked) + self.position
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.article.weight)
