"""Trains a small single-stage detector on made-up aerial pictures with a few boxes each."""

import argparse
import logging

import torch
from detector.boxes import make_anchors
from detector.loss import DetectionLoss
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIZE = 128
STRIDE = 8
EDGES = (16.0, 28.0, 44.0)
CLASSES = 5


class Rooftops(Dataset):
    """Pictures with bright rectangles, all made beforehand."""

    def __init__(self, count, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.pictures = torch.rand(count, 3, SIZE, SIZE, generator=generator)
        self.targets = []
        for picture in self.pictures:
            number = int(torch.randint(2, 7, (1,), generator=generator))
            corner = torch.rand(number, 2, generator=generator) * (SIZE - 50)
            edge = 14 + torch.rand(number, 2, generator=generator) * 34
            boxes = torch.cat([corner, corner + edge], dim=1)
            classes = torch.randint(1, CLASSES, (number,), generator=generator)
            for (left, top, right, bottom), kind in zip(boxes.int().tolist(), classes, strict=True):
                picture[:, top:bottom, left:right] += 0.2 * kind
            self.targets.append((boxes, classes))

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return self.pictures[index], self.targets[index]


def collate(rows):
    return torch.stack([picture for picture, _ in rows]), [target for _, target in rows]


class Detector(nn.Module):
    def __init__(self, anchors_per_cell, width=16):
        super().__init__()
        layers, channels = [], 3
        for stage in range(3):
            out = width * (stage + 1)
            layers += [nn.Conv2d(channels, out, 3, stride=2, padding=1), nn.ReLU()]
            layers += [nn.Conv2d(out, out, 3, padding=1), nn.ReLU()]
            channels = out
        self.body = nn.Sequential(*layers)
        self.scores = nn.Conv2d(channels, anchors_per_cell * CLASSES, 3, padding=1)
        self.offsets = nn.Conv2d(channels, anchors_per_cell * 4, 3, padding=1)

    def forward(self, pictures):
        features = self.body(pictures)
        scores = self.scores(features).permute(0, 2, 3, 1).reshape(len(pictures), -1, CLASSES)
        offsets = self.offsets(features).permute(0, 2, 3, 1).reshape(len(pictures), -1, 4)
        return scores, offsets


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    return parser.parse_args()


def main():
    args = parse()
    logging.basicConfig(level=logging.INFO)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Rooftops(160), args.batch_size, shuffle=True, collate_fn=collate)
    model = Detector(len(EDGES))
    criterion = DetectionLoss(make_anchors(SIZE, STRIDE, EDGES))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate, momentum=0.9)
    step = 0
    while step < args.steps:
        for pictures, targets in loader:
            scores, offsets = model(pictures)
            loss = criterion(scores, offsets, targets)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            print(f"step {step} loss {loss.item():.6f}")
            step += 1
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
