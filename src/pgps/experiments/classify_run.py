"""`pgps bnn`: Bayesian networks on one data set, with their scores, a reliability diagram and the doubtful examples."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pgps import metrics, reporting
from pgps.experiments.classify import FOLLOW_A_PATH, HIDDEN, METHODS, RATE, Scale, Sizes, measure
from pgps.reporting.classification import draw_examples, draw_reliability
from pgps.reporting.run import judge
from pgps.result import Result, Status
from pgps.sample import sample
from pgps.targets import BNN, Dataset, Prediction, load_dataset, partition, perceptron, split

SCORE_NAMES = {
    "accuracy": "Accuracy",
    "nll": "Negative log-likelihood",
    "brier": "Brier score",
    "ece": "ECE (likeliest class, 10 bins)",
    "classwise_ece": "ECE (average over classes)",
}
_TEST_FRACTION = 0.25
_NUM_EXAMPLES = 12
_KEPT = ("method", "num_particles", "dim", "key", "seconds", "created", "versions")


@dataclass(frozen=True, eq=False)
class Classification:
    """Networks that were sampled, and what they say about the test part.

    Attributes:
        train: The training part, standardised.
        test: The test part, standardised by the training part.
        images: The test part's rows as they were, where they are images.
        result: The sampled networks.
        prediction: Their joint prediction for the test part.
    """

    train: Dataset
    test: Dataset
    images: np.ndarray | None
    result: Result
    prediction: Prediction

    @property
    def scores(self) -> dict[str, float]:
        """Accuracy, likelihood and calibration on the test part."""
        return measure(self.prediction.mean, self.test.labels)

    def table(self) -> list[tuple[str, str]]:
        """The scores, for people."""
        return [(SCORE_NAMES[name], f"{value:.4f}") for name, value in self.scores.items()]


def run(
    name: str,
    *,
    seed: int = 0,
    method: str = "pgps",
    num_particles: int = 20,
    hidden: int = HIDDEN,
    alpha: float = 0.0,
    beta: float = 1.0,
    iterations: int = Sizes().iterations,
    rate: float = RATE,
    batch_size: int = 100,
    prior_scale: float = 1.0,
    progress: bool | None = None,
) -> Classification:
    """Sample networks with one hidden layer on a data set's training part, and predict its test part.

    Args:
        name: The data set, as `targets.load_dataset` has them.
        seed: Of the split and of the sampler.
        method: The sampler.
        num_particles: How many networks.
        hidden: Hidden units.
        alpha: The path's alpha, for methods that follow one.
        beta: The path's beta.
        iterations: How many Langevin steps, or steps of the other methods.
        rate: The learning rate of the mean loss, which the step size is made from.
        batch_size: Rows of a minibatch.
        prior_scale: The prior's standard deviation.
        progress: Whether to show a progress bar; None shows it on a terminal.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}; choose one of these")
    data = load_dataset(name, drop_missing=False)
    if data.num_classes < 2:
        raise ValueError(f"name must be a set with classes, got {name!r}; choose another")
    train, test = split(data, seed, _TEST_FRACTION)
    network = perceptron((train.features.shape[1], hidden, train.num_classes))
    posterior = BNN(network, train.features, train.labels, prior_scale=prior_scale, batch_size=batch_size)
    path = {"alpha": alpha, "beta": beta} if method in FOLLOW_A_PATH else {}
    sampler = METHODS[method](Scale(len(train.labels), num_particles, rate), Sizes(iterations), **path)
    result = sample(
        posterior,
        posterior.prior,
        key=jax.random.key(seed),
        num_particles=num_particles,
        method=sampler,
        progress=progress,
    )
    if result.status == Status.INTERRUPTED:
        raise KeyboardInterrupt
    images = None if data.image_shape is None else _images(data, seed)
    return Classification(train, test, images, result, posterior.predict(result, test.features))


def _images(data: Dataset, seed: int) -> np.ndarray:
    assert data.image_shape is not None
    return partition(data, seed, _TEST_FRACTION)[1].features.reshape(-1, *data.image_shape)


def save(found: Classification, folder: Path, *, asked: str) -> Path:
    """Write the networks, pictures and the report into a new or empty folder; returns the report's path."""
    pictures = _pictures(found)
    record = _record(found, asked)
    page = reporting.render(_report(found, record, list(pictures.values())))
    found.result.save(folder)
    for name, image in pictures.items():
        (folder / f"{name}.{image.kind}").write_bytes(image.data)
    (folder / "scores.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _pictures(found: Classification) -> dict[str, reporting.Image]:
    bins = metrics.reliability(found.prediction.mean, found.test.labels)
    caption = "Accuracy beside confidence: a calibrated prediction lies on the diagonal. Below: rows in each bin."
    diagram = reporting.encode(draw_reliability(bins), "png")
    pictures = {"reliability": reporting.Image(diagram, "png", caption, "Reliability diagram of the test part")}
    if found.images is not None:
        chosen = np.argsort(-found.prediction.entropy)[:_NUM_EXAMPLES]
        figure = draw_examples(
            found.images[chosen],
            found.test.labels[chosen],
            found.prediction.mean[chosen],
            found.prediction.entropy[chosen],
        )
        caption = (
            "The test images about which the networks are least certain: their label, and the two likeliest classes."
        )
        pictures["uncertain"] = reporting.Image(
            reporting.encode(figure, "png"), "png", caption, "The least certain test images"
        )
    return pictures


def _record(found: Classification, asked: str) -> dict[str, Any]:
    provenance = found.result.provenance
    return {
        "asked": asked,
        "dataset": found.train.name,
        "rows": {"train": len(found.train.labels), "test": len(found.test.labels)},
        "num_classes": found.train.num_classes,
        "scores": found.scores,
        **{
            name: provenance[name]
            for name in ("method", "num_particles", "dim", "key", "seconds", "created", "versions")
        },
    }


def _report(found: Classification, record: dict[str, Any], images: list[reporting.Image]) -> reporting.Report:
    result, scores = found.result, found.scores
    wrong = np.argmax(found.prediction.mean, axis=1) != found.test.labels
    rows = [
        (
            text,
            f"{np.mean(found.prediction.entropy[where]):.3f}",
            f"{np.mean(found.prediction.disagreement[where]):.3f}",
        )
        for text, where in (("rows that are right", ~wrong), ("rows that are wrong", wrong))
        if np.any(where)
    ]
    uncertainty = reporting.Table(
        "Mean uncertainty, in nats", ("", "entropy", "of which the networks' disagreement"), rows
    )
    return reporting.Report(
        title=f"Bayesian networks on {found.train.name.upper()}",
        asked=record["asked"],
        verdict=judge(result),
        facts={
            "Accuracy": f"{scores['accuracy']:.1%}",
            "Expected calibration error": f"{scores['ece']:.3f}",
            "Negative log-likelihood": f"{scores['nll']:.3f}",
            "Networks": f"{result.num_particles}",
            "Parameters of each": f"{record['dim']:,}",
            "Training / test rows": f"{record['rows']['train']:,} / {record['rows']['test']:,}",
            "Gradient calls": f"{result.num_evaluations.gradients:,}",
            "Seconds": f"{record['seconds']:.1f}",
        },
        warnings=result.warnings,
        tables=(reporting.Table("On the test part", ("score", "value"), found.table()), uncertainty),
        images=images,
        text=result.summary(),
        versions=record["versions"],
        settings=record,
    )
