"""What a model is built from. Frozen, validated once, saved beside the weights."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from coscap.errors import UserError

Inlet = Literal["query", "language", "output"]


class ModelConfig(BaseModel):
    """Sizes and choices of one model. Widths are numbers of units; 0 switches a part off."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    kind: str = "cos_cvae"
    """Which model: cos_cvae (the context-object split), seq_cvae (one latent sequence), ag_cvae (one latent a caption,
    prior from the detected categories), pos (part-of-speech templates), lnfmm (shared and text's latent,
    priors by normalising flows), updown (no latents), lstm_p (updown that may copy the name of a detected object),
    nbt (words of a template, or a region and then its name), dcc (a language model and a classifier of words, each
    learnt by itself), noc (pictures, text and captions learn the same words)."""
    decoder: str = "updown"
    """Which decoder: updown (attention over regions), mean (one LSTM on the mean feature, without attention), first
    (one LSTM that reads mean feature and latent once, before the first word), text (one that reads words alone)."""
    vocabulary: int = Field(10_000, ge=7)
    """Entries of the vocabulary, the six special ones included."""

    region_width: int = Field(2048, ge=1)
    """Width of a region's feature, as the recipe of the regions says."""
    region_scale: float = Field(1.0, gt=0)
    """Features are multiplied by this; L2-normalised ones are too small for the usual initialisation."""
    classes: int = Field(0, ge=0)
    """Classes that the labels of the regions index; needed for class_embedding."""
    region_words: int = Field(0, ge=0)
    """Words that labels from `classes` on stand for, as the recipe of the regions says; 0: it has none."""
    word_regions: int | None = Field(None, ge=0)
    """Use at most this many word regions of a picture, the most probable; null: all of them, 0: none."""
    label_words: bool = False
    """Add the decoder's own embedding of the word that a label stands for, times its score, to a region, so that
    attending to a region makes its word sayable."""
    class_embedding: int = Field(0, ge=0)
    """Width of a learnt embedding of a region's class, appended to its feature; 0 for none."""
    geometry: bool = False
    """Append x1, y1, x2, y2, width, height, area and score of a region to its feature."""
    grid: bool = True
    """Use the cells of the grid (label -1) besides the detections."""
    detections: int | None = Field(None, ge=0)
    """Use at most this many detections of a picture, best first; null: all of them, 0: the grid alone."""
    mean_over: Literal["all", "detections", "grid"] = "all"
    """The regions that v-bar is the mean of; all of them where a picture has none of that kind."""
    region_projection: int = Field(0, ge=0)
    """Width of a layer with ReLU that every region passes first; 0: attend to the features themselves."""
    region_layers: int = Field(0, ge=0)
    """Layers of self-attention in which the regions of a picture read each other before anything attends to them."""
    region_heads: int = Field(8, ge=1)
    """Heads of each of these layers."""
    region_norm: bool = False
    """Normalise each region as the decoder attends to it (layer norm, a small gain at first)."""

    word_width: int = Field(300, ge=1)
    """Width of the word embedding of posteriors and priors."""
    decoder_word_width: int = Field(1000, ge=0)
    """Width of the decoder's word embedding; 0: it shares the embedding of posteriors and priors."""
    attention_lstm: int = Field(1000, ge=1)
    """Hidden size of the attention LSTM."""
    language_lstm: int = Field(1000, ge=1)
    """Hidden size of the language LSTM."""
    attention_width: int = Field(512, ge=1)
    """Width of the layer in which query and regions meet."""
    output_width: int = Field(0, ge=0)
    """Width of a tanh layer before the vocabulary layer; 0 for none."""
    output_bias: bool = True
    """The vocabulary layer has a bias."""
    tie_words: bool = False
    """The vocabulary layer's weight is the decoder's word embedding (output_width must equal its width)."""

    context_latent: int = Field(64, ge=1)
    """Width of z^m_t; of z_t in a seq_cvae."""
    object_latent: int = Field(64, ge=1)
    """Width of z^o_t."""
    encoder_cell: Literal["lstm", "gru"] = "lstm"
    """Cell of the two posteriors' encoders."""
    context_posterior: int = Field(1024, ge=1)
    """Hidden size of q(z^m)'s encoder, in each direction."""
    context_posterior_sees_picture: bool = True
    """v-bar is an input of q(z^m)'s encoder at each word (paper: yes, released code: no)."""
    object_posterior: int = Field(1024, ge=1)
    """Hidden size of q(z^o)'s encoder."""
    object_posterior_sees: Literal["objects", "aligned", "mean"] = "aligned"
    """What q(z^o)'s encoder reads besides x^o and v-bar: nothing (z^m enters in the last layer alone),
    z^m_k beside the k-th object (paper's appendix), or the mean of z^m beside each (in place of the
    released code's hidden states, which let x^m through against eq. 3c)."""
    object_reader: Literal["final", "mean", "attend"] = "final"
    """How the encoding of x^o reaches each word: last hidden state (paper), mean of them (released code),
    or attention over the objects with z^m_t as the query."""
    object_latent_per: Literal["word", "object"] = "word"
    """Draw z^o anew at each word (paper), or once for each object: it then says what is named next and stays as it is
    until that was named, so that nothing is paid for words that name no object."""
    object_words: int = Field(0, ge=0)
    """q(z^o) reads at most this many objects (released code: 5); 0 for all."""
    context_prior: int = Field(1024, ge=1)
    """Hidden size of p(z^m)'s LSTM."""
    object_prior: int = Field(256, ge=1)
    """Hidden size of p(z^o)'s LSTM."""
    object_prior_over: Literal["gaussian", "regions"] = "gaussian"
    """p(z^o) is one Gaussian (paper), or a mixture with a component for each region of the picture, so that a draw
    chooses something that is there (needs object_latent_per: object)."""
    object_prior_sees: Literal["current", "previous"] = "current"
    """p(z^o_t) is given z^m_t (eq. 4) or z^m_{t-1} (the paper's appendix)."""
    initial_log_variance: float = 0.0
    """Log variance of both posteriors before training; below 0 they start out informative."""

    category_deviation: float = Field(0.1, gt=0)
    """Standard deviation of the prior of an ag_cvae, the same for all categories and dimensions."""

    text_latent: int = Field(32, ge=2)
    """Width of the text's own latent in an lnfmm; context_latent is that of the shared one. Both must be even."""
    flow_layers: int = Field(4, ge=1)
    """Coupling layers of each flow of an lnfmm."""
    flow_width: int = Field(256, ge=1)
    """Hidden units of each coupling layer of an lnfmm, and of what gives the picture back."""
    picture_weight: float = Field(1.0, ge=0)
    """Weight of giving v-bar back from the shared latent of an lnfmm."""
    unpaired_share: float = Field(0.0, ge=0, le=1)
    """The share of training pictures that an lnfmm learns from without knowing which captions are theirs."""
    templates: int = Field(1024, ge=2)
    """Part-of-speech templates of a pos model."""
    template_choice: Literal["likeliest", "gumbel"] = "likeliest"
    """Which templates the captions of a picture follow: the likeliest ones, or a sample without replacement."""

    concepts: int = Field(300, ge=1)
    """Words that a dcc or noc looks for in a picture besides the classes: those that most training pictures have."""
    concept_weight: float = Field(0.1, ge=0)
    """Weight of the loss of finding them."""
    fixed_words: bool = True
    """The word vectors of a noc stay as they were read or counted; false: they are learnt on."""
    coverage_weight: float = Field(0.3, ge=0)
    """Weight of an lstm_p's coverage of the detected objects that a caption names."""
    finer_names: int = Field(8, ge=1)
    """Words of a class that an nbt may choose from, of each number: those that training captions have most often."""
    novel_like: dict[str, str] = {}
    """For an nbt: the seen class that a class is read as which no caption names (zebra: horse). A region then looks and
    a word reads like the seen one; what is said is still its own name."""
    pointer_weight: float = Field(1.0, ge=0)
    """Weight of what teaches an nbt to take the names of detected objects from regions and all other words from the
    vocabulary; 1 is the published loss."""

    word_dropout: float = Field(0.0, ge=0, le=1)
    """In training, the share of the decoder's input words that are replaced by <unk>."""
    object_word_dropout: float | None = Field(None, ge=0, le=1)
    """The same for words that name objects; None: as word_dropout."""
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    """In training, dropout on the attention LSTM's hidden state as the query and the language LSTM read it."""
    output_dropout: float = Field(0.0, ge=0, lt=1)
    """In training, dropout on the language LSTM's hidden state as the output layer reads it."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """In training, the share of each word's target that is spread evenly over the vocabulary."""
    free_bits_context: float = Field(0.0, ge=0)
    """Nats of KL(z^m) that the objective does not punish."""
    free_bits_object: float = Field(0.0, ge=0)
    """Nats of KL(z^o) that the objective does not punish."""
    free_bits_per: Literal["step", "caption"] = "step"
    """Free bits are granted to each word or to each caption."""
    object_head: Literal["none", "mean", "max", "slots"] = "none"
    """A head that names the caption's objects from z^o alone: all of them from its mean or maximum over
    the words, or each at its own word (slots)."""
    object_head_weight: float = Field(1.0, ge=0)
    """Weight of that head's loss in the objective."""
    object_latent_to: tuple[Inlet, ...] = ()
    """Where z^o_t enters the decoder besides the attention LSTM: its query, language LSTM, output layer."""
    temperature_mode: Literal["scale", "power"] = "scale"
    """What a temperature does to the deviation of a draw from a prior: factor, or exponent (released code)."""
    pseudo_temperature: float = Field(1.0, ge=0)
    """Temperature of z^o where training draws it from its prior, for pseudo captions (released code: 0.6)."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        from coscap.models.registry import DECODERS, KINDS

        if self.kind not in KINDS:
            raise ValueError(f"there is no model of the kind {self.kind!r}; choose one of {', '.join(KINDS)}")
        if self.decoder not in DECODERS:
            raise ValueError(f"there is no decoder {self.decoder!r}; choose one of {', '.join(DECODERS)}")
        if self.class_embedding and not self.classes:
            raise ValueError("class_embedding needs classes, the number of classes of the regions' recipe")
        if self.tie_words and self.output_width != self.decoder_words:
            raise ValueError(
                f"tie_words needs output_width equal to the decoder's word width ({self.decoder_words})"
            )
        if self.region_layers and self.value_width % self.region_heads:
            raise ValueError(
                f"region_heads must divide the width of a region ({self.value_width}), and {self.region_heads} does not"
            )
        if self.mean_over == "grid" and not self.grid:
            raise ValueError("mean_over: grid needs grid: true")
        if self.detections == 0 and not self.grid:
            raise ValueError("detections: 0 needs grid: true, or nothing is left to look at")
        kind, decoder = KINDS[self.kind], DECODERS[self.decoder]
        for name in self.model_fields_set:
            owners = [each for each, other in KINDS.items() if name in other.own_settings]
            if (
                owners
                and self.kind not in owners
                and getattr(self, name) != type(self).model_fields[name].default
            ):
                raise ValueError(
                    f"{name} is a setting of {' and '.join(owners)}; a {self.kind} does not know it"
                )
        kind.check(self)
        decoder.check(self, kind.latent_widths(self)[1])
        return self

    @property
    def decoder_words(self) -> int:
        """Width of the decoder's word embedding, shared or its own."""
        return self.decoder_word_width or self.word_width

    @property
    def described_width(self) -> int:
        """Width of a region with its class and geometry, before any projection."""
        return self.region_width + self.class_embedding + (8 if self.geometry else 0)

    @property
    def value_width(self) -> int:
        """Width of a region as the decoder attends to it, and of v-bar."""
        return self.region_projection or self.described_width


def read_config(values: dict[str, Any], source: str) -> ModelConfig:
    """A checked configuration, or a UserError that names the source and the first field that is wrong."""
    try:
        return ModelConfig(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise UserError(
                f"{source}: {field} is no setting of a model; remove it or use a newer version of coscap."
            ) from None
        what = f"{field}: " if field else ""
        raise UserError(f"{source}: {what}{first['msg'].removeprefix('Value error, ')}.") from None
