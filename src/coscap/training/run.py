"""A run from its configuration to its folder.

RUN/
  config.yaml         the configuration, whole
  environment.json    versions and machine of each sitting
  log.jsonl           figures by name
  checkpoints/        what --resume goes on from, the last two
  best/ last/         models that `from_pretrained` loads
"""

import hashlib
import json
import os
import platform
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from coscap import __version__
from coscap.data import Prepared, open_prepared
from coscap.data.loader import Loader
from coscap.errors import UserError
from coscap.files import read_json, write_json
from coscap.models import DECODERS, KINDS, CaptionModel, ModelConfig, build_model, keep_freed_memory, preset
from coscap.training.checkpoint import checkpoints, sweep
from coscap.training.config import Pseudo, TrainConfig, differences, read_config, write_config
from coscap.training.distributed import Ranks, join
from coscap.training.interrupt import StopRequest, stop_on_signals
from coscap.training.lock import run_lock
from coscap.training.log import Log, board_class, cut_log
from coscap.training.loop import Export, RunOutcome, Trainer
from coscap.training.objective import PARTIAL, PSEUDO, REWARD, TEXT, EveryTerm, Term
from coscap.training.pieces import seed_all
from coscap.training.start import weights_to_begin_with
from coscap.training.validate import build_validator
from coscap.vision.published import Store, open_regions

FROM_DATA = (
    "vocabulary",
    "region_width",
    "classes",
    "region_words",
)  # fields of a model that follow from the data


def train_run(config: TrainConfig, out: Path, *, resume: bool = False, device: str = "auto") -> RunOutcome:
    """Train as `config` says, into the folder `out`; also one of several processes under torchrun."""
    keep_freed_memory()
    with join(device) as ranks, stop_on_signals() as stop, ExitStack() as held:
        if config.precision == "float16" and ranks.device.type != "cuda":
            raise UserError("precision: float16 needs a GPU; use bfloat16 or float32 here.")
        if config.tensorboard:
            board_class()
        _check_folder(config, out, resume)
        trainer, steps = _assemble(config, out, ranks, stop, held)
        with Log(out, steps, config.tensorboard, quiet=not ranks.first) as log:
            outcome = trainer.fit(steps, log)
            log.say(_closing(outcome, trainer, out))
        return outcome


def model_config(settings: dict[str, Any], prepared: Prepared, store: Store) -> ModelConfig:
    """The model of a configuration's `model` section, with the sizes that the data decide."""
    changes = dict(settings)
    name = changes.pop("preset", "small")
    given = [field for field in FROM_DATA if field in changes]
    if given:
        raise UserError(f"field model.{given[0]} follows from the data; remove it from the configuration.")
    sizes = {
        "vocabulary": len(prepared.vocabulary),
        "region_width": store.recipe.width,
        "classes": len(store.recipe.classes),
        "region_words": len(store.recipe.words),
    }
    return preset(str(name), **changes, **sizes)


def data_digests(prepared: Prepared, store: Store) -> dict[str, str]:
    """What a checkpoint belongs to: a vocabulary, a data set, and regions (recipe and pictures)."""
    regions = hashlib.sha256(json.dumps(store.recipe.fields(), sort_keys=True).encode())
    regions.update(np.ascontiguousarray(store.ids).tobytes())
    return {
        "vocabulary": prepared.vocabulary.digest,
        "data set": prepared.digest,
        "set of regions": regions.hexdigest(),
    }


def _check_folder(config: TrainConfig, out: Path, resume: bool) -> None:
    """See that the run folder is free, or that of this run."""
    known = out / "config.yaml"
    if known.exists() and not resume:
        raise UserError(f"{out} holds a run already; go on with --resume, or choose another --out folder.")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; choose a folder for --out.")
    if known.exists():
        changed = differences(read_config(known), config)
        if changed:
            raise UserError(
                f"field {changed[0]} differs from {known}, so the run cannot go on; "
                "leave the configuration as it was, or train into a new --out folder."
            )
    elif out.exists() and any(path.name[0] != "." for path in out.iterdir()):
        raise UserError(f"{out} is not empty and holds no run; choose another --out folder.")


def _claim(config: TrainConfig, out: Path, ranks: Ranks, held: ExitStack) -> None:
    """Make the run folder and lock it until `held` is closed. Only when all that the run needs was found, so that a
    mistake does not take its place."""
    ranks.any(False)  # all have looked before the first one writes or drops anything
    if ranks.first:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{out} cannot be made as a folder ({error.strerror}).") from None
        held.enter_context(run_lock(out))
        sweep(out)
        write_config(out / "config.yaml", config)
        _note_environment(out / "environment.json", ranks)


def _check_kind(config: TrainConfig, model: ModelConfig) -> None:
    """Refuse what this kind of model cannot learn from."""
    if config.pseudo is not None and not KINDS[model.kind].learns_from_pseudo:
        able = [name for name, kind in KINDS.items() if kind.learns_from_pseudo]
        raise UserError(
            f"field pseudo: a {model.kind} cannot learn from pseudo captions, only a {' or '.join(able)} can; "
            "leave out `pseudo`, or change model.kind."
        )
    if KINDS[model.kind].reads_text and config.text is None:
        raise UserError(
            f"field text: a {model.kind} learns from sentences without pictures too; name a file, e.g. "
            "text: {file: sentences.txt}."
        )
    if config.text is not None and not KINDS[model.kind].reads_text:
        readers = " or ".join(name for name, kind in KINDS.items() if kind.reads_text)
        raise UserError(
            f"field text: a {model.kind} cannot learn from sentences, only a {readers} can; leave out `text`, or "
            "change model.kind."
        )
    if config.reward is not None and not KINDS[model.kind].learns_from_reward:
        able = [name for name, kind in KINDS.items() if kind.learns_from_reward]
        raise UserError(
            f"field reward: a {model.kind} cannot learn from rewarded samples, only a {' or '.join(able)} can, whose "
            "log p of a caption is known; leave out `reward`, or change model.kind."
        )
    if (
        config.reward is not None
        and config.reward.word_temperature != 1
        and not KINDS[model.kind].tempers_words
    ):
        raise UserError(
            f"field reward.word_temperature is {config.reward.word_temperature:g}, and a {model.kind} draws words at "
            "1; leave it out."
        )
    if config.pseudo is not None and not DECODERS[model.decoder].attends:
        raise UserError(
            f"field pseudo: the decoder {model.decoder} looks at no region that could fill a slot; "
            "leave out `pseudo`, or set model.decoder to updown."
        )


def _assemble(
    config: TrainConfig, out: Path, ranks: Ranks, stop: StopRequest, held: ExitStack
) -> tuple[Trainer, int]:
    """Everything that a run needs, set back to its last checkpoint where there is one."""
    prepared, store = open_prepared(config.data), open_regions(config.regions)
    settings = model_config(config.model, prepared, store)
    _check_kind(config, settings)
    seed_all(config.seed, -1, 0)
    model = build_model(settings)
    model.set_names(store.recipe, prepared.classes, prepared.vocabulary)
    terms = _terms(config, prepared, store, model, new=not checkpoints(out))
    batches = _batches(config, prepared, store, ranks, model.config)
    trainer = Trainer(
        config,
        out,
        model,
        batches,
        ranks,
        data_digests(prepared, store),
        terms=terms,
        validate=build_validator(config, prepared, store, ranks.device) if ranks.first else None,
        export=_exporter(prepared, store),
        stop=stop,
    )
    if config.start is not None and not checkpoints(out):
        trainer.begin_with(
            weights_to_begin_with(
                config.start, model.config, model.state_dict(), prepared, store, config.start_anew
            )
        )
    _claim(config, out, ranks, held)
    ranks.any(False)  # the first has removed what a killed process left
    done = checkpoints(out)
    steps = trainer.restore(done[-1]) if done else _length(config, out, trainer)
    if ranks.first:
        cut_log(out, trainer.progress.step)
    return trainer, steps


def _batches(
    config: TrainConfig, prepared: Prepared, store: Store, ranks: Ranks, looks: ModelConfig
) -> Loader:
    """This process's share of each batch, with the regions that the model looks at."""
    share, rest = divmod(config.batch_size, ranks.world)
    if rest:
        raise UserError(
            f"batch_size {config.batch_size} cannot be shared evenly by {ranks.world} processes; "
            f"set it to a multiple of {ranks.world}."
        )
    return Loader(
        prepared,
        store,
        "train",
        share,
        config.seed,
        config.captions,
        rank=ranks.rank,
        world=ranks.world,
        detections=looks.detections,
        grid=looks.grid,
    )


def _terms(
    config: TrainConfig, prepared: Prepared, store: Store, model: CaptionModel, new: bool
) -> dict[str, Term]:
    """What is learnt besides the captions, by the names of its parts; a new model reads captions and text first."""
    if new:
        model.read_captions(prepared)
    found: dict[str, Term] = {}
    if config.pseudo is not None:
        found[PSEUDO] = EveryTerm(_pseudo_term(config.pseudo, prepared, store), config.pseudo.every)
    if config.text is not None:
        from coscap.training.unpaired import text_term

        found[TEXT] = text_term(config.text, prepared, store, model, new)
    if config.partial is not None:
        from coscap.training.partial import PartialTerm

        found[PARTIAL] = PartialTerm(config.partial, prepared, store)
    if config.reward is not None:
        from coscap.training.reward import RewardTerm

        found[REWARD] = RewardTerm(config.reward, prepared, store)
    return found


def _pseudo_term(pseudo: Pseudo, prepared: Prepared, store: Store) -> Term:
    from coscap.contexts.folder import open_neighbours
    from coscap.contexts.pseudo import BothTerms, NovelTerm, PseudoTerm, slot_tokens
    from coscap.contexts.slots import slot_rule

    neighbours = open_neighbours(pseudo.contexts, prepared)
    names = slot_tokens(store.recipe, prepared.classes, prepared.vocabulary)
    rule = slot_rule(pseudo.slots, pseudo.calibrate, prepared, store)
    paired = PseudoTerm(prepared, neighbours, names, pseudo.feed, pseudo.share, rule)
    if not pseudo.unpaired:
        return paired
    novel = NovelTerm(
        prepared, store, neighbours, names, pseudo.feed, pseudo.top, rule, pseudo.classes, pseudo.score
    )
    return BothTerms(paired, novel)


def _length(config: TrainConfig, out: Path, trainer: Trainer) -> int:
    """The number of steps; with `minutes` from a measurement, which is kept for a run that starts again."""
    if config.steps is not None:
        return config.steps
    if config.epochs is not None:
        return max(1, round(config.epochs * trainer.epoch_steps))
    assert config.minutes is not None
    path = out / "plan.json"
    if not path.exists():
        seconds = trainer.seconds_per_step()
        steps = max(1, round(60 * config.minutes / seconds))
        if trainer.ranks.first:
            write_json(path, {"steps": steps, "seconds_per_step": seconds}, indent=1)
        return steps
    return int(read_json(path)["steps"])


def _exporter(prepared: Prepared, store: Store) -> Export:
    """How a model is written so that `from_pretrained` loads it."""

    def export(model: nn.Module, folder: Path, notes: dict[str, Any]) -> None:
        assert isinstance(model, CaptionModel)
        model.save_pretrained(
            folder,
            vocabulary=prepared.vocabulary,
            recipe=store.recipe,
            classes=prepared.classes,
            notes=notes,
        )

    return export


def _closing(outcome: RunOutcome, trainer: Trainer, out: Path) -> str:
    progress = trainer.progress
    best = (
        "" if progress.best is None else f", that of step {progress.best_step:,}, the best, in {out / 'best'}"
    )
    return f"Training {outcome} at step {progress.step:,}; this model is in {out / 'last'}{best}."


def _note_environment(path: Path, ranks: Ranks) -> None:
    """Versions and machine of each sitting; one that changed nothing is not noted again."""
    sittings = read_json(path) if path.exists() else []
    here = _environment(ranks)
    if not sittings or sittings[-1] != here:
        write_json(path, [*sittings, here], indent=1)


def _environment(ranks: Ranks) -> dict[str, Any]:
    gpu = torch.cuda.get_device_name(ranks.device) if ranks.device.type == "cuda" else None
    return {
        "coscap": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": gpu or "cpu",
        "processes": ranks.world,
        "command": sys.argv[1:],
    }
