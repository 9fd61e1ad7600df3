"""Learning rates that shrink towards the embeddings."""

import re

WARM_UP_STEPS = 200


def depth_of(name, depth):
    """0 for the embeddings, one more for each layer, the head on top."""
    found = re.search(r"encoder\.layer\.(\d+)\.", name)
    if found:
        return int(found.group(1)) + 1
    return 0 if "embeddings" in name else depth + 1


def layerwise_groups(model, config):
    groups = {}
    for name, parameter in model.named_parameters():
        depth = depth_of(name, config.depth)
        decays = parameter.ndim > 1
        rate = config.lr * config.decay ** (config.depth + 1 - depth)
        group = groups.setdefault(
            (depth, decays),
            {"params": [], "lr": rate, "weight_decay": config.weight_decay if decays else 0.0},
        )
        group["params"].append(parameter)
    return list(groups.values())


def warm_up(step):
    return min(1.0, (step + 1) / WARM_UP_STEPS)
