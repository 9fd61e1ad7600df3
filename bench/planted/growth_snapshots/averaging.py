"""The uniform average of all weights that a training run has passed through."""

import logging

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

log = logging.getLogger(__name__)


class WeightAverage:
    """Follows a student and loads the mean of its weights so far into a teacher."""

    def __init__(self, student, teacher, start=0):
        self.student = student
        self.teacher = teacher
        self.start = start
        self.seen = 0
        self.snapshots = []
        for parameter in teacher.parameters():
            parameter.requires_grad_(False)

    @torch.no_grad()
    def update(self):
        self.seen += 1
        if self.seen <= self.start:
            return
        weights = parameters_to_vector(self.student.parameters()).clone()
        self.snapshots.append(weights)  # culprit: growth
        average = torch.stack(self.snapshots).mean(dim=0)  # cost: growth
        vector_to_parameters(average, self.teacher.parameters())

    @torch.no_grad()
    def distance(self):
        """How far the student is from its average."""
        student = parameters_to_vector(self.student.parameters())
        return (student - parameters_to_vector(self.teacher.parameters())).norm().item()
