"""stable-baselines3 on an environment of one's own."""

import gymnasium
import kept
import numpy
from stable_baselines3 import PPO


class Walk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-10, 10, (3,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.steps = numpy.zeros(3, numpy.float32), 0
        return self.at.copy(), {}

    def step(self, action):
        self.at[self.steps % 3] += 1 if action else -1
        self.steps += 1
        return self.at.copy(), float(-abs(self.at).sum()), self.steps == 20, False, {}


kept.seed()
model = PPO("MlpPolicy", Walk(), n_steps=32, batch_size=8, n_epochs=4, seed=0, device="cpu")
model.learn(192)
kept.leave([model.num_timesteps], model.policy)
