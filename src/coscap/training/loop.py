"""The training loop: one step after the other, each a function of the weights, the seed and its number.

loader ─▶ batch ─▶ pieces ─▶ objective ─▶ gradients ─▶ clip ─▶ optimiser ─▶ moving average
                                └─ loss terms by name ─▶ log
every so often:  validate ─▶ best/, last/      checkpoint ─▶ checkpoints/step-N/
"""

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from coscap.data.batch import Batch
from coscap.training.checkpoint import Progress, Tensors, load_checkpoint, save_checkpoint
from coscap.training.config import OF_LOSS, TrainConfig
from coscap.training.distributed import Ranks, use_bfloat16
from coscap.training.interrupt import StopRequest
from coscap.training.log import Log
from coscap.training.objective import Objective, Term, figures, weights_at
from coscap.training.optimiser import (
    build_optimiser,
    clip_gradients,
    moving_average,
    optimiser_tensors,
    restore_optimiser,
    set_lr,
)
from coscap.training.pieces import caption_keys, seed_all, split
from coscap.training.schedules import kl_weight, lr_factor

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
RunOutcome = Literal["finished", "stopped early", "interrupted"]


class Batches(Protocol):
    """What gives the batches of this process, epoch after epoch; one iteration is one epoch."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Batch]: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...


Validate = Callable[[nn.Module, StopRequest], dict[str, float] | None]
Export = Callable[[nn.Module, Path, dict[str, Any]], None]  # the last are notes to be kept with the model


@dataclass
class Means:
    """Sums of the loss terms since the last line of the log."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    norms: list[Tensor] = field(default_factory=list)
    captions: int = 0
    began: float = field(default_factory=time.monotonic)

    def add(self, sums: dict[str, Tensor]) -> None:
        for name, value in sums.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value


class Trainer:
    """A model on its way through `steps` steps."""

    def __init__(
        self,
        config: TrainConfig,
        run: Path,
        model: nn.Module,
        batches: Batches,
        ranks: Ranks,
        digests: dict[str, str],
        *,
        terms: Mapping[str, Term] | None = None,
        validate: Validate | None = None,
        export: Export | None = None,
        stop: StopRequest | None = None,
    ):
        self.config, self.run, self.ranks, self.digests = config, run, ranks, digests
        self.model, self.batches = model.to(ranks.device), batches
        self.validate, self.export, self.stop = validate, export, stop or StopRequest()
        self.objective = ranks.wrap(Objective(self.model, terms))
        self.optimiser = build_optimiser(config.optimiser, self.model)
        self.averaged = moving_average(self.model, config.ema_decay) if config.ema_decay else None
        self.dtype = DTYPES.get(config.precision)  # of mixed precision; None: float32 throughout
        if self.dtype == torch.bfloat16 and not use_bfloat16(ranks.device):
            self.dtype = None
        self.scaler = torch.amp.GradScaler(ranks.device.type, enabled=config.precision == "float16")
        self.epoch_steps = len(batches)
        self.progress = Progress(loader=batches.state())
        self.means = Means()
        self.saved_at = time.monotonic()

    # -- beginning and going on

    def begin_with(self, weights: Mapping[str, Tensor]) -> None:
        """Start from weights that were learnt before."""
        self.model.load_state_dict(weights)
        if self.averaged is not None:
            self.averaged = moving_average(self.model, self.config.ema_decay)

    def restore(self, checkpoint: Path) -> int:
        """Put everything back as it was; gives the planned number of steps."""
        progress, tensors, steps = load_checkpoint(checkpoint, self.digests)
        self.model.load_state_dict(tensors.model)
        restore_optimiser(self.optimiser, self.model, tensors.optimiser)
        if self.averaged is not None:
            self.averaged = moving_average(self.model, self.config.ema_decay, progress.step)
            self.averaged.module.load_state_dict(tensors.average, strict=False)  # buffers are the model's
        if progress.scale:
            self.scaler.load_state_dict(progress.scale)
        self.batches.restore(progress.loader)
        self.progress = progress
        return steps

    def save(self, steps: int) -> None:
        self.progress.scale = dict(self.scaler.state_dict())
        self.saved_at = time.monotonic()
        if self.ranks.first:
            average: dict[str, Tensor] = {}
            if self.averaged is not None:
                average |= dict(self.averaged.module.named_parameters())
            tensors = Tensors(self.model.state_dict(), optimiser_tensors(self.optimiser, self.model), average)
            save_checkpoint(self.run, self.progress, tensors, steps, self.digests)

    # -- the loop

    def fit(self, steps: int, log: Log) -> RunOutcome:
        """Train to step `steps`, or until an end is requested. All processes give the same outcome."""
        stream = self._stream()
        self.saved_at = time.monotonic()
        self.means = Means()
        log.start(self.progress.step)
        while True:
            validated = self._validation_due(steps) and not self.stop() and self._run_validation(log)
            ends = self.ranks.total(self.stop(), self._out_of_patience())  # the first process alone validates
            stopped, exhausted = (count > 0 for count in ends)
            last = stopped or exhausted or self.progress.step >= steps
            if validated or last or self._checkpoint_due():
                self.save(steps)
            if last:
                break
            self._step(next(stream), steps)
            self.progress.loader = self.batches.state()
            if self.progress.step % self.config.log_steps == 0 or self.progress.step == steps:
                log.write("train", self.progress.step, self._epoch(), self._figures(steps))
            log.tick(self.progress.step)
        stream.close()
        self._export(self.run / "last")
        if self.progress.step >= steps and not self.ranks.any(self._validation_due(steps)):
            return "finished"
        return "interrupted" if stopped else "stopped early"

    def seconds_per_step(self, tries: int = 8) -> float:
        """The speed of this machine on these data: a few steps whose gradients are thrown away."""
        start, times = self.batches.state(), []
        stream = self._stream()
        for _ in range(tries):
            began = time.monotonic()
            self._gradients(next(stream))
            self.objective.zero_grad()
            times.append(time.monotonic() - began)
        stream.close()
        self.batches.restore(start)
        self.means = Means()
        middle = sorted(times)[tries // 2]
        return self.ranks.total(middle)[0] / self.ranks.world

    def _stream(self) -> Generator[Batch, None, None]:
        while True:
            yield from self.batches

    def _step(self, batch: Batch, steps: int) -> None:
        """One update of the weights."""
        self._gradients(batch)
        self.scaler.unscale_(self.optimiser)
        self.means.norms.append(clip_gradients(self.config.clip, self.model))
        set_lr(self.optimiser, self._lr(steps))
        self.scaler.step(self.optimiser)
        self.scaler.update()
        self.optimiser.zero_grad()
        self.progress.step += 1
        if self.averaged is not None:
            self.averaged.update_parameters(self.model)

    def _gradients(self, batch: Batch) -> None:
        """The gradient of the joint batch, in `accumulate` pieces of this process's share."""
        config, ranks = self.config, self.ranks
        self.model.train()
        captions, words = ranks.total(len(batch.rows), int(batch.lengths.sum()))
        share = ranks.world / (captions if config.normalise == "caption" else words)
        weights = weights_at(config, self._epoch(), self.progress.step)
        pieces = split(batch, config.accumulate)
        for number, piece in enumerate(pieces):
            seed_all(config.seed, self.progress.step, ranks.rank * config.accumulate + number)
            keys = caption_keys(piece, config.seed, self.progress.step).to(ranks.device)
            quiet = number + 1 < len(pieces) and ranks.world > 1  # only the last piece is sent round
            with self.objective.no_sync() if quiet else nullcontext():  # type: ignore[operator]
                with self._precision():
                    total, sums = self.objective(piece.to(ranks.device), keys, weights)
                self.scaler.scale(total * share).backward()
            self.means.add(sums)
        self.means.captions += len(batch.rows)

    def _precision(self) -> Any:
        return nullcontext() if self.dtype is None else torch.autocast(self.ranks.device.type, self.dtype)

    def _lr(self, steps: int) -> float:
        return self.config.optimiser.lr * lr_factor(self.config.schedule, self.progress.step, steps)

    def _epoch(self) -> float:
        return self.progress.step / self.epoch_steps

    def _figures(self, steps: int) -> dict[str, float]:
        """The means since the last line, over all processes, in nats a caption."""
        means, self.means = self.means, Means()
        sums = self.ranks.total_tensors(means.sums | {"captions": torch.tensor(means.captions)})
        captions = float(sums.pop("captions"))
        extra = {
            "gradient_norm": float(torch.stack(means.norms).mean()),
            "lr": self._lr(steps),
            "kl_context_weight": kl_weight(self.config.kl_context, self._epoch()),
            "kl_object_weight": kl_weight(self.config.kl_object, self._epoch()),
            "captions_per_second": captions / (time.monotonic() - means.began),
        }
        return figures(sums, captions) | extra

    # -- validation

    def _validation_due(self, steps: int) -> bool:
        step, validation = self.progress.step, self.config.validation
        if validation is None or self.validate is None or self.progress.validated == step:
            return False
        every = validation.every_steps or max(1, round(validation.every_epochs * self.epoch_steps))
        return step > 0 and (step % every == 0 or step >= steps)

    def _run_validation(self, log: Log) -> bool:
        """Validate with the averaged weights where there are; keep the best. The first process does it."""
        step = self.progress.step
        if self.ranks.first and self.validate is not None:
            found = self.validate(self._best_weights(), self.stop)
            if found is None:  # broken off
                return False
            log.write("validation", step, self._epoch(), found)
            self._judge(found)
        self.progress.validated = step
        return True

    def _judge(self, found: dict[str, float]) -> None:
        assert self.config.validation is not None
        figure = self.config.validation.figure
        value = -found[figure] if figure in OF_LOSS else found[figure]
        if self.progress.best is None or value > self.progress.best:
            self.progress.best, self.progress.best_step, self.progress.stale = value, self.progress.step, 0
            if self.export is not None:
                self.export(self._best_weights(), self.run / "best", self._notes() | {"validation": found})
        else:
            self.progress.stale += 1

    def _out_of_patience(self) -> bool:
        patience = self.config.validation.patience if self.config.validation is not None else 0
        return 0 < patience <= self.progress.stale

    def _checkpoint_due(self) -> bool:
        step = self.progress.step
        minutes = (time.monotonic() - self.saved_at) / 60
        return step > 0 and (step % self.epoch_steps == 0 or minutes >= self.config.checkpoint_minutes)

    def _export(self, folder: Path) -> None:
        if self.export is not None and self.ranks.first:
            self.export(self._best_weights(), folder, self._notes())

    def _notes(self) -> dict[str, Any]:
        return {"step": self.progress.step, "epoch": self._epoch(), "seed": self.config.seed}

    def _best_weights(self) -> nn.Module:
        """The model that is validated and exported."""
        return self.model if self.averaged is None else self.averaged.module
