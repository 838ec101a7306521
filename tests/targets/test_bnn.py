"""Posteriors of networks: gradients network by network, batches that are right on average, and joint predictions."""

import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from scipy import special, stats

import pgps
from helpers import assert_close, normal_array
from pgps.density import Evaluations, Problem, evaluate_target, map_particles
from pgps.methods import Langevin
from pgps.result import Result
from pgps.targets import BNN, AbstractLikelihood, Bernoulli, Categorical, Gaussian, bnn, perceptron, standardise

NUM_ROWS, SCALE, NOISE = 23, 0.7, 0.4
ROWS = np.random.default_rng(1).standard_normal((NUM_ROWS, 3))
CLASSES = np.arange(NUM_ROWS) % 3
NUMBERS = np.random.default_rng(2).standard_normal((NUM_ROWS, 2))
LIKELIHOODS: dict[str, tuple[AbstractLikelihood, int, np.ndarray]] = {
    "categorical": (Categorical(), 3, CLASSES),
    "bernoulli": (Bernoulli(), 1, CLASSES % 2),
    "gaussian": (Gaussian(NOISE), 2, NUMBERS),
}
evaluate = eqx.filter_jit(evaluate_target)


def posterior(name: str = "categorical", **settings: Any) -> BNN:
    """A network with four hidden units."""
    likelihood, outputs, labels = LIKELIHOODS[name]
    return BNN(perceptron((3, 4, outputs)), ROWS, labels, likelihood, prior_scale=SCALE, **settings)


def log_likelihood(name: str, z: np.ndarray) -> tuple[float, np.ndarray]:
    """Its sum over rows, and its derivative by the outputs z."""
    labels = LIKELIHOODS[name][2]
    if name == "categorical":
        one_hot = np.eye(3)[labels]
        return np.sum(one_hot * special.log_softmax(z, axis=1)), one_hot - special.softmax(z, axis=1)
    if name == "bernoulli":
        y = labels[:, None]
        return np.sum(y * special.log_expit(z) + (1 - y) * special.log_expit(-z)), y - special.expit(z)
    return np.sum(stats.norm.logpdf(labels, z, NOISE)), (labels - z) / NOISE**2


def one_network(name: str, theta: np.ndarray, num_outputs: int) -> tuple[float, np.ndarray]:
    """ln p(theta, y) and its gradient by backpropagation, written out in NumPy."""
    W1, b1, W2, b2 = np.split(theta, np.cumsum([12, 4, 4 * num_outputs]))
    W1, W2 = W1.reshape(4, 3), W2.reshape(num_outputs, 4)
    hidden = special.expit(ROWS @ W1.T + b1)
    value, dz = log_likelihood(name, hidden @ W2.T + b2)
    dh = dz @ W2 * hidden * (1 - hidden)
    gradient = np.concatenate([(dh.T @ ROWS).ravel(), dh.sum(0), (dz.T @ hidden).ravel(), dz.sum(0)])
    return value + np.sum(stats.norm.logpdf(theta, 0, SCALE)), gradient - theta / SCALE**2


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.usefixtures("x64")
def test_values_and_gradients_network_by_network(name: str):
    target = posterior(name)
    problem = Problem.of(target, target.prior)
    particles = normal_array(5, problem.structure.dim)
    population = evaluate(particles, problem)
    expected = [one_network(name, np.asarray(theta), LIKELIHOODS[name][1]) for theta in particles]
    np.testing.assert_allclose(population.logdensity, [value for value, _ in expected], rtol=1e-12)
    np.testing.assert_allclose(population.score, [gradient for _, gradient in expected], rtol=1e-10, atol=1e-10)


class Shuffled(eqx.Module):
    """A network that holds whole numbers too, which are no parameters."""

    order: Array
    linear: eqx.nn.Linear
    squash: Callable[[Array], Array] = jnp.tanh

    def __call__(self, x: Array) -> Array:
        return self.squash(self.linear(x[self.order]))


def mlp(key: Array) -> eqx.Module:
    return eqx.nn.MLP(3, 3, 5, 2, activation=jnp.tanh, key=key)


def shuffled(key: Array) -> eqx.Module:
    return Shuffled(jnp.array([2, 0, 1]), eqx.nn.Linear(3, 3, key=key))


def mlp_by_hand(network: Any, x: Array) -> Array:
    first, second, last = network.layers
    h = jnp.tanh(second.weight @ jnp.tanh(first.weight @ x + first.bias) + second.bias)
    return last.weight @ h + last.bias


def shuffled_by_hand(network: Any, x: Array) -> Array:
    return jnp.tanh(network.linear.weight @ jnp.array([x[2], x[0], x[1]]) + network.linear.bias)


@pytest.mark.parametrize(("make", "by_hand"), [(mlp, mlp_by_hand), (shuffled, shuffled_by_hand)], ids=["mlp", "own"])
@pytest.mark.usefixtures("x64")
def test_any_module_is_a_network(make: Callable, by_hand: Callable):
    network = make(jax.random.key(0))
    target = BNN(network, ROWS, CLASSES, prior_scale=SCALE)
    problem = Problem.of(target, target.prior)
    particles = normal_array(3, problem.structure.dim)
    population = evaluate(particles, problem)

    def reference(theta: Array) -> Array:
        parameters = problem.structure.unravel(theta)
        z = jax.vmap(lambda row: by_hand(parameters, row))(jnp.asarray(ROWS))
        log_likelihoods = z[jnp.arange(NUM_ROWS), CLASSES] - jnp.log(jnp.sum(jnp.exp(z), axis=1))
        return jnp.sum(jax.scipy.stats.norm.logpdf(theta, 0.0, SCALE)) + jnp.sum(log_likelihoods)

    values, scores = jax.jit(jax.vmap(jax.value_and_grad(reference)))(particles)
    assert_close((population.logdensity, population.score), (values, scores))


def test_a_network_with_whole_numbers_is_sampled_and_predicts():
    target = BNN(shuffled(jax.random.key(0)), ROWS, CLASSES)  # pyright: ignore[reportArgumentType]
    result = pgps.sample(target, target.prior, key=jax.random.key(1), num_particles=3, method=Langevin(1e-3, 2))
    assert target.predict(result, ROWS).mean.shape == (NUM_ROWS, 3)


def test_the_prior_is_a_law_to_start_from():
    target = posterior()
    particle = eqx.filter_jit(target.prior.sample)(jax.random.key(0))
    assert jax.tree.structure(particle) == jax.tree.structure(target.network)
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(particle)])
    expected = stats.norm.logpdf(flat, 0, SCALE).sum()
    assert float(eqx.filter_jit(target.prior.logdensity)(particle)) == pytest.approx(expected, rel=1e-5)
    rest = eqx.filter_jit(lambda particle: target(particle) - target.log_likelihood(particle))(particle)
    assert float(rest) == pytest.approx(expected, rel=1e-4)


class TestBatches:
    """Estimates on random rows."""

    @pytest.mark.usefixtures("x64")
    def test_their_mean_is_the_whole(self):
        target = posterior(batch_size=5)
        problem, theta = Problem.of(target, target.prior), normal_array(31)
        keys = jax.random.split(jax.random.key(3), 4000)

        @jax.jit
        def estimates(keys: Array) -> tuple[Array, Array]:
            return jax.vmap(lambda key: jax.value_and_grad(problem.estimated(key).log_target)(theta))(keys)

        exactly = jax.jit(jax.value_and_grad(problem.log_target))(theta)
        for found, whole in zip(estimates(keys), exactly, strict=True):
            error = np.std(found, axis=0, ddof=1) / np.sqrt(len(keys))
            assert np.all(error > 0)
            np.testing.assert_array_less(np.abs(np.mean(found, axis=0) - whole), 4 * error)

    @pytest.mark.parametrize("per_particle", [True, False])
    def test_particles_have_batches_of_their_own_or_share_one(self, per_particle: bool):
        target = posterior(batch_size=4, per_particle=per_particle)
        same = jnp.broadcast_to(normal_array(31), (6, 31))
        problem = Problem.of(target, target.prior)

        @jax.jit
        def values(key: Array) -> Array:
            return map_particles(lambda x, problem: problem.log_target(x), same, problem, key)

        first, second = values(jax.random.key(0)), values(jax.random.key(1))
        assert len(np.unique(np.round(first, 3))) == (6 if per_particle else 1)
        assert not np.any(np.isclose(first, second))
        whole = map_particles(lambda x, problem: problem.log_target(x), same, problem, None)
        np.testing.assert_allclose(whole, target(problem.structure.unravel(same[0])), rtol=1e-5)

    @pytest.mark.usefixtures("x64")
    def test_rescaling_counts_a_batch_for_all_rows(self):
        key, theta = jax.random.key(5), normal_array(31)
        scaled, plain = (posterior(batch_size=5, rescale=rescale) for rescale in (True, False))
        rows = jax.random.randint(key, (5,), 0, NUM_ROWS)
        batch = BNN(perceptron((3, 4, 3)), ROWS[rows], CLASSES[rows], prior_scale=SCALE)
        particle = Problem.of(plain, plain.prior).structure.unravel(theta)
        assert_close(plain.estimate(key)(particle), batch(particle))
        likelihood = batch.log_likelihood(particle)
        assert_close(scaled.estimate(key)(particle) - batch(particle), (NUM_ROWS / 5 - 1) * likelihood, 1e-9)

    @pytest.mark.parametrize("batch_size", [NUM_ROWS, NUM_ROWS + 1, 10**6, None])
    def test_a_batch_of_all_rows_is_no_estimate(self, batch_size: int | None):
        target = posterior(batch_size=batch_size)
        assert target.estimate(jax.random.key(0)) is target


def result_of(particles: Any, log_weights: Any) -> Result:
    weights = jnp.asarray(log_weights)
    return Result(particles, weights, pgps.Status.COMPLETED, 1.0, Evaluations(), {}, (), {})


def some_result(target: BNN, log_weights: Any) -> Result:
    structure = Problem.of(target, target.prior).structure
    return result_of(jax.vmap(structure.unravel)(normal_array(len(log_weights), structure.dim)), log_weights)


LOG_WEIGHTS = np.log([0.1, 0.6, 0.3])


class TestPredictions:
    """Mean, entropy and disagreement of weighted networks."""

    @pytest.mark.parametrize("log_weights", [LOG_WEIGHTS + 5, [0.0, 0.0, -np.inf]], ids=["weights", "one-without"])
    @pytest.mark.parametrize("name", ["categorical", "bernoulli"])
    @pytest.mark.usefixtures("x64")
    def test_of_classes(self, name: str, log_weights: Any):
        target = posterior(name)
        result = some_result(target, log_weights)
        rows = np.random.default_rng(8).standard_normal((11, 3))
        outputs = np.stack(
            [
                target.outputs(jax.tree.map(lambda leaf, i=i: leaf[i], result.particles), jnp.asarray(rows))
                for i in range(3)
            ]
        )
        p = special.softmax(outputs, axis=2)
        if name == "bernoulli":
            p = np.concatenate([special.expit(-outputs), special.expit(outputs)], axis=2)
        weights = special.softmax(log_weights)
        mean = np.einsum("p,pnc->nc", weights, p)
        entropy = -np.sum(mean * np.log(mean), axis=1)
        found = target.predict(result, rows)
        np.testing.assert_allclose(found.mean, mean)
        np.testing.assert_allclose(found.entropy, entropy)
        np.testing.assert_allclose(
            found.disagreement, entropy + np.einsum("p,pnc->n", weights, p * np.log(p)), atol=1e-12
        )
        assert np.all(found.disagreement > 0)

    @pytest.mark.usefixtures("x64")
    def test_of_numbers(self):
        target = posterior("gaussian")
        result = some_result(target, LOG_WEIGHTS)
        outputs = target.network_predictions(result.particles, ROWS)
        weights = np.exp(LOG_WEIGHTS)
        mean = np.einsum("p,pnc->nc", weights, outputs)
        variance = NOISE**2 + np.einsum("p,pnc->nc", weights, outputs**2) - mean**2
        found = target.predict(result, ROWS)
        np.testing.assert_allclose(found.mean, mean)
        entropy = stats.norm.entropy(0, np.sqrt(variance)).sum(axis=1)
        np.testing.assert_allclose(found.entropy, entropy)
        np.testing.assert_allclose(found.disagreement, entropy - 2 * stats.norm.entropy(0, NOISE), atol=1e-12)

    def test_networks_that_agree(self):
        target = posterior()
        one = target.prior.sample(jax.random.key(0))
        same = jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), one)
        found = target.predict(result_of(same, np.zeros(4)), ROWS)
        np.testing.assert_allclose(found.disagreement, 0.0, atol=1e-6)
        assert np.all(found.entropy > 0)

    def test_blocks_of_rows_do_not_matter(self, monkeypatch: pytest.MonkeyPatch):
        target = posterior()
        result = some_result(target, LOG_WEIGHTS)
        whole = target.predict(result, ROWS).mean
        monkeypatch.setattr(bnn, "_ROWS_AT_ONCE", 9)
        np.testing.assert_allclose(target.predict(result, ROWS).mean, whole, rtol=1e-6)

    @pytest.mark.parametrize("rows", [np.zeros((4, 2)), np.zeros(3), np.full((2, 3), np.nan), [[0.0, np.inf, 0.0]]])
    def test_rows_that_do_not_fit(self, rows: Any):
        target = posterior()
        with pytest.raises(ValueError, match="features must be finite rows of 3 numbers, got .*; standardise them"):
            target.predict(some_result(target, LOG_WEIGHTS), rows)


def test_constant_columns_and_unseen_classes_give_no_nan():
    """A column that is constant in training, far off in the test, and a class that training rows do not have."""
    train, test = ROWS.copy(), ROWS[:5].copy()
    train[:, 1], test[:, 1] = 4.2, 1e3
    train, test = standardise(train, test)
    target = BNN(perceptron((3, 4, 4)), train, CLASSES)
    result = pgps.sample(target, target.prior, key=jax.random.key(0), num_particles=4, method=Langevin(1e-2, 20))
    found = target.predict(result, test)
    assert found.mean.shape == (5, 4)
    assert all(np.all(np.isfinite(part)) for part in found)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"labels": CLASSES + 1}, ValueError, "labels must lie in 0, ..., 2, got 3; count classes from 0"),
        ({"labels": CLASSES - 1}, ValueError, "labels must lie in 0, ..., 2, got -1"),
        ({"labels": np.array(["M", "R", "S"])[CLASSES]}, TypeError, "labels must be numbers, got"),
        (
            {"labels": CLASSES[:-1]},
            ValueError,
            "must have shapes (n, d) and (n,), got (23, 3) and (22,); give each row",
        ),
        ({"features": ROWS[:, 0]}, ValueError, "must have shapes (n, d) and (n,), got (23,) and (23,)"),
        ({"features": ROWS[:0], "labels": CLASSES[:0]}, ValueError, "got (0, 3) and (0,)"),
        ({"features": np.full((23, 3), "a")}, TypeError, "features must be numbers, got"),
        ({"features": np.where(ROWS[7, 1] == ROWS, np.nan, ROWS)}, ValueError, "got nan in row 7, column 1; drop it"),
        ({"features": np.where(ROWS[2, 0] == ROWS, np.inf, ROWS)}, ValueError, "got inf in row 2, column 0; drop it"),
        ({"features": ROWS[:, :2]}, ValueError, "network fails on a row of 2 features ("),
        ({"network": "mlp"}, TypeError, "network must be a function (row of features) -> outputs, got 'mlp'"),
        ({"network": jnp.tanh}, ValueError, "network must have parameters, got"),
        ({"network": perceptron((3, 1))}, ValueError, "categorical network must have 2 outputs or more, got 1"),
        ({"likelihood": "softmax"}, TypeError, "likelihood must be one of targets.Categorical, Bernoulli, Gaussian"),
        ({"prior_scale": 0.0}, ValueError, "prior_scale must be positive, got 0.0"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        ({"batch_size": 2.5}, TypeError, "batch_size must be a whole number, got 2.5"),
    ],
)
def test_bad_input(changes: dict, error: Any, words: str):
    given = {"network": perceptron((3, 4, 3)), "features": ROWS, "labels": CLASSES} | changes
    with pytest.raises(error, match=re.escape(words)) as caught:
        BNN(**given)
    assert "\n" not in str(caught.value)


def test_a_network_must_return_a_vector():
    class Square(eqx.Module):
        weight: Array

        def __call__(self, x: Array) -> Array:
            return jnp.outer(self.weight * x, x)

    with pytest.raises(ValueError, match="network must return a vector of outputs for one row, got .*; flatten it"):
        BNN(Square(jnp.ones(3)), ROWS, CLASSES)


@pytest.mark.parametrize(
    ("sizes", "error", "words"),
    [
        ((3,), ValueError, "sizes must name inputs and outputs, got [3]; as in (60, 32, 2)"),
        ((3, 0, 2), ValueError, "sizes must be at least 1, got 0"),
        ((3, 4.5, 2), TypeError, "sizes must be a whole number, got 4.5"),
    ],
)
def test_sizes_of_no_network(sizes: Any, error: Any, words: str):
    with pytest.raises(error, match=re.escape(words)):
        perceptron(sizes)


@pytest.mark.usefixtures("x64")
def test_a_perceptron_has_linear_outputs():
    network = perceptron((3, 5, 4, 2), jnp.tanh)
    x = normal_array(3)
    first, second, last = network.layers[0], network.layers[2], network.layers[4]
    h = np.tanh(second.weight @ np.tanh(first.weight @ x + first.bias) + second.bias)
    np.testing.assert_allclose(network(x), last.weight @ h + last.bias)
