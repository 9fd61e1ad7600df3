"""Pendulums on a common beam, simulated finely."""

import torch


def simulate(pendulums, count, duration=1.0, substeps=100):
    """Where they were, and where they are a second later."""
    angle = torch.randn(count, pendulums)
    speed = torch.randn(count, pendulums)
    begin = torch.cat([angle, speed], dim=1)
    h = duration / substeps
    for _ in range(substeps):
        beam = torch.sin(angle).mean(1, keepdim=True)
        speed = speed - h * (torch.sin(angle) + 0.2 * beam)
        angle = angle + h * speed
    return begin, torch.cat([angle, speed], dim=1)
