"""LSSC: the patches of a group are coded with the same few atoms of a dictionary."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nlrn.classic import parallel, patches, planes, spectral, transforms
from nlrn.progress import Progress

# up to this sigma: side of the patch, patches in a group. Only the row of sigma 25 has been tried
# out; the others take WNNM's sides.
DEFAULTS = ((20, 6, 60), (40, 7, 60), (60, 8, 80), (planes.LARGEST_SIGMA, 9, 80))
SAMPLE = 3000  # groups that the dictionary is learned from
LEARNING = (4, 2)  # alternations of coding and learning: from scratch, and when it was learned
# Groups that are coded at a time: small pieces for the threads of a CPU, many to fill a GPU.
GROUPS, GROUPS_ON_GPU = 256, 4096
FAINT = 1e-7  # the least noise level: the level of a patch can come out as 0


def denoise_lssc(
    image: np.ndarray,
    sigma: float,
    *,
    dictionary: str | np.ndarray = "learned",
    patch: int | None = None,
    group: int | None = None,
    iterations: int | None = None,
    blocks: int = 64,
    prior: float = 0.25,
    threshold: float = 1.35,
    scale: float = 0.56,
    delta: float = 0.1,
    rematch: int = 2,
    epsilon: float = 1.0,
    step: int | None = None,
    window: int = 39,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> np.ndarray:
    """The image without its noise, by sparse codes that similar patches have in common.

    The group Y_C of the K patches most like a reference patch is coded jointly: a patch may choose
    its coefficients, but all patches of the group use the same atoms of the dictionary D,

        min_A |A|_{0,inf}   such that   |Y_C^T - D A|_F^2 <= epsilon s^2 p^2 K,

    |A|_{0,inf} being the number of atoms in use. Overlapping patches are averaged.

    "unitary", or an array with D^T D = I, is the special case of the paper's appendix: then
    Z_C = eta(Y_C D) D^T, where eta leaves out the weakest columns as long as the bound holds. The
    second round matches in the result of the first and codes the noisy patches anew. "unitary" is
    the cosine transform.

    "learned" learns D from the noisy image: a union of unitary blocks, D = [D_1 ... D_B]. In turns
    each group is coded in the block where that costs least, and each block becomes the eigenvectors
    of G_b, the mean of its groups' Gram matrices. For the result each group adapts its block to
    itself: the eigenvectors of Y_C^T Y_C + mu G_b. The problem is taken in its penalised form, with
    c (K - 1) s^2 as the price of an atom, and reweighted: of an atom whose coefficients have the
    energy e = |A_i|^2 in the group, its mean taken off, remains

        (1 + sqrt(1 - c (K - 1) s^2 / e)) / 2   if e > c (K - 1) s^2,   nothing otherwise.

    Every further round adds a share of the removed noise back, X <- X + delta (Y - X), with lambda
    sqrt(|sigma^2 - mean squared difference of the patch to Y|) as the noise s that is left.

    What differs from the publication: it learns 512 free atoms, with an l1 penalty, from a start
    made of other photographs, the same for all groups, and codes greedily; it codes the noisy image
    once, in groups from a first estimate; it has no shrinkage of the atoms in use. Blocks have an
    exact solution without a search. The rounds and the shrinkage are WNNM's.

    O(T (q^2 p^2 + K p^4 + p^6 + B p^6 / rematch) / step^2) per pixel for T rounds: the eigenvectors
    and the choice of a block take most of it. Memory: about 6 p^2 values per pixel. Colour is
    filtered channel by channel.

    Args:
        image: [H, W] or [H, W, 3]; uint8, uint16 or float on the [0, 1] scale.
        sigma: standard deviation of the noise on the 0..255 scale.
        dictionary: "learned", "unitary" or a unitary matrix [p*p, p*p] whose columns are atoms.
        patch: side of the patches; None takes one by noise level, 6 to 9.
        group: K; None takes 60, above sigma 40 80.
        iterations: rounds; 8, with a unitary dictionary 2.
        blocks: B, of the learned dictionary, as the next five.
        prior: mu; 0 gives each group a dictionary of its own (and nearly WNNM), a large one the
            dictionary that all groups have in common.
        threshold: c.
        scale: lambda.
        delta: share of the removed noise that is added back.
        rematch: rounds between two matchings, after which the dictionary is learned on.
        epsilon: bound of a unitary dictionary's error, in noise variances.
        step: distance of the reference patches; 3, or a smaller patch.
        window: odd side of the search window.
        device: where to compute.
        progress: called with (done, total).

    References:
        J. Mairal, F. Bach, J. Ponce, G. Sapiro, A. Zisserman, "Non-local sparse models for image
        restoration", ICCV 2009, https://doi.org/10.1109/ICCV.2009.5459452
    """
    sigma = planes.check(image, sigma)
    _, own_side, own_group = next(row for row in DEFAULTS if sigma <= row[0])
    if isinstance(dictionary, np.ndarray):
        own_side = math.isqrt(len(dictionary))
    side = patch if patch is not None else own_side
    count = group if group is not None else own_group
    stride = step if step is not None else min(3, side)
    planes.check_positive(patch=side, step=stride, epsilon=epsilon)
    planes.check_group(count)
    planes.check_covers(stride, side)
    planes.check_odd(window=window)
    atoms = _unitary(dictionary, side)
    rounds = iterations if iterations is not None else (8 if atoms is None else 2)
    planes.check_positive(iterations=rounds)
    learning = Learning(blocks, prior, threshold, scale, delta, rematch)

    def match(given: Tensor) -> Tensor:
        return patches.match(given, stride, window, count).filled

    def work(noisy: Tensor, tell: Progress) -> Tensor:
        if atoms is None:
            return _filter_learned(noisy, sigma / 255, side, rounds, learning, match, tell)
        bound = epsilon * (sigma / 255 * side) ** 2
        return _filter_unitary(noisy, atoms.to(noisy), bound, rounds, match, tell)

    return planes.restore(image, sigma, side, planes.each(work, progress), device)


@dataclass(frozen=True)
class Learning:
    """How the learned dictionary is used; the fields are those of `denoise_lssc`."""

    blocks: int
    prior: float
    threshold: float
    scale: float
    delta: float
    rematch: int

    def __post_init__(self) -> None:
        planes.check_positive(blocks=self.blocks, threshold=self.threshold, scale=self.scale)
        planes.check_positive(rematch=self.rematch)
        planes.check_share(delta=self.delta)
        if not self.prior >= 0:
            raise ValueError(f"prior must be 0 or more, got {self.prior!r}")


def _unitary(dictionary: str | np.ndarray, side: int) -> Tensor | None:
    """The unitary dictionary [p*p, p*p] that is meant, or None for the learned one."""
    if isinstance(dictionary, np.ndarray):
        size = side * side
        if dictionary.shape != (size, size):
            raise ValueError(f"dictionary must be [{size}, {size}], got {dictionary.shape}")
        atoms = torch.from_numpy(dictionary.astype(np.float64))
        if not torch.allclose(atoms.T @ atoms, torch.eye(size).to(atoms), atol=1e-4):
            raise ValueError("dictionary must be unitary: its columns are not orthonormal")
        return atoms
    if dictionary not in ("learned", "unitary"):
        raise ValueError(f"dictionary must be learned, unitary or an array, got {dictionary!r}")
    return transforms.separable(transforms.dct(side)).T if dictionary == "unitary" else None


def _piece(index: Tensor) -> int:
    return GROUPS if index.device.type == "cpu" else GROUPS_ON_GPU


Match = Callable[[Tensor], Tensor]  # patches [H', W', p*p] -> numbers of each group's [R, K]


# --- a unitary dictionary -------------------------------------------------------------------------


def _filter_unitary(
    noisy: Tensor, atoms: Tensor, bound: float, rounds: int, match: Match, tell: Progress
) -> Tensor:
    """The plane [H, W] without its noise; the bound is that of one patch."""
    side = math.isqrt(len(atoms))
    given, estimate = patches.extract(noisy, side), noisy
    flat = given.flatten(0, 1)

    def restored(numbers: Tensor) -> tuple[Tensor, Tensor]:
        codes = joint_threshold(flat[numbers] @ atoms, bound * numbers.shape[1])
        return numbers, codes @ atoms.T

    for number in range(rounds):
        index = match(patches.extract(estimate, side))
        estimate = patches.average_of_groups(given, index.split(_piece(index)), restored)
        tell(number + 1, rounds)
    return estimate


def joint_threshold(codes: Tensor, bound: float) -> Tensor:
    """Codes [G, K, atoms] without the weakest atoms, whose energies add up to the bound: eta."""
    energy, order = codes.square().sum(1).sort(dim=1)
    kept = torch.zeros_like(energy).scatter(1, order, (energy.cumsum(1) > bound).to(energy))
    return codes * kept[:, None]


# --- the learned dictionary -----------------------------------------------------------------------


def _filter_learned(
    noisy: Tensor,
    sigma: float,
    side: int,
    rounds: int,
    learning: Learning,
    match: Match,
    tell: Progress,
) -> Tensor:
    """The plane [H, W] without its noise, sigma being on the plane's scale."""
    original, estimate = patches.extract(noisy, side), noisy
    index = choice = models = torch.empty(0)
    for number in range(rounds):
        level = noisy.new_full(original.shape[:2], sigma)
        if number:
            estimate = estimate + learning.delta * (noisy - estimate)
            removed = (original - patches.extract(estimate, side)).square().mean(2)
            level = learning.scale * (level.square() - removed).abs().sqrt()
        current = patches.extract(estimate, side)
        groups = Groups(current.flatten(0, 1), level.flatten().clamp(min=FAINT))
        if number % learning.rematch == 0:
            index = match(current)
            price = learning.threshold * (index.shape[1] - 1)
            sample = groups.grams(index[:: -(-len(index) // SAMPLE)])
            count = min(learning.blocks, len(sample))  # no more blocks than groups
            models = learn(sample, count, price, models if number else None)
            choice = groups.cheapest(index, models, price)
        pieces = zip(index.split(_piece(index)), choice.split(_piece(index)), strict=True)
        coder = groups.coder(learning.prior * models, price)
        estimate = patches.average_of_groups(current, pieces, coder)
        tell(number + 1, rounds)
    return estimate


@dataclass(frozen=True)
class Groups:
    """Any groups of the patches [N, p*p], whose noise has that level [N]."""

    flat: Tensor
    level: Tensor

    def centered(self, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Groups [G, K, p*p] with unit noise; the mean that was taken off and the unit."""
        group, unit = self.flat[numbers], self.level[numbers[:, 0], None, None]
        mean = group.mean(dim=1, keepdim=True)
        return (group - mean) / unit, mean, unit

    def grams(self, numbers: Tensor) -> Tensor:
        """Gram matrices [G, p*p, p*p], which have all that learning needs to know."""
        group, _, _ = self.centered(numbers)
        return group.mT @ group

    def cheapest(self, index: Tensor, models: Tensor, price: float) -> Tensor:
        """The block [R] that codes each group [R, K] at the least cost."""
        atoms = _outer_products(spectral.eigenvectors(models))

        def choose(numbers: Tensor) -> Tensor:
            return _costs(self.grams(numbers), atoms, len(models), price).argmin(1)

        return torch.cat(list(parallel.each(choose, index.split(_piece(index)), index.device)))

    def coder(
        self, models: Tensor, price: float
    ) -> Callable[[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]:
        """A function (numbers of groups [G, K], their blocks [G]) -> (numbers, restored)."""

        def restored(piece: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            numbers, choice = piece
            group, mean, unit = self.centered(numbers)
            atoms = spectral.eigenvectors(group.mT @ group + models[choice])
            return numbers, joint_shrinkage(group @ atoms, price) @ atoms.mT * unit + mean

        return restored


def joint_shrinkage(codes: Tensor, price: float) -> Tensor:
    """Codes [G, K, atoms] of unit noise; an atom whose energy is below its price goes."""
    energy = codes.square().sum(dim=1, keepdim=True)
    root = (1 - price / energy.clamp(min=1e-30)).clamp(min=0).sqrt()
    return codes * torch.where(energy > price, 0.5 + 0.5 * root, 0)


def learn(grams: Tensor, count: int, price: float, models: Tensor | None) -> Tensor:
    """The mean Gram matrix [B, p*p, p*p] of the groups of each block.

    Args:
        grams: of groups, [G, p*p, p*p].
        count: B.
        price: of an atom.
        models: to go on from; None starts with those of some groups.
    """
    turns = LEARNING[0 if models is None else 1]
    if models is None:
        models = grams[_spread(grams, count)]
    for _ in range(turns):
        atoms = _outer_products(spectral.eigenvectors(models))
        choice = _costs(grams, atoms, count, price).argmin(1)
        sums = torch.zeros_like(models).index_add_(0, choice, grams)
        members = choice.bincount(minlength=count)[:, None, None]
        models = torch.where(members > 0, sums / members.clamp(min=1), models)
    return models


def _spread(grams: Tensor, count: int) -> Tensor:
    """Numbers [count] of groups, spread evenly over the energy and not over the many flat ones."""
    energy = grams.diagonal(dim1=1, dim2=2).sum(1).cumsum(0)
    places = (torch.arange(count, device=grams.device) + 0.5) / count * energy[-1]
    return torch.searchsorted(energy, places).clamp(max=len(grams) - 1)


def _upper(size: int, device: torch.device) -> Tensor:
    return torch.triu_indices(size, size, device=device)


def _outer_products(blocks: Tensor) -> Tensor:
    """Upper half of a a^T for each atom, what is off the diagonal doubled: [B p*p, n]."""
    atoms = blocks.mT.flatten(0, 1)
    row, column = _upper(atoms.shape[1], atoms.device)
    return atoms[:, row] * atoms[:, column] * torch.where(row == column, 1.0, 2.0)


def _costs(grams: Tensor, outer_products: Tensor, count: int, price: float) -> Tensor:
    """The cost [G, B] of coding each group in each block.

    An atom is paid for, or its energy a^T Y^T Y a is lost. That is a product of all upper halves
    of the symmetric matrices: half the work of a product with the atoms.
    """
    row, column = _upper(grams.shape[1], grams.device)
    energy = grams[:, row, column] @ outer_products.T
    return energy.clamp(max=price).view(len(grams), count, -1).sum(2)
