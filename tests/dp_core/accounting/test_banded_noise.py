"""Correlated noise: coefficients, sensitivity over every participation pattern, and ε against a simulation."""

from __future__ import annotations

import itertools
import math

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import optimize, stats
from scipy.linalg import toeplitz

from dp_core.accounting.banded_noise import column_norm, prefix_error, toeplitz_coefficients
from dp_core.accounting.epsilon import epsilon_bound
from dp_core.accounting.mechanism import MechanismRecord
from dp_core.accounting.privacy_loss import privacy_loss
from dp_core.cyclic_sampling import CyclicPoissonSampler, assign_parts
from dp_core.sampling import make_sampler
from dp_core.training.correlated import with_correlated_noise
from dp_core.training.noise import add_gaussian
from dp_core.training.updates import UpdateScale, dense_update


def matrix(column: tuple[float, ...], steps: int) -> np.ndarray:
    """Returns C, the obvious way."""
    return np.tril(toeplitz(np.pad(column, (0, steps - len(column)))))


@pytest.mark.parametrize(("bands", "steps"), [(1, 5), (2, 10), (4, 50), (7, 7)])
def test_prefix_error_is_that_of_the_matrices(bands: int, steps: int) -> None:
    column = toeplitz_coefficients(bands, steps)
    summed = np.tril(np.ones((steps, steps))) @ np.linalg.inv(matrix(column, steps))
    assert prefix_error(column, steps) == pytest.approx(np.sqrt(np.mean(np.sum(summed**2, axis=1))))


@pytest.mark.parametrize(
    ("bands", "steps", "error", "first"),
    # The values of jax_privacy's ``optimize_banded_toeplitz``, in 64 bits, with columns of norm 1.
    [
        (2, 10, 1.89870469, 0.876024),
        (4, 50, 2.93055139, 0.722673),
        (16, 560, 4.92211903, 0.514658),
        (64, 560, 3.38723400, 0.554577),
    ],
)
def test_coefficients_are_the_best_ones(bands: int, steps: int, error: float, first: float) -> None:
    column = toeplitz_coefficients(bands, steps)
    assert prefix_error(column, steps) == pytest.approx(error, rel=2e-6)
    assert column[0] == pytest.approx(first, abs=3e-6)
    assert 1 - 3e-6 < column_norm(column) <= 1
    assert all(np.float32(one) == one for one in column)


def test_no_other_column_is_better() -> None:
    """Against a search without gradients, over columns of norm 1."""
    steps = 30

    def error(rest: np.ndarray) -> float:
        column = np.concatenate([[1.0], rest])
        return prefix_error(tuple(column / np.linalg.norm(column)), steps)

    found = optimize.minimize(error, [0.5, 0.5], method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-12})
    assert prefix_error(toeplitz_coefficients(3, steps), steps) == pytest.approx(found.fun, rel=3e-6)


def test_bands_beyond_the_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="bands must be from 1 to the 3 steps, got 4"):
        toeplitz_coefficients(4, 3)


def _largest_block(matrices: list[np.ndarray], pattern: tuple[int, ...], rng: np.random.Generator) -> float:
    """Returns the largest ‖what an example adds per participation‖, if the parts of C·g are orthogonal; else infinity.

    ``matrices`` has C for each coordinate, ``pattern`` the steps that the example takes part in. Gradients are random
    unit vectors, and those with a single coordinate.
    """
    worst = 0.0
    for gradients in (rng.standard_normal((len(pattern), len(matrices))), np.eye(len(matrices))[[0] * len(pattern)]):
        gradients = gradients / np.linalg.norm(gradients, axis=1, keepdims=True)
        added = [
            np.concatenate([one[:, step] * x for one, x in zip(matrices, gradient, strict=True)])
            for step, gradient in zip(pattern, gradients, strict=True)
        ]
        products = np.array([[a @ b for b in added] for a in added])
        if np.abs(products - np.diag(np.diag(products))).max() > 1e-12:
            return math.inf
        worst = max(worst, math.sqrt(products.diagonal().max()))
    return worst


def test_sensitivity_over_all_participation_patterns() -> None:
    """Whatever steps of its part an example takes part in, it adds orthogonal vectors of norm at most 1.

    One coordinate has as many bands as there are parts, one has fewer, and one has independent noise.
    """
    steps, parts, rng = 11, 4, np.random.default_rng(0)
    matrices = [matrix(toeplitz_coefficients(bands, steps), steps) for bands in (parts, 2, 1)]
    overlapping = [matrix(toeplitz_coefficients(parts + 1, steps), steps), *matrices[1:]]
    found, wrong = [], []
    for part in range(parts):
        own = range(part, steps, parts)
        for pattern in itertools.chain.from_iterable(
            itertools.combinations(own, number) for number in range(1, len(own) + 1)
        ):
            found.append(_largest_block(matrices, pattern, rng))
            wrong.append(_largest_block(overlapping, pattern, rng))
    assert max(found) <= 1 + 1e-12
    # Planted: one band more than parts, and columns overlap.
    assert max(wrong) == math.inf


STEPS, PARTS, EXAMPLES, BATCH, NOISE = 9, 3, 400_000, 80_000, 0.9


@pytest.fixture(scope="module")
def simulated() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns what examples add, and the noise, each of shape (steps, examples); and the examples' parts.

    Every example of one run of the real sampler is a run of the mechanism with a single example, whose gradient is 1 in
    a coordinate of its own. The noise is that of the real update rule.
    """
    sampler = CyclicPoissonSampler(EXAMPLES, BATCH, EXAMPLES, (3,), parts=PARTS)
    added = np.zeros((STEPS, EXAMPLES))
    for step in range(STEPS):
        added[step, sampler.batch(step).indices] = 1
    rule = with_correlated_noise(dense_update(optax.sgd(1.0)), toeplitz_coefficients(PARTS, STEPS))
    params = {"layer": {"kernel": jnp.zeros(EXAMPLES)}}
    state, noises = rule.init(params), []
    apply = jax.jit(lambda state, key: rule.apply(state, params, params, UpdateScale(key, jnp.float32(1), 1.0, 1.0)))
    for step in range(STEPS):
        state, moved = apply(state, jax.random.fold_in(jax.random.key(5), step))
        noises.append(-np.asarray(moved["layer"]["kernel"], np.float64))
    parts = np.zeros(EXAMPLES, int)
    dealt = assign_parts(sampler)
    parts[dealt.order] = np.repeat(np.arange(PARTS), np.diff(dealt.bounds))
    return added, np.stack(noises), parts


def test_noise_of_the_rule_is_that_of_the_inverse(simulated: tuple[np.ndarray, ...]) -> None:
    zeros = {"layer": {"kernel": jnp.zeros(EXAMPLES)}}
    keys = [jax.random.fold_in(jax.random.key(5), step) for step in range(STEPS)]
    fresh = np.stack([np.asarray(add_gaussian(key, zeros, jnp.float32(1.0))["layer"]["kernel"]) for key in keys])
    expected = np.linalg.solve(matrix(toeplitz_coefficients(PARTS, STEPS), STEPS), fresh)
    np.testing.assert_allclose(simulated[1], expected, atol=3e-6)


def _losses(seen: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Returns log P/Q of what is seen, with the example of a known part against without, over all patterns.

    No blocks are used: the law of the noise is the normal one with covariance σ²(CᵀC)⁻¹, and P is a mixture over all
    subsets of the part's steps.
    """
    inverse = matrix(toeplitz_coefficients(PARTS, STEPS), STEPS)
    inverse = inverse.T @ inverse / NOISE**2
    q = PARTS * BATCH / EXAMPLES
    losses = np.zeros(seen.shape[1])
    for own in range(PARTS):
        steps, of = list(range(own, STEPS, PARTS)), part == own
        terms = []
        for taken in itertools.product([0, 1], repeat=len(steps)):
            x = np.zeros(STEPS)
            x[[step for step, here in zip(steps, taken, strict=True) if here]] = 1
            weight = sum(math.log(q if here else 1 - q) for here in taken)
            terms.append(weight + x @ inverse @ seen[:, of] - x @ inverse @ x / 2)
        losses[of] = np.logaddexp.reduce(terms, axis=0)
    return losses


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_epsilon_agrees_with_a_simulation(simulated: tuple[np.ndarray, ...], direction: str) -> None:
    """δ(ε) of the accounted ε is what the simulated mechanism has.

    The adversary knows the part, as in the proof. The blocks of part 0 are whole, so that the bound is exact for it;
    the others' last blocks are cut off, and their δ must not be larger. A comparison of two estimates with 4 standard
    errors fails a correct mechanism with probability 6e-5, and there are eight. One standard error is below 1 % of δ,
    so that a δ that is wrong by 5 % is seen.
    """
    added, noise, parts = simulated
    event = CyclicPoissonSampler(EXAMPLES, BATCH, EXAMPLES, parts=PARTS).event(noise_multiplier=NOISE, steps=STEPS)
    seen = NOISE * noise + (added if direction == "remove" else 0)
    losses = _losses(seen, parts) * (1 if direction == "remove" else -1)
    for delta in (0.2, 0.1):
        loss = privacy_loss(event, 1e-4)
        epsilon = getattr(loss, direction).epsilon(delta)
        gained = np.maximum(0.0, -np.expm1(epsilon - losses))
        longest, others = gained[parts == 0], gained[parts != 0]
        error = longest.std() / math.sqrt(len(longest))
        assert longest.mean() == pytest.approx(delta, abs=4 * error)
        assert others.mean() <= delta + 4 * others.std() / math.sqrt(len(others))
        assert error < 0.01 * delta


def test_a_wrong_sensitivity_shows_in_the_simulation() -> None:
    """Planted: with a band more than there are parts, the simulated δ is above the accounted one."""
    steps, parts, q, sigma = 8, 1, 0.9, 2.0
    column = toeplitz_coefficients(4, steps)
    c, rng = matrix(column, steps), np.random.default_rng(2)
    inverse = c.T @ c / sigma**2
    patterns = np.array(list(itertools.product([0.0, 1.0], repeat=steps)))
    weights = np.log(np.where(patterns == 1, q, 1 - q)).sum(axis=1)
    added = (rng.random((steps, 20_000)) < q).astype(float)
    seen = added + np.linalg.solve(c, sigma * rng.standard_normal(added.shape))
    shifts = np.einsum("ps,st,pt->p", patterns, inverse, patterns) / 2
    losses = np.logaddexp.reduce((weights - shifts)[:, None] + patterns @ inverse @ seen, axis=0)
    event = CyclicPoissonSampler(10, 9, 10, parts=parts).event(noise_multiplier=sigma, steps=steps)
    gained = np.maximum(0.0, -np.expm1(epsilon_bound(event, 0.05).epsilon - losses))
    assert gained.mean() > 0.05 + 6 * gained.std() / math.sqrt(len(gained))


def record(**changes: object) -> MechanismRecord:
    values: dict[str, object] = {
        "sampler": "poisson",
        "examples": 10_000,
        "expected_batch_size": 100,
        "max_batch_size": 10_000,
        "steps": 250,
        "noise_multiplier": 1.5,
        "l2_clip_norm": 1.0,
        "bands": 8,
    }
    return MechanismRecord(**{**values, **changes})  # type: ignore[arg-type]


def test_a_record_is_accounted_for_by_rounds() -> None:
    plain = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    plain.compose(
        dp_accounting.SelfComposedDpEvent(
            dp_accounting.PoissonSampledDpEvent(0.08, dp_accounting.GaussianDpEvent(1.5)), 32
        )
    )
    assert record().epsilon_bound(1e-4).epsilon == pytest.approx(plain.get_epsilon(1e-4), rel=2e-3)
    assert record(bands=1).epsilon_bound(1e-4).epsilon < record().epsilon_bound(1e-4).epsilon
    assert record().epsilon_lower(1e-4) is None


def test_a_record_without_bands_is_of_independent_noise() -> None:
    assert "bands" not in record(bands=1).to_json()
    assert MechanismRecord.from_json(record(bands=1).to_json()) == record(bands=1)
    assert MechanismRecord.from_json(record().to_json()) == record()


def test_what_is_not_accounted_for_is_refused() -> None:
    with pytest.raises(ValueError, match="is for single examples, not for groups"):
        record().epsilon_bound(1e-4, group_size=2)
    with pytest.raises(ValueError, match="with sampler 'poisson', not 'shuffle'"):
        record(sampler="shuffle").epsilon_bound(1e-4)
    with pytest.raises(
        ValueError, match="bands must be from 1 to 100, the number of batches of 100 in 10,000 examples"
    ):
        record(bands=101).epsilon_bound(1e-4)


def test_truncation_is_that_of_poisson_batches_and_tails_those_of_blocks() -> None:
    correlated, plain = record(max_batch_size=150), record(max_batch_size=150, bands=1)
    batches = [one.stated_sampler.truncation_delta(250) for one in (correlated, plain)]
    assert batches[0] == batches[1] > 0
    block = record(bands=1, coordinates=8 * correlated.coordinates)
    of_block = block.tail_charge().delta / (250 * 0.01) * 32 * 0.08
    assert correlated.tail_charge().delta == pytest.approx(of_block)


def test_parts_are_drawn_independently_and_once() -> None:
    """Sizes of parts have the binomial's variance: each is outside of 5.5 standard deviations with probability 4e-8."""
    sampler = make_sampler(
        examples=60_000, expected_batch_size=3_000, steps=40, target_delta=1e-5, entropy=(1,), bands=4
    )
    batches = [sampler.batch(step) for step in range(40)]
    again = make_sampler(examples=60_000, expected_batch_size=3_000, steps=40, target_delta=1e-5, entropy=(1,), bands=4)
    assert all(np.array_equal(again.batch(step).indices, batches[step].indices) for step in (3, 38))
    part_of = np.full(60_000, -1)
    for step, batch in enumerate(batches):
        assert np.all((part_of[batch.indices] == -1) | (part_of[batch.indices] == step % 4))
        part_of[batch.indices] = step % 4
    sizes = [batch.size for batch in batches]
    assert np.abs(stats.zscore(sizes)).max() < 5.5
    assert np.mean(sizes) == pytest.approx(3_000, abs=5.5 * math.sqrt(3_000 / 40))
