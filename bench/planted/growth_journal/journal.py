"""What happened during the training, in a file that a notebook can open at any time."""

import json


class Journal:
    def __init__(self, path):
        self.path = path
        self.entries = []

    def add(self, **entry):
        self.entries.append(entry)
        with self.path.open("w") as file:
            json.dump({"version": 1, "entries": self.entries}, file)  # culprit: growth
