"""Numbers that change during a run, each a pure function of where the run is."""

import math

from coscap.training.config import KlWeight, Pseudo, Schedule

START_OF_WARMUP = 1 / 25


def lr_factor(schedule: Schedule, step: int, steps: int) -> float:
    """What the learning rate is multiplied with at `step` (0-based) of `steps`; never below 0."""
    warmup = round(schedule.warmup * steps)
    if step < warmup:
        return START_OF_WARMUP + (1 - START_OF_WARMUP) * step / warmup
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    if schedule.name == "linear":
        return 1 - done
    if schedule.name == "cosine":
        return (1 + math.cos(math.pi * done)) / 2
    return 1.0


def kl_weight(weight: KlWeight, epoch: float) -> float:
    """The weight of a KL term after `epoch` epochs, a real number."""
    if epoch < weight.hold:
        return weight.first
    done = (epoch - weight.hold) / weight.epochs
    if weight.schedule == "step":
        return weight.first if done < 1 else weight.weight
    if weight.schedule == "ramp":
        risen = min(1.0, done)
    elif weight.schedule == "cyclical":
        risen = min(1.0, 2 * (done % 1.0))
    else:
        risen = 1.0
    return weight.first + (weight.weight - weight.first) * risen


def pseudo_weight(pseudo: Pseudo | None, epoch: float) -> float:
    """The paper's alpha at this moment."""
    return pseudo.weight if pseudo is not None and epoch >= pseudo.from_epoch else 0.0
