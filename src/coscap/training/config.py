"""What a training run is: one frozen record, read from YAML, checked once, saved with the run.

The sentence under each field is its help (`coscap train --fields`).
"""

import difflib
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from coscap.errors import UserError
from coscap.files import read_yaml, write_text


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Optimiser(Section):
    name: Literal["sgd", "adamw"] = "adamw"
    """`sgd` (the paper's) or `adamw`."""
    lr: PositiveFloat = 1e-3
    """The highest learning rate; the schedule scales it. The paper's for sgd is 0.015."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum of sgd."""
    betas: tuple[float, float] = (0.9, 0.99)
    """Decay rates of adamw's two averages."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Sgd decays every parameter (as the paper, 0.001), adamw matrices only."""


class Schedule(Section):
    name: Literal["constant", "linear", "cosine"] = "cosine"
    """How the learning rate falls after the warm-up: not at all, in a line to 0, along a cosine to 0.

    `cosine` with `warmup: 0.3` is a one-cycle schedule.
    """
    warmup: float = Field(default=0.0, ge=0, lt=1)
    """The part of the whole run in which the learning rate rises in a line from a 25th of itself."""


class Clip(Section):
    norm: PositiveFloat = 12.5
    """The greatest norm of the gradient; a longer one is scaled down to it."""
    scope: Literal["global", "module"] = "global"
    """`global`: one norm over all parameters. `module`: one for each top module (the released code)."""


class KlWeight(Section):
    schedule: Literal["constant", "step", "ramp", "cyclical"] = "constant"
    """`constant`: `weight` throughout. `step`: `first` for `epochs`, then `weight`. `ramp`: in a line from
    `first` to `weight` over `epochs`. `cyclical`: the ramp again every `epochs`, held for its second half.
    """
    weight: float = Field(default=1.0, ge=0)
    """The weight that is reached; 1 is the evidence lower bound (eq. 6)."""
    first: float = Field(default=0.0, ge=0)
    """The weight at the beginning of a step, a ramp or a cycle."""
    epochs: PositiveFloat = 1.0
    """How long the step, the ramp or one cycle lasts, in epochs; fractions are allowed."""
    hold: float = Field(default=0.0, ge=0)
    """Epochs during which the weight stays `first` before anything else begins."""


class Pseudo(Section):
    contexts: Path
    """The folder with the neighbours of each picture, made by `coscap contexts`."""
    weight: float = Field(default=0.2, ge=0, le=1)
    """The paper's alpha: the objective is (1 - alpha) L + alpha L^ (appendix A)."""
    share: float = Field(default=1.0, gt=0, le=1)
    """The part of the captions that are given a pseudo caption in a step. They count for the others too, so the
    objective is the same on average, and a small share makes the step cheap: 1 doubles its time."""
    every: PositiveInt = 1
    """Only one step in so many has pseudo captions; they count for the other steps too. Slots are filled word by word,
    which takes as long for few captions as for many: `every: 4` is far cheaper than `share: 0.25`."""
    kl: float = Field(default=1.0, ge=0)
    """The factor on the KL term of L^, on top of kl_context; the released code has 0.75."""
    unpaired: bool = False
    """Also learn from the pictures of the split `unpaired`, which nobody captioned: novel objects."""
    top: PositiveInt = 5
    """The weaker posterior of those pictures reads this many detected classes (the paper's C_k)."""
    from_epoch: float = Field(default=0.0, ge=0)
    """Epochs of paired training before the pseudo term comes in; the released code has 1."""
    feed: Literal["filled", "neighbour"] = "filled"
    """What the decoder reads after a slot: the object filled in, or the neighbour's own word (released code)."""
    slots: Literal["attention", "balanced", "inverse", "fitting"] = "attention"
    """What fills a slot: `attention`, the region with the most attention x score. `inverse`: that times how rarely its
    class is detected. `fitting`: that times how much more often its class than others stands between the words beside
    the slot. `balanced`: one of the detected classes, drawn by score, whatever is attended to."""
    calibrate: bool = False
    """Compare scores after a calibration for each class, fitted on which detections training captions name."""
    classes: tuple[str, ...] = ()
    """With `unpaired`: learn from pictures that show one of these classes, from each equally often, in captions that
    name it in the slot that fits it best; empty: from all pictures, whatever they name."""
    score: float = Field(default=0.5, ge=0, le=1)
    """The score from which a picture shows one of these classes."""


class Text(Section):
    file: Path
    """Sentences without pictures, for a dcc or noc: a text file, one a line, or captions as COCO has them (JSON)."""
    weight: float = Field(default=1.0, gt=0)
    """Weight of their loss beside the captions'. As many sentences as captions are read in a step."""
    vectors: Path | None = None
    """A file of word vectors, a word and its numbers a line (as GloVe's); none: they are counted in sentences and
    captions."""


class Partial(Section):
    constraints: int = Field(default=2, ge=1, le=4)
    """How many of the surest classes of a picture its completed caption must name."""
    classes: tuple[str, ...] = ()
    """The classes that are asked for, such as those that no caption names; empty: all that the detector knows."""
    score: float = Field(default=0.5, ge=0, le=1)
    """The score from which a class is sure. A picture without any is not learnt from."""
    num_beams: PositiveInt = 3
    """Beams for each state of the constraints."""
    share: float = Field(default=0.25, gt=0, le=1)
    """Pictures of the split `unpaired` in a step, for each caption of the batch."""
    weight: float = Field(default=1.0, gt=0)
    """Weight of the completed captions' loss beside the paired captions'."""
    from_epoch: float = Field(default=1.0, ge=0)
    """Epochs of paired training before captions are completed: a model must be able to write first."""


class Reward(Section):
    captions: Path | None = None
    """Pseudo captions of pictures of the split `unpaired`, as `coscap sample` writes them; none: only pictures with
    captions are sampled."""
    novel: float = Field(default=0.5, ge=0, le=1)
    """With `captions`: the part of the pictures that are drawn from those with pseudo captions."""
    share: float = Field(default=0.25, gt=0, le=1)
    """Pictures in a step, for each caption of the batch."""
    draws: int = Field(default=5, ge=2)
    """Captions sampled of each picture."""
    baseline: Literal["mean", "greedy"] = "mean"
    """What a reward is compared with: the picture's other samples, or its greedy caption."""
    cider: float = Field(default=1.0, ge=0)
    """Weight of CIDEr-D in the reward."""
    f1: float = Field(default=1.0, ge=0)
    """Weight of the F1 of the classes that a caption names, against those that the detector is sure of."""
    classes: tuple[str, ...] = ()
    """The classes that count for F1, such as those that no caption names; empty: all that the detector knows."""
    score: float = Field(default=0.5, ge=0, le=1)
    """The score from which a class is sure."""
    invented: float = Field(default=0.0, ge=0)
    """What each class costs that a caption names, that no reference names and that the detector is not sure of."""
    unsaid: float = Field(default=0.0, ge=0)
    """What each content word costs that no reference has: neither it, nor its stem, nor another word of its class."""
    soft_best: float | None = Field(default=None, gt=0)
    """None: the mean reward of a picture's samples is raised. A number tau: tau log mean exp(r / tau), which is nearer
    to the best of them the smaller it is, so that samples which differ are worth more than one that is repeated."""
    unlike: float = Field(default=0.0, ge=0)
    """Weight of how unlike a picture's samples are: mean over pairs of 1 - the Jaccard overlap of their word pairs."""
    temperature: float = Field(default=1.0, gt=0)
    """Of the latents as they are drawn."""
    word_temperature: float = Field(default=1.0, gt=0)
    """Of the words as they are drawn: below 1 they are nearer to the likeliest ones, which captions are made of."""
    weight: float = Field(default=1.0, gt=0)
    """Weight of the expected reward beside the captions' loss."""
    from_epoch: float = Field(default=0.0, ge=0)
    """Epochs before the reward comes in; the stage usually begins with a trained model (`start`)."""

    @model_validator(mode="after")
    def _worth_something(self) -> Self:
        if self.cider == self.f1 == self.invented == self.unsaid == 0:
            raise ValueError(
                "cider, f1, invented and unsaid are all 0, so all captions are worth the same; give one a weight"
            )
        if self.soft_best is not None and self.baseline == "greedy":
            raise ValueError(
                "soft_best compares a picture's samples with each other; leave out baseline: greedy"
            )
        return self


OF_LOSS = frozenset({"loss", "reconstruction"})  # figures that need captions; the others need pictures


class Validation(Section):
    every_epochs: PositiveFloat = 1.0
    """How often to validate, in epochs; a fraction is allowed. The last step is always validated."""
    every_steps: PositiveInt | None = None
    """How often in steps, instead of every_epochs."""
    captions: int = Field(default=2000, ge=0)
    """Validation captions on which the loss terms are measured; 0 for none."""
    pictures: int = Field(default=300, ge=0)
    """Validation pictures that are captioned for CIDEr (greedy and draws); 0 for none."""
    draws: PositiveInt = 20
    """Draws a picture for the best-of (oracle) and average CIDEr."""
    figure: Literal["loss", "reconstruction", "cider_greedy", "cider_oracle", "cider_draw"] = "loss"
    """The figure that decides which model is the best, and that early stopping follows."""
    patience: int = Field(default=0, ge=0)
    """Stop after this many validations without a better figure; 0: never."""

    @model_validator(mode="after")
    def _figure_is_measured(self) -> Self:
        needs = "captions" if self.figure in OF_LOSS else "pictures"
        if getattr(self, needs) == 0:
            raise ValueError(
                f"figure: {self.figure} is measured on validation.{needs}, which is 0; give it a number above 0, "
                "or choose another figure"
            )
        return self


class TrainConfig(Section):
    data: Path
    """The prepared data set, a folder made by `coscap data`."""
    regions: Path
    """The region store of its pictures, made by `coscap features`."""
    model: dict[str, Any] = {"preset": "small"}
    """`preset` (`small`, `paper`, `released`) and any field of the model that differs from it."""
    start: str | None = None
    """A model to begin with, such as `runs/small/best`: its weights, not its optimiser. An up-down
    captioner can begin the others: their latents are then drawn anew. None: all is."""
    start_anew: tuple[str, ...] = ()
    """Parts of the model that do not begin with the weights of `start`, e.g. [regions] where the recipe is another."""
    seed: int = Field(default=1, ge=0)
    """Everything random follows from it and the number of the step."""
    batch_size: PositiveInt = 100
    """Captions a step, over all processes together (pictures with `captions: together`)."""
    captions: Literal["all", "one", "together"] = "all"
    """An epoch has `all` captions, `one` random caption of each picture (released code), or all of them with
    those of a picture `together` in a batch."""
    accumulate: PositiveInt = 1
    """Parts in which each process works through its share of the batch; more parts need less memory."""
    epochs: PositiveFloat | None = None
    """Length of the run in epochs; give one of epochs, steps and minutes."""
    steps: PositiveInt | None = None
    """Length of the run in steps."""
    minutes: PositiveFloat | None = None
    """Length of the run in minutes of training: the speed is measured, then the number of steps fixed."""
    optimiser: Optimiser = Optimiser()
    schedule: Schedule = Schedule()
    clip: Clip | None = Clip()
    normalise: Literal["caption", "word"] = "caption"
    """`caption`: the loss is a sum over words, divided by the captions of the batch (the ELBO; the
    paper's learning rate belongs to it). `word`: divided by the words, so gradients are about ten times smaller.
    """
    kl_context: KlWeight = KlWeight()
    kl_object: KlWeight = KlWeight()
    pseudo: Pseudo | None = None
    """Pseudo supervision from contexts of similar scenes (eq. 8); none: paired training."""
    text: Text | None = None
    """Sentences without pictures, which a dcc and a noc need."""
    partial: Partial | None = None
    """Pictures without captions, of which detected classes are known (PS3): a constrained search completes captions
    that name them, and the model learns from these, at each step anew."""
    reward: Reward | None = None
    """The model's own samples, rewarded by CIDEr-D and by F1 of what the detector is sure of (after PS-NOC)."""
    ema_decay: float = Field(default=0.0, ge=0, lt=1)
    """Decay of an exponential moving average of the weights, which is then what is validated and exported; 0: none."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """`bfloat16` or `float16` compute in mixed precision; float16 needs a GPU and scales the loss."""
    validation: Validation | None = Validation()
    checkpoint_minutes: PositiveFloat = 10.0
    """Minutes between checkpoints; one is also written at the end of each epoch and after each validation."""
    log_steps: PositiveInt = 50
    """Steps between lines of log.jsonl; a line holds the means over these steps."""
    tensorboard: bool = False
    """Write the log for TensorBoard too (`pip install coscap[tensorboard]`)."""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        given = [name for name in ("epochs", "steps", "minutes") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of epochs, steps and minutes, not {' and '.join(given) or 'none'}"
            )
        return self


# What may differ when a run goes on: none of it changes the weights, and the content of the data is
# compared by digest, so moved folders are fine.
FREE_ON_RESUME = frozenset({"data", "regions", "checkpoint_minutes", "log_steps", "tensorboard"})


def read_config(path: Path, changes: list[str] | None = None) -> TrainConfig:
    """The configuration in a YAML file, with `key=value` changes applied to it (`optimiser.lr=0.001`)."""
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold `field: value` lines, as configs/small.yaml does.")
    for change in changes or []:
        _apply_change(content, change)
    return check_config(content, str(path))


def check_config(content: dict[str, Any], source: str) -> TrainConfig:
    try:
        return TrainConfig.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{source}: {_sentence(error)}") from None


def write_config(path: Path, config: TrainConfig) -> None:
    write_text(path, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True))


def differences(one: TrainConfig, other: TrainConfig) -> list[str]:
    """The fields that differ and may not when a run goes on."""
    a, b = one.model_dump(mode="json"), other.model_dump(mode="json")
    return [name for name in a if name not in FREE_ON_RESUME and a[name] != b[name]]


def describe(section: type[BaseModel] = TrainConfig, prefix: str = "") -> list[tuple[str, str, str]]:
    """(field, default, help) of every field, sections unfolded, for `--fields`."""
    rows = []
    for name, field in section.model_fields.items():
        inner = _section_of(field.annotation)
        if inner is not None:
            rows += describe(inner, f"{prefix}{name}.")
        else:
            default = "required" if field.is_required() else str(field.default)
            rows.append((prefix + name, default, " ".join((field.description or "").split())))
    return rows


def _section_of(annotation: Any) -> type[Section] | None:
    candidates = [annotation, *getattr(annotation, "__args__", ())]
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, Section)), None)


def _apply_change(content: dict[str, Any], change: str) -> None:
    key, found, value = change.partition("=")
    if not found or not key.strip():
        raise UserError(f"--set {change}: expected key=value, for example --set optimiser.lr=0.001.")
    *parents, last = key.strip().split(".")
    place = content
    for parent in parents:
        inner = place.setdefault(parent, {})
        if inner is None:
            inner = place[parent] = {}
        if not isinstance(inner, dict):
            raise UserError(f"--set {change}: {parent} has no fields; set it as a whole.")
        place = inner
    try:
        place[last] = yaml.safe_load(value)
    except yaml.YAMLError:
        raise UserError(f"--set {change}: the value is not valid YAML; put it in quotes.") from None


def _sentence(error: ValidationError) -> str:
    """The first complaint, with the field's full name."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        close = difflib.get_close_matches(field, [name for name, _, _ in describe()], n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}" if close else "`coscap train --fields` lists all"
        return f"there is no field {field}; {hint}."
    if first["type"] == "missing":
        return f"field {field} is missing; `coscap train --fields` says what it holds."
    if first["type"] == "value_error":
        message = first["msg"].removeprefix("Value error, ")
        return f"field {field}: {message}." if field else f"{message}."
    return f"field {field} is {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}."
