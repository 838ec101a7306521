"""What a run returns: particles, how it ended, what to doubt, and what it cost."""

import dataclasses
import enum
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from pgps import _checks, storage
from pgps.density import Evaluations, Structure
from pgps.draw import Fitted, draw
from pgps.metrics.clusters import Modes, find_modes
from pgps.settings import describe
from pgps.weights import pareto_k
from pgps.weights.pareto import LARGEST_K

if TYPE_CHECKING:
    from xarray import DataTree

_REAL = (jax.numpy.floating, jax.numpy.integer, np.bool_)
_MOST_ROWS = 12
_MOST_PARTICLES = 100_000


class PGPSWarning(UserWarning):
    """Raised once per run, with everything about it that should be doubted."""


class Status(enum.IntEnum):
    """How a run ended."""

    COMPLETED = 0
    RUNNING = 1
    NONFINITE_DENSITY = 2
    NONFINITE_PARTICLES = 3
    STEP_LIMIT = 4
    INTERRUPTED = 5
    OUTSIDE_SUPPORT = 6
    EVALUATION_LIMIT = 7
    TIME_LIMIT = 8


@dataclasses.dataclass(frozen=True)
class Result:
    """The outcome of `pgps.sample`.

    Attributes:
        particles: The particles, in the user's own pytree, with a leading axis over them.
        log_weights: Unnormalised log-weights. A method without exact weights gives 0, or -inf outside the support.
        status: How the run ended.
        t: The time that was reached: 1 if the run is complete.
        num_evaluations: Calls of the log-density, counted and summed over particles.
        trace: One entry per step of each diagnostic; `evaluations` are the calls for each particle so far.
        warnings: What should make a reader wary, one sentence each.
        provenance: Settings, versions and seconds: all that is needed to repeat the run.
        ess: The effective sample size; None where the method has no exact weights.
        log_evidence: The log of the target's normalising constant; None where the method gives none.
        log_evidence_error: Its standard error.
        families: Particles that descend from the same first one have the same number; None without weights.
        fitted: The fields and moves of the run, for `draw`; None where there are none, or after `pgps.load`.
    """

    particles: PyTree[Float[Array, "n ..."]]
    log_weights: Float[Array, " n"]
    status: Status
    t: float
    num_evaluations: Evaluations
    trace: dict[str, np.ndarray]
    warnings: tuple[str, ...]
    provenance: dict[str, Any]
    ess: float | None = None
    log_evidence: float | None = None
    log_evidence_error: float | None = None
    families: Int[Array, " n"] | None = None
    fitted: Fitted | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def num_particles(self) -> int:
        """N."""
        return len(self.log_weights)

    @property
    def second_start(self) -> str | None:
        """Why this is a second run, if it is: what the first one had come to."""
        if (first := self.provenance.get("first_run")) is None:
            return None
        covered = self.provenance["covered_maxima"]
        maxima = "1 maximum" if covered == 1 else f"{covered} maxima"
        return (
            f"A first run ({first['log_evidence']:.4f} +- {first['log_evidence_error']:.4f}) had missed modes, or had "
            f"wrong masses; this one started from a law that covers {maxima}."
        )

    def summary(self) -> str:
        """A text of a dozen lines: how it went, what it cost, and the marginal moments of the first coordinates."""
        calls = self.num_evaluations
        is_weighed = "log_evidence" in self.trace
        evidence = "none (t = 1 was not reached)" if is_weighed else "none (this method has no exact weights)"
        if self.log_evidence is not None:
            evidence = f"{self.log_evidence:.4f} +- {self.log_evidence_error:.4f}"
        lines = [
            f"{self.provenance['method']['class'].split('.')[-1]}: {self.status.name.lower()}, t = {self.t:g} after "
            f"{len(self.trace['t'])} steps, {self.provenance['seconds']:.1f} s",
            f"{self.num_particles} particles in {self.provenance['dim']} dimensions, "
            f"{calls.gradients:,} gradient and {calls.values:,} value calls of the log-density",
            f"log evidence: {evidence}",
            *([] if self.second_start is None else [self.second_start]),
            *self._marginals(),
            *self._modes_table(),
            *[f"doubt: {warning}" for warning in self.warnings],
        ]
        return "\n".join(lines)

    def modes(self) -> Modes:
        """The modes that the weighted particles form, with the mass of each and its standard error."""
        return find_modes(self._columns(), np.asarray(self.log_weights), self.families)

    def draw(self, key: Array, num: int) -> "Result":
        """Fresh particles through the fitted fields, with exact weights and an unbiased evidence of their own.

        They go the way that the run went, so all that is doubtful about the run is doubtful about them.

        Args:
            key: A random key.
            num: How many particles: as many as wanted, since they are drawn in chunks.
        """
        _checks.whole("num", num, at_least=2)
        if self.fitted is None:
            raise ValueError(
                "this result holds no fitted fields to draw with: they come with pgps.exact(), in a run that "
                "completed, and are not written to disk; run pgps.sample again"
            )
        drawn = draw(self.fitted, key, num)
        unravel = jax.vmap(self.fitted.problem.structure.unravel)
        weights = drawn.weights
        k = float(pareto_k(weights.log_weights))
        heavy = [f"the largest weights of these draws have a heavy tail (Pareto k = {k:.2f}, above {LARGEST_K})"]
        return dataclasses.replace(
            self,
            particles=unravel(drawn.particles[:num]),
            log_weights=weights.log_weights[:num],
            num_evaluations=jax.tree.map(lambda count: int(count) * len(drawn.particles), drawn.evaluations),
            warnings=(*self.warnings, *(heavy if k > LARGEST_K else [])),
            ess=float(weights.ess),
            log_evidence=float(weights.log_evidence),
            log_evidence_error=math.hypot(float(weights.log_evidence_error), float(self.fitted.rounding)),
            families=weights.families[:num],
        )

    def resample(self, key: Array, num: int) -> PyTree[Float[Array, "n ..."]]:
        """Equally weighted particles, drawn from these by weight.

        Args:
            key: A random key.
            num: How many.
        """
        _checks.whole("num", num, at_least=1)
        indices = jax.random.choice(key, self.num_particles, (num,), p=jax.nn.softmax(self.log_weights))
        return jax.tree.map(lambda leaf: leaf[indices], self.particles)

    def to_datatree(
        self,
        *,
        key: Array | None = None,
        num_draws: int | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
        coords: Mapping[str, Sequence] | None = None,
        constrain: Callable[[PyTree], PyTree] | None = None,
    ) -> "DataTree":
        """An `xarray.DataTree` for ArviZ and NetCDF (extra `arviz`).

        Its group `posterior` has equally weighted draws, since ArviZ knows no weights; `particles` has all particles
        with `log_weight`; `path_stats` has the trace. Settings, versions, log evidence and warnings are attributes.

        Args:
            key: A random key for the draws; the same result gives the same draws if there is none.
            num_draws: How many draws; as many as the effective sample size if not given, so that errors which ArviZ
                takes from their number are about right, or all particles where they have no weights.
            dims: Names of dimensions, by variable: `{"theta": ["school"]}`.
            coords: Labels along dimensions: `{"school": ["A", "B"]}`.
            constrain: Maps the particles to the variables to store, such as `pgps.bijectors.Unconstrained.constrain`.
        """
        from pgps.adapters.datatree import to_datatree

        return to_datatree(self, key=key, num_draws=num_draws, dims=dims, coords=coords, constrain=constrain)

    def _modes_table(self) -> list[str]:
        """The modes, if the particles have weights and there is more than one."""
        if self.log_evidence is None or self.num_particles > _MOST_PARTICLES:
            return []
        modes = self.modes()
        if len(modes.masses) == 1:
            return ["one mode"]
        lines = str(modes).splitlines()
        more = len(lines) - 1 - _MOST_ROWS
        return lines[: _MOST_ROWS + 1] + ([f"... and {more} more modes"] if more > 0 else [])

    def _columns(self) -> np.ndarray:
        """The particles as flat vectors."""
        return np.concatenate([np.reshape(leaf, (len(leaf), -1)) for leaf in jax.tree.leaves(self.particles)], axis=1)

    def _marginals(self) -> list[str]:
        """Mean, standard deviation and quantiles of each of the first coordinates, as rows of a table."""
        structure = Structure.of(jax.tree.map(lambda leaf: leaf[0], self.particles))
        # Moments of so many particles are exact to more digits than are shown; they are from all islands.
        stride = -(-self.num_particles // _MOST_PARTICLES)
        columns, log_weights = self._columns()[::stride], np.asarray(self.log_weights[::stride], float)
        weights = np.exp(log_weights - np.max(log_weights))
        weights /= weights.sum()
        width = max(len(name) for name in structure.names[:_MOST_ROWS])
        rows = [f"{'':{width}} {'mean':>10} {'sd':>10} {'5%':>10} {'median':>10} {'95%':>10}"]
        for name, column in zip(structure.names[:_MOST_ROWS], columns.T, strict=False):
            mean = weights @ column
            order = np.argsort(column)
            positions = np.searchsorted(np.cumsum(weights[order]), [0.05, 0.5, 0.95])
            quantiles = column[order][np.minimum(positions, len(column) - 1)]
            values = [mean, np.sqrt(weights @ (column - mean) ** 2), *quantiles]
            rows.append(f"{name:{width}} " + " ".join(f"{value:>10.4g}" for value in values))
        if structure.dim > _MOST_ROWS:
            rows.append(f"... and {structure.dim - _MOST_ROWS} more coordinates")
        return rows

    def save(self, path: str | Path) -> Path:
        """Write `result.json` and `particles.npz` into a new or empty folder; `pgps.load` reads them back."""
        tree, leaves = storage.encode_tree(self.particles)
        arrays = {f"particles/{i}": leaf for i, leaf in enumerate(leaves)}
        arrays |= {"log_weights": self.log_weights}
        if self.families is not None:
            arrays |= {"families": self.families}
        # What `observe` calls its measurements need not do as the name of a file in an archive.
        arrays |= {f"trace/{quote(name, errors='surrogatepass')}": values for name, values in self.trace.items()}
        record = {
            "status": self.status.name,
            "num_evaluations": dataclasses.asdict(self.num_evaluations),
            **{name: describe(getattr(self, name)) for name in ("t", "ess", "log_evidence", "log_evidence_error")},
            "warnings": list(self.warnings),
            "provenance": self.provenance,
            "particles": tree,
        }
        return storage.write(Path(path), record, arrays)


def load(path: str | Path, like: PyTree | None = None) -> Result:
    """Read a result that `Result.save` wrote.

    Args:
        path: The folder.
        like: A particle, or any pytree of the same structure. It is needed only where particles are made of classes of
            the user's own, whose names a file does not hold; without it they come back as a dict.
    """
    record, arrays = storage.read(Path(path))
    with storage.refusing(storage.damaged_result(Path(path))):
        leaves = [arrays[f"particles/{i}"] for i in range(sum(name.startswith("particles/") for name in arrays))]
        trace = {name.removeprefix("trace/"): arrays[name] for name in arrays if name.startswith("trace/")}
        result = Result(
            particles=storage.decode_tree(record["particles"], leaves),
            log_weights=jax.numpy.asarray(arrays["log_weights"]),
            status=Status[record["status"]],
            num_evaluations=Evaluations(**{name: int(count) for name, count in record["num_evaluations"].items()}),
            trace={unquote(name, errors="surrogatepass"): values for name, values in trace.items()},
            warnings=tuple(record["warnings"]),
            provenance=dict(record["provenance"]),
            families=jax.numpy.asarray(arrays["families"]) if "families" in arrays else None,
            t=float(record["t"]),
            ess=_number(record["ess"]),
            log_evidence=_number(record["log_evidence"]),
            log_evidence_error=_number(record["log_evidence_error"]),
        )
        _check_parts(result, leaves)
    return result if like is None else dataclasses.replace(result, particles=storage.shaped_like(leaves, like))


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _check_parts(result: Result, leaves: list[np.ndarray]) -> None:
    """Raise unless the parts of a result fit together."""
    log_weights = result.log_weights
    if log_weights.ndim != 1 or any(leaf.shape[:1] != log_weights.shape for leaf in leaves):
        raise ValueError("particles and log_weights are not equally many")
    if result.families is not None and result.families.shape != log_weights.shape:
        raise ValueError("families and log_weights are not equally many")
    for name, values in result.trace.items():
        if values.ndim != 1 or not any(jax.numpy.issubdtype(values.dtype, kind) for kind in _REAL):
            raise ValueError(f"trace {name!r} is {values.dtype}{list(values.shape)}, not one number for each step")
    if not all(isinstance(warning, str) for warning in result.warnings):
        raise ValueError("result.json has an entry of another kind than Result.save writes")
