"""The training-step benchmark: its smoke preset runs, its record is whole, and both libraries take the same step."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pgps import fields, trainers
from pgps.benchmarks import training_step
from pgps.density import Population
from pgps.fields.mlp import Layer, MLPParameters


def test_smoke(tmp_path):
    record = training_step.run(tmp_path / "out", quiet=True, repeats=1, preset=training_step.SMOKE)
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == json.loads(json.dumps(record))
    assert [row["shape"] for row in record["milliseconds_per_training_step"]] == [[50, 1, 8], [20, 3, 8]]
    assert all(row["pgps"] > 0 for row in record["milliseconds_per_training_step"])
    run = record["mode_discovery"][0]
    assert run["seconds"] > 0
    assert run["training_steps"] <= 5 * run["time_steps"]
    table = training_step.format_table(record)
    assert "20, 3, 8" in table
    assert ("pip install 'pgps[bench]'" in table) == (record["versions"]["torch"] is None)


def test_an_occupied_folder_is_refused_before_anything_is_measured(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="holds files"):
        training_step.run(tmp_path, quiet=True)


def test_a_missing_peer_leaves_its_columns_empty(monkeypatch, tmp_path):
    monkeypatch.setattr(training_step, "torch_version", lambda: None)
    record = training_step.run(None, quiet=True, repeats=1, preset=training_step.SMOKE)
    assert all(row["torch_published"] is None for row in record["milliseconds_per_training_step"])
    assert "not installed" in training_step.format_table(record)


@pytest.mark.parametrize("dim", [1, 2])
def test_torch_takes_the_same_step(monkeypatch, dim):
    """Both libraries' losses after three Adam steps from the same weights agree to float32."""
    torch = pytest.importorskip("torch")
    shape = training_step.Shape(30, dim, 4)
    generator = np.random.default_rng(1)
    weights = [generator.normal(size=size).astype(np.float32) for size in ((4, dim), (4,), (dim, 4), (dim,))]
    made = []

    def linear(n, m, original=torch.nn.Linear):
        layer = original(n, m)
        weight, bias = weights[2 * len(made) : 2 * len(made) + 2]
        layer.weight.data, layer.bias.data = torch.from_numpy(weight.copy()), torch.from_numpy(bias.copy())
        made.append(layer)
        return layer

    monkeypatch.setattr(torch.nn, "Linear", linear)
    for sum_first in (False, True):
        made.clear()
        loss = training_step._torch_steps(shape, sum_first)(3)
        params = MLPParameters(
            (Layer(jnp.asarray(weights[0].T), jnp.asarray(weights[1])),),
            Layer(jnp.asarray(weights[2]), jnp.asarray(weights[3])),
            None,
            None,
        )
        particles, derivative = map(jnp.asarray, training_step._numbers(shape))
        population = Population(particles, derivative, -particles, derivative)
        trainer = trainers.Gradient(threshold=0.0, max_steps=2)
        key, t = jax.random.key(0), jnp.zeros(())
        *_, training = trainer.fit(key, t, population, fields.MLP(4), params, trainer.init(params))
        # torch reads its loss before each update: the third is the loss after two.
        np.testing.assert_allclose(loss, training.loss, rtol=1e-4)
