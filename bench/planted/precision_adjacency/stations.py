"""A city: its stations, the trips between them, and what happens there hour by hour."""

from dataclasses import dataclass

import numpy as np
import torch

HOURS, FEATURES = 24, 48


@dataclass
class City:
    features: torch.Tensor
    transitions: torch.Tensor
    busy: torch.Tensor


def count_trips(stations, rng):
    """More trips between stations that are near each other."""
    places = rng.uniform(0, 10, (stations, 2))
    distance = np.linalg.norm(places[:, None] - places[None], axis=-1)
    return rng.poisson(20 * np.exp(-distance)) + np.eye(stations)


def load_city(stations, seed=0):
    rng = np.random.default_rng(seed)
    trips = count_trips(stations, rng)
    transitions = trips / trips.sum(axis=1, keepdims=True)
    features = rng.normal(size=(HOURS, stations, FEATURES))
    busy = np.abs(features[..., :4].sum(-1)) @ transitions.T
    parts = features, transitions, busy
    return City(*(torch.from_numpy(part) for part in parts))  # culprit: precision
