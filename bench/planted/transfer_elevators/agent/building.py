"""A building with lifts: a rough simulation, good enough to learn something from."""

import numpy as np

FLOORS = 24
LIFTS = 4
ACTIONS = 3 * LIFTS  # one lift per decision: down, stay, up


class Building:
    """The observation holds the waiting people and the lifts of the last few ticks."""

    def __init__(self, seed, ticks=3):
        self.rng = np.random.default_rng(seed)
        self.ticks = ticks
        self.reset()

    @property
    def observation_size(self):
        return self.ticks * (FLOORS + LIFTS * FLOORS)

    def reset(self):
        self.waiting = np.zeros(FLOORS, dtype=np.float32)
        self.position = self.rng.integers(0, FLOORS, size=LIFTS)
        frame = self._frame()
        self.frames = [frame] * self.ticks
        self.clock = 0
        return self.observation()

    def _frame(self):
        lifts = np.zeros((LIFTS, FLOORS), dtype=np.float32)
        lifts[np.arange(LIFTS), self.position] = 1.0
        return np.concatenate([self.waiting / 4.0, lifts.ravel()])

    def observation(self):
        return np.concatenate(self.frames).astype(np.float32)

    def step(self, action):
        lift, move = divmod(action, 3)
        self.position[lift] = np.clip(self.position[lift] + move - 1, 0, FLOORS - 1)
        self.waiting[self.rng.integers(0, FLOORS)] += 1.0
        here = self.position[lift]
        reward = float(self.waiting[here]) - 0.02 * float(self.waiting.sum())
        self.waiting[here] = 0.0
        self.frames = self.frames[1:] + [self._frame()]
        self.clock += 1
        done = self.clock >= 200
        return self.observation(), reward, done
