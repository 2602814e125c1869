"""Tune the built-in map network on the words of captions: which content words has any caption of this picture?

A run folder is that of `coscap train`: checkpoints/, log.jsonl, config.json; at its end best/ with `backbone.onnx`
(outputs `map` and `evidence`) and `words.json`. Order of the pictures, crops and flips follow from (seed, epoch,
picture), so a run that was killed goes on to the same weights.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from coscap.data.prepared import Prepared, open_prepared
from coscap.data.word_targets import SIDED_WORDS, WordTargets, choose_words, pictures_in, word_targets
from coscap.errors import UserError
from coscap.files import read_json, whole_folder, write_json
from coscap.models import keep_freed_memory
from coscap.training.checkpoint import (
    Progress,
    Tensors,
    checkpoints,
    load_checkpoint,
    save_checkpoint,
    sweep,
)
from coscap.training.distributed import use_bfloat16
from coscap.training.interrupt import stop_on_signals
from coscap.training.lock import run_lock
from coscap.training.log import Log, cut_log
from coscap.training.optimiser import moving_average, optimiser_tensors, restore_optimiser
from coscap.vision.backbone import Backbone, WordHead, WordNetwork, read_head, save_tuned
from coscap.vision.builtin import MAP_SIDE, WEIGHTS, shrunk, squash
from coscap.vision.pictures import open_picture

BANDS = ((0, 200), (200, 600), (600, 1000))  # words by frequency, for mean average precision
START_OF_WARMUP = 1 / 25


@dataclass(frozen=True)
class BackboneConfig:
    """What a run is made of; saved in its folder, and a resumed run must have the same."""

    data: str
    pictures: str
    start: str = ""  # a run whose best network this one starts with; empty: the one of the package
    words: int = 2000
    epochs: float = 2.0
    side: int = 192  # pixels of a crop
    least_crop: float = 0.7  # of the picture's area
    batch_size: int = 64
    lr: float = 5e-4
    head_lr: float = 2e-3
    weight_decay: float = 0.02
    warmup: float = 0.03
    ema_decay: float = 0.999
    frozen: int = 10  # convolutions from the picture on that keep their weights
    precision: Literal["bf16", "fp32"] = "bf16"
    limit: int = 0  # take only so many training pictures; 0 for all
    validation: int = 2000  # pictures
    validations: int = 8  # in the whole run
    seed: int = 0


class WordPictures(torch.utils.data.Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Crops of pictures with their words. An item is named by (epoch, place)."""

    def __init__(self, paths: list[Path], targets: WordTargets, config: BackboneConfig) -> None:
        self.paths, self.targets, self.config = paths, targets, config
        self.sided = np.array([word in SIDED_WORDS for word in targets.words])

    def __getitem__(self, item: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        """The crop (S, S, 3) uint8, its words (W,) and which of them count (W,)."""
        epoch, place = item
        random = np.random.default_rng((self.config.seed, epoch, place))
        picture = crop(open_picture(self.paths[place], least_side=self.config.side), random, self.config)
        counts = np.ones(len(self.sided), np.float32)
        if random.random() < 0.5:
            picture = picture[:, ::-1]
            counts[self.sided] = 0
        words = self.targets.rows(np.array([place]))[0]
        return torch.from_numpy(picture.copy()), torch.from_numpy(words), torch.from_numpy(counts)


def crop(picture: Image.Image, random: np.random.Generator, config: BackboneConfig) -> NDArray[np.uint8]:
    """A random part of at least `least_crop` of the picture, sides by up to 1 to 1.15, squashed to a square."""
    width, height = picture.size
    area = random.uniform(config.least_crop, 1.0)
    aspect = math.exp(random.uniform(-0.14, 0.14))
    w, h = min(1.0, math.sqrt(area * aspect)), min(1.0, math.sqrt(area / aspect))
    x, y = random.uniform(0, 1 - w), random.uniform(0, 1 - h)
    box = (x * width, y * height, (x + w) * width, (y + h) * height)
    size = (config.side, config.side)
    return np.asarray(picture.resize(size, Image.Resampling.BILINEAR, box=box, reducing_gap=2.0))


def tune_backbone(
    config: BackboneConfig, out: Path, *, resume: bool = False, device: str = "cpu", workers: int = 0
) -> str:
    """Run to the end, or to Ctrl-C. Gives "finished" or "interrupted"."""
    keep_freed_memory()
    data = open_prepared(config.data)
    images, paths = pictures_in(data, Path(config.pictures), "train", config.limit, config.seed)
    seen, seen_paths = pictures_in(data, Path(config.pictures), "validation", config.validation, config.seed)
    if set(images.tolist()) & set(seen.tolist()) or set(images.tolist()) & set(data.images("test").tolist()):
        raise UserError(f"{data.path}: a picture is in more than one split; make the data set anew.")
    torch.manual_seed(config.seed)
    start, words = _start(config)
    words = words or choose_words(data, images, config.words)
    targets = word_targets(data, images, words)
    precision = "bf16" if config.precision == "bf16" and use_bfloat16(torch.device(device)) else "fp32"
    backbone = Backbone(start / "backbone.onnx" if start else WEIGHTS / "pplcnetv2.onnx",
                        frozen=config.frozen, precision=precision)  # fmt: skip
    head = WordHead(backbone.width, torch.from_numpy(targets.frequencies()))
    if start:
        _restore_head(head, start)
    network = WordNetwork(backbone, head).to(device)
    run = _Run(config, out, network, data, device)
    pictures = WordPictures(paths, targets, config)
    unseen = seen_paths, word_targets(data, seen, words)
    out.mkdir(parents=True, exist_ok=True)
    with run_lock(out):
        run.open(resume)
        return run.train(pictures, unseen, workers)


class _Run:
    def __init__(
        self, config: BackboneConfig, out: Path, network: WordNetwork, data: Prepared, device: str
    ) -> None:
        self.config, self.out, self.network, self.device = config, out, network, device
        self.digests = {"data": data.digest}
        self.learnt = {name: p for name, p in network.named_parameters() if p.requires_grad}
        head = {id(p) for p in network.head.parameters()}
        groups: list[dict[str, Any]] = []
        for lr, mine in ((config.lr, False), (config.head_lr, True)):
            for decay in (True, False):
                params = [
                    p for p in self.learnt.values() if (id(p) in head) == mine and (p.ndim >= 2) == decay
                ]
                groups.append({"params": params, "lr": lr, "weight_decay": config.weight_decay * decay})
        self.lrs = [group["lr"] for group in groups]
        self.optimiser = torch.optim.AdamW(groups, fused=True)
        self.averaged = moving_average(network, config.ema_decay)
        self.progress = Progress()

    def open(self, resume: bool) -> None:
        """A new folder, or the last checkpoint of one that is there."""
        file = self.out / "config.json"
        wanted = asdict(self.config)
        if file.exists():
            if not resume:
                raise UserError(f"{self.out} holds a run already; go on with --resume or give another --out.")
            saved = read_json(file)
            other = [name for name in wanted if saved.get(name) != wanted[name]]
            if other:
                raise UserError(
                    f"{self.out} was begun with {other[0]} {saved.get(other[0])} and not {wanted[other[0]]}; "
                    "go on with the same options or give another --out."
                )
            sweep(self.out)
            found = checkpoints(self.out)
            if found:
                self.progress, tensors, _ = load_checkpoint(found[-1], self.digests)
                self.network.load_state_dict(tensors.model)
                restore_optimiser(self.optimiser, self.network, tensors.optimiser)
                self.averaged = moving_average(self.network, self.config.ema_decay, self.progress.step)
                self.averaged.module.load_state_dict(tensors.average, strict=False)
            cut_log(self.out, self.progress.step)
        else:
            self.out.mkdir(parents=True, exist_ok=True)
            write_json(file, wanted, indent=1)

    def train(self, pictures: WordPictures, unseen: tuple[list[Path], WordTargets], workers: int) -> str:
        config, progress = self.config, self.progress
        size = len(pictures.paths)
        steps = max(1, round(config.epochs * size / config.batch_size))
        every = max(1, steps // config.validations)
        saved = time.monotonic()
        with Log(self.out, steps) as log, stop_on_signals() as stop:
            log.say(f"{size:,} pictures, {len(pictures.targets.words):,} words, {steps:,} steps")
            log.start(progress.step)
            losses: list[float] = []
            for images, words, counts in self._batches(pictures, steps, workers):
                losses.append(self._step(images, words, counts, steps))
                progress.step += 1
                epoch = progress.step * config.batch_size / size
                if progress.step % 50 == 0:
                    log.write("train", progress.step, epoch, {"nats": float(np.mean(losses))})
                    losses.clear()
                if progress.step % every == 0 or progress.step == steps:
                    log.write("validation", progress.step, epoch, self.validate(*unseen))
                    self._save(steps)
                    saved = time.monotonic()
                log.tick(progress.step)
                if stop() or time.monotonic() - saved > 300:
                    self._save(steps)
                    saved = time.monotonic()
                    if stop():
                        return "interrupted"
            calibration = calibrate(*self._scores(*unseen))
            write_backbone(
                cast(WordNetwork, self.averaged.module), self.out / "best", pictures.targets, calibration
            )
            log.say(f"calibration: probability = sigmoid({calibration[0]:.3f} logit + {calibration[1]:.3f})")
        return "finished"

    def _batches(self, pictures: WordPictures, steps: int, workers: int) -> Iterator[tuple[Tensor, ...]]:
        size, batch = len(pictures.paths), self.config.batch_size

        def items() -> Iterator[list[tuple[int, int]]]:
            orders: dict[int, NDArray[np.int64]] = {}
            for step in range(self.progress.step, steps):
                row = []
                for number in range(step * batch, (step + 1) * batch):
                    epoch, place = divmod(number, size)
                    if epoch not in orders:
                        orders = {epoch: np.random.default_rng((self.config.seed, epoch)).permutation(size)}
                    row.append((epoch, int(orders[epoch][place])))
                yield row

        loader: Any = torch.utils.data.DataLoader(pictures, batch_sampler=list(items()), num_workers=workers)
        yield from loader

    def _step(self, images: Tensor, words: Tensor, counts: Tensor, steps: int) -> float:
        factor = lr_factor(self.progress.step, steps, self.config.warmup)
        for group, lr in zip(self.optimiser.param_groups, self.lrs, strict=True):
            group["lr"] = lr * factor
        logits = self.network(images.to(self.device))
        loss = nn.functional.binary_cross_entropy_with_logits(
            logits, words.to(self.device), counts.to(self.device), reduction="sum"
        ) / len(images)  # nats a picture
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.learnt.values(), 5.0)
        self.optimiser.step()
        self.averaged.update_parameters(self.network)
        return float(loss.detach())

    @torch.no_grad()
    def _scores(
        self, paths: list[Path], targets: WordTargets
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Logits (I, W) of the averaged weights at 256 pixels, and which words the captions have (I, W)."""
        logits = []
        for first in range(0, len(paths), 32):
            batch = [squash(shrunk(open_picture(path)), MAP_SIDE) for path in paths[first : first + 32]]
            scored = self.averaged.module(torch.from_numpy(np.stack(batch)).to(self.device))
            logits.append(scored.float().cpu())
        return torch.cat(logits).numpy(), targets.rows(np.arange(len(paths))) > 0

    def validate(self, paths: list[Path], targets: WordTargets) -> dict[str, float]:
        """Nats a picture, and mean average precision by bands of frequency."""
        scores, truth = self._scores(paths, targets)
        precision = average_precision(scores, truth)  # (W,)
        figures = {"nats": float(nats(scores, truth))}
        for low, high in BANDS:
            if low < len(precision) and not np.isnan(precision[low:high]).all():
                figures[f"map_{low + 1}_{high}"] = float(np.nanmean(precision[low:high]))
        return figures

    def _save(self, steps: int) -> None:
        tensors = Tensors(
            dict(self.network.state_dict()),
            optimiser_tensors(self.optimiser, self.network),
            dict(self.averaged.module.named_parameters()),
        )
        save_checkpoint(self.out, self.progress, tensors, steps, self.digests)


def write_backbone(
    network: WordNetwork, folder: Path, targets: WordTargets, calibration: tuple[float, float]
) -> None:
    """The weights as ONNX, and the words with how their evidence becomes a probability."""
    share = torch.sigmoid(network.head.mixture).tolist()
    content = {
        "words": list(targets.words),
        "mean_share": [round(each, 6) for each in share],
        "frequencies": [round(each, 6) for each in targets.frequencies().tolist()],
        "calibration": [round(each, 6) for each in calibration],
    }
    with whole_folder(folder) as partial:
        save_tuned(network, partial / "backbone.onnx")
        write_json(partial / "words.json", content)


def lr_factor(step: int, steps: int, warmup: float) -> float:
    """Linear warm-up, then a cosine to 0."""
    rising = round(warmup * steps)
    if step < rising:
        return START_OF_WARMUP + (1 - START_OF_WARMUP) * step / rising
    return (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising))) / 2


def nats(logits: NDArray[np.floating], truth: NDArray[np.bool_]) -> float:
    """What the words of a picture cost, in the mean over pictures: binary cross-entropy, summed over words."""
    signed = np.where(truth, -logits, logits).astype(np.float64)
    return float(np.logaddexp(0, signed).sum() / len(logits))


def calibrate(
    logits: NDArray[np.floating], truth: NDArray[np.bool_], rounds: int = 50
) -> tuple[float, float]:
    """Scale and shift of the logits that fit the truth best (Platt), by Newton's method with halved steps."""
    x, y = logits.ravel().astype(np.float64), truth.ravel().astype(np.float64)

    def cost(at: NDArray[np.float64]) -> float:
        z = at[0] * x + at[1]
        return float(np.mean(np.logaddexp(0, z) - y * z))

    at = np.array([1.0, 0.0])
    for _ in range(rounds):
        p = 1 / (1 + np.exp(-np.clip(at[0] * x + at[1], -50, 50)))
        slope, weight = p - y, p * (1 - p)
        gradient = np.array([np.mean(slope * x), slope.mean()])
        cross = np.mean(weight * x)
        hessian = np.array([[np.mean(weight * x * x), cross], [cross, weight.mean()]]) + 1e-9 * np.eye(2)
        change, now = np.linalg.solve(hessian, gradient), cost(at)
        while cost(at - change) > now and np.abs(change).max() > 1e-9:
            change = change / 2
        at = at - change
        if np.abs(change).max() < 1e-7:
            break
    return float(at[0]), float(at[1])


def average_precision(scores: NDArray[np.floating], truth: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(W,) of each word over pictures, nan where no picture has it. scores: (I, W), truth: (I, W)"""
    order = np.argsort(-scores, axis=0, kind="stable")
    found = np.take_along_axis(truth, order, axis=0)  # (I, W) best score first
    hits = found.cumsum(axis=0)
    precision = hits / np.arange(1, len(found) + 1)[:, None]
    total = hits[-1]
    with np.errstate(invalid="ignore"):
        return np.where(total > 0, (precision * found).sum(axis=0) / np.maximum(total, 1), np.nan)


def _start(config: BackboneConfig) -> tuple[Path | None, tuple[str, ...]]:
    if not config.start:
        return None, ()
    folder = Path(config.start)
    folder = folder / "best" if (folder / "best").is_dir() else folder
    return folder, tuple(read_json(folder / "words.json")["words"])


def _restore_head(head: WordHead, folder: Path) -> None:
    weight, bias = read_head(folder / "backbone.onnx")
    share = torch.tensor(read_json(folder / "words.json")["mean_share"])
    with torch.no_grad():
        head.weight.copy_(weight)
        head.bias.copy_(bias)
        head.mixture.copy_(torch.logit(share.clamp(1e-4, 1 - 1e-4)))
