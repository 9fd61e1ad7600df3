"""The trail that the auditors follow: who got which score, and why."""

import hashlib
import json
from datetime import datetime, timezone

import torch

KEPT = 12  # features that are written down
MOST_BYTES = 50_000_000


class AuditTrail:
    def __init__(self, path):
        self.path = path
        self.file = path.open("w")
        self.digest = ""

    def write(self, step, numbers, features, scores):
        """A record for each application of the batch, chained by their digests."""
        when = datetime.now(timezone.utc).isoformat()
        probabilities = torch.sigmoid(scores).tolist()
        rows = zip(numbers.tolist(), features[:, :KEPT].tolist(), probabilities, strict=True)
        for number, values, probability in rows:  # culprit: host
            record = {
                "step": step,
                "application": number,
                "time": when,
                "score": round(probability, 4),
                "features": {f"f{at}": round(value, 4) for at, value in enumerate(values)},
                "previous": self.digest,
            }
            text = json.dumps(record, sort_keys=True)  # cost: host
            self.digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            self.file.write(text + "\n")
        self.file.flush()
        if self.file.tell() > MOST_BYTES:
            self.file.seek(0)
            self.file.truncate()

    def close(self):
        self.file.close()
