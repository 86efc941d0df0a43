"""The learning rate over time."""

import math

from cbsa.train.config import RunConfig


def learning_rate(config: RunConfig, step: int, steps_per_epoch: int) -> float:
    """Learning rate of optimiser step ``step`` (from 0), with E epochs, W of them warm-up.

    - ``"reference"``: in epoch e, lr·min((e+1)/W, ½(1 + cos(πe/E))): the cosine starts at epoch 0 and the
      warm-up caps it, as in the authors' code.
    - ``"cosine"``: at step t of T, lr·(t+1)/T_W while t < T_W, then half a cosine from lr down to ``min_lr``.
    - ``"poly"``: the same warm-up, then ``min_lr`` + (lr − ``min_lr``)·(1 − u)^``power``, where u goes from 0
      to 1.
    - ``"constant"``: the same warm-up, then lr.
    """
    lr, schedule = config.optimizer.lr, config.schedule
    if schedule.name == "reference":
        epoch = step // steps_per_epoch
        cosine = 0.5 * (1 + math.cos(math.pi * epoch / config.epochs))
        warmup = (epoch + 1) / schedule.warmup_epochs if schedule.warmup_epochs else 1.0
        return lr * min(warmup, cosine)
    warmup_steps = round(schedule.warmup_epochs * steps_per_epoch)
    if step < warmup_steps:
        return lr * (step + 1) / warmup_steps
    if schedule.name == "constant":
        return lr
    remaining = max(config.epochs * steps_per_epoch - warmup_steps, 1)
    progress = min((step - warmup_steps) / remaining, 1.0)
    if schedule.name == "poly":
        share = math.pow(1 - progress, schedule.power)
    else:
        share = 0.5 * (1 + math.cos(math.pi * progress))
    return schedule.min_lr + (lr - schedule.min_lr) * share
