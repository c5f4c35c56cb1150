"""The tables of a config file: images, optimizer, machine and stages of a training run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nlrn.datasets import TRAINING_SETS, VALIDATION_SETS
from nlrn.ops import BORDERS
from nlrn.training import parsing
from nlrn.training.parsing import TrainingError

SCHEDULES = ("cosine", "halved", "constant")
ACCELERATORS = ("auto", "cpu", "cuda")
PRECISIONS = ("auto", "32-true", "bf16-mixed")
ATTENTIONS = ("auto", "dense")
TASKS = ("denoise", "sr")
OPTIMIZERS = ("adam", "muon")
# What a stage may have of its own instead of the data's.
OF_STAGE = ("scales", "factors", "self_similar_fraction")


@dataclass(frozen=True)
class Data:
    """Where images come from and what is done to them.

    Attributes:
        train: image sets to train on, names of `nlrn.datasets.TRAINING_SETS`, or one folder with
            images of one's own.
        validation: image set to validate on, never a test set, or a folder. Where it is not given,
            it is "bsd400-validation", or the part of one's own images that is held out.
        held_out: share of one's own images that is not trained but validated on.
        task: "denoise" for images with noise, or "sr" for those that were shrunk by each of the
            factors. Networks that enlarge get them so, rounded to 8 bits; for the others luminance
            is enlarged again.
        channels: 1 for gray images, 3 for RGB.
        sigma: standard deviation of the noise on the 0..255 scale, and the unit of the loss. For
            "sr" there is no noise: it is the unit alone, about the error of the enlarged image.
        sigma_range: lowest and highest level of the noise, of which every patch gets one in
            between; `sigma` is then the unit of the loss alone.
        validation_sigmas: levels to validate at, whose mean counts; none for `sigma` alone.
        factors: by which images are shrunk for "sr".
        full_range: share of the patches for "sr" whose luminance, 16..235, is stretched to 0..255,
            the range of the gray images that users have.
        scales: sizes at which every training image is used.
        by_area: whether an image is drawn the more often the larger it is; otherwise all alike.
        self_similar_fraction: share of the patches that are, of eight drawn at random, the one that
            repeats itself most: what only a non-local module can make use of is rare in
            photographs.
        crop: side of the center crops that validation restores.
        validation_images: how many images validation takes, the first ones that are large enough.
    """

    train: tuple[str, ...] = ("bsd400",)
    validation: str = ""
    held_out: float = 0.1
    task: str = "denoise"
    channels: int = 1
    sigma: float = 25.0
    sigma_range: tuple[float, ...] = ()
    validation_sigmas: tuple[float, ...] = ()
    factors: tuple[int, ...] = (2, 3, 4)
    full_range: float = 0.0
    scales: tuple[float, ...] = (1.0, 0.9, 0.8, 0.7)
    by_area: bool = False
    self_similar_fraction: float = 0.0
    crop: int = 128
    validation_images: int = 32

    def __post_init__(self) -> None:
        if not self.train:
            raise TrainingError("train names no image set")
        if not self.is_own:
            for name in self.train:
                parsing.one_of("train", name, TRAINING_SETS, "a folder of images")
            if not self.validation:
                object.__setattr__(self, "validation", "bsd400-validation")
        if self.validation and not Path(self.validation).is_dir():
            parsing.one_of("validation", self.validation, VALIDATION_SETS, "a folder of images")
        parsing.one_of("task", self.task, TASKS)
        parsing.positive(self, "sigma", "crop", "validation_images")
        if self.channels not in (1, 3):
            raise TrainingError(f"channels must be 1 or 3, got {self.channels}")
        if not self.factors or not all(factor in range(2, 9) for factor in self.factors):
            raise TrainingError(f"factors must be whole numbers of 2..8, got {list(self.factors)}")
        for name in ("full_range", "self_similar_fraction"):
            parsing.in_unit_interval(self, name)
        if not 0 < self.held_out < 1:
            raise TrainingError(f"held_out must be in (0, 1), got {self.held_out}")
        if not self.scales or not all(0 < scale <= 1 for scale in self.scales):
            raise TrainingError(f"scales must be in (0, 1], got {list(self.scales)}")
        self._check_levels()

    def _check_levels(self) -> None:
        levels = self.sigma_range
        if levels and not (len(levels) == 2 and 0 <= levels[0] < levels[1]):
            got = list(levels)
            raise TrainingError(f"sigma_range must be two levels from 0 on, rising, got {got}")
        if not all(level >= 0 for level in self.validation_sigmas):
            got = list(self.validation_sigmas)
            raise TrainingError(f"validation_sigmas must be 0 or more, got {got}")
        if self.task == "sr" and (levels or self.validation_sigmas):
            raise TrainingError("sigma_range and validation_sigmas are for task denoise, got 'sr'")

    @property
    def is_own(self) -> bool:
        """Whether `train` is a folder with images of one's own."""
        is_set = self.train[0] in TRAINING_SETS
        return len(self.train) == 1 and not is_set and Path(self.train[0]).is_dir()


@dataclass(frozen=True)
class Optimizer:
    """How gradients change the weights, and the moving average of the weights.

    Attributes:
        method: "adam", the paper's, or "muon", which makes the updates of matrices orthogonal and
            leaves the other weights to Adam.
        clip_norm: gradients are scaled down to this global norm; 0 leaves them alone. The loss is
            measured in units of the noise, so one value suits all noise levels.
        momentum: weight of the old direction in Muon's steps; near 1 where gradients are mostly
            noise, which the orthogonal update would take for a direction.
        weight_decay: share of Muon's matrices that a step takes away, times the learning rate;
            Adam's weights are left alone.
        ema_decay: weight of the old average at each step; it grows from 0.1 to this at first.
        skip_above: a step whose gradient's norm is more than this many times the median of the
            last hundred norms changes nothing; 0 leaves out only what is no number.
        loss_balance: patches count less the farther the degraded one is off: the loss of a patch is
            divided by its mean squared error before, to this power. 0, the paper's, counts every
            squared error alike, so that what is enlarged most outweighs the rest.
        robust_above: errors of a patch far above this, in the units of the loss, count by their
            logarithm; 0 for none. A patch on which the recurrence explodes then teaches the network
            as much as others do, where its squared error would drown them.
    """

    method: str = "adam"
    clip_norm: float = 1.0
    momentum: float = 0.95
    weight_decay: float = 0.0
    ema_decay: float = 0.999
    skip_above: float = 0.0
    loss_balance: float = 0.0
    robust_above: float = 0.0

    def __post_init__(self) -> None:
        parsing.one_of("method", self.method, OPTIMIZERS)
        for name in ("clip_norm", "robust_above", "weight_decay", "skip_above"):
            if getattr(self, name) < 0:
                raise TrainingError(f"{name} must be 0 or more, got {getattr(self, name)}")
        if self.weight_decay and self.method != "muon":
            raise TrainingError(f"weight_decay is for method muon, got {self.method!r}")
        for name in ("momentum", "ema_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise TrainingError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        if 0 < self.skip_above <= 1:
            raise TrainingError(f"skip_above must be 0 or more than 1, got {self.skip_above}")
        parsing.in_unit_interval(self, "loss_balance")


@dataclass(frozen=True)
class RuntimeConfig:
    """How the run uses the machine, and how often it reports.

    Attributes:
        accelerator: "cpu", "cuda" or "auto", which takes a GPU when there is one.
        precision: "32-true", "bf16-mixed" or "auto", which takes bf16 on a GPU.
        compile: compiles the modules that a pass repeats, on a GPU.
        cuda_graph: records a whole step once and replays it, on one GPU.
        attention: "auto" for the operator of `nlrn.ops`, "dense" for plain matrix products over
            all pairs of pixels of a patch.
        log_every: steps between two readings of the loss; the clock of stages that last minutes
            and the intervals below move at these steps only.
        save_minutes: between two checkpoints.
        validate_minutes: between two validations.
        tensorboard: writes its files too, when it is installed.
    """

    accelerator: str = "auto"
    precision: str = "auto"
    compile: bool = True
    cuda_graph: bool = True
    attention: str = "auto"
    log_every: int = 50
    save_minutes: float = 2.0
    validate_minutes: float = 2.0
    tensorboard: bool = True

    def __post_init__(self) -> None:
        parsing.one_of("accelerator", self.accelerator, ACCELERATORS)
        parsing.one_of("precision", self.precision, PRECISIONS)
        parsing.one_of("attention", self.attention, ATTENTIONS)
        parsing.positive(self, "log_every")


@dataclass(frozen=True)
class Stage:
    """One part of the curriculum; either `steps` or `minutes` says how long.

    Attributes:
        steps: how many steps it lasts.
        minutes: how long its steps may take, summed over interruptions, without validation,
            saving and compilation.
        lr: learning rate at the start.
        lr_end: where the cosine ends.
        schedule: "cosine"; "halved", the paper's, five times at 2/10, 4/10, 6/10, 8/10 and 9/10 of
            the stage; or "constant".
        hold: share of the stage in which the rate stays before the cosine begins. A run that still
            holds can go on with more minutes as if it had had them from the start.
        warmup: steps in which the rate rises to its value.
        batch: patches of a step, over all processes.
        patch: side of a patch, as the network gets it.
        border: what neighbourhoods do at the edge of a patch.
        scales: sizes at which its images are used, where they are not the data's. Shrunk images are
            more to learn from; those that the network is for have their full size.
        factors: by which its images are shrunk for "sr", in turn, where they are not the data's;
            one that is to count twice stands there twice.
        self_similar_fraction: of its patches, where it is not the data's.
        non_local: whether the non-local modules take part.
        freeze_norm: whether batch norm keeps its statistics (its scale and shift are trained).
    """

    steps: int = 0
    minutes: float = 0.0
    lr: float = 1e-3
    lr_end: float = 1e-5
    schedule: str = "cosine"
    hold: float = 0.0
    warmup: int = 0
    batch: int = 16
    patch: int = 45
    border: str = "mask"
    scales: tuple[float, ...] = ()
    factors: tuple[int, ...] = ()
    self_similar_fraction: float = 0.0
    non_local: bool = True
    freeze_norm: bool = False

    def __post_init__(self) -> None:
        if (self.steps > 0) == (self.minutes > 0):
            got = f"steps {self.steps} and minutes {self.minutes}"
            raise TrainingError(f"a stage must have either steps or minutes, got {got}")
        parsing.one_of("schedule", self.schedule, SCHEDULES)
        parsing.one_of("border", self.border, BORDERS)
        parsing.positive(self, "lr", "batch", "patch")
        if self.lr_end < 0 or self.warmup < 0:
            got = f"{self.lr_end} and {self.warmup}"
            raise TrainingError(f"lr_end and warmup must not be negative, got {got}")
        if not 0 <= self.hold < 1:
            raise TrainingError(f"hold must be in [0, 1), got {self.hold}")
        if self.hold and self.schedule != "cosine":
            raise TrainingError(f"hold is for schedule cosine, got {self.schedule!r}")
