"""Recipes: PGPS put together, exact and as in the paper."""

from pgps import adjustments, fields, paths, steppers, trainers, weights
from pgps.methods.pgps import PGPS
from pgps.scouting.opinion import Scouting

_SCOUTING = Scouting()


def exact(
    alpha: float | None = None,
    beta: float | None = None,
    *,
    path: paths.AbstractPath | None = None,
    field: fields.AbstractField | None = None,
    trainer: trainers.AbstractTrainer | None = None,
    conditional_ess: float = 0.99,
    moves: adjustments.AbstractAdjustment | None = None,
    resample_below: float = 0.5,
    max_steps: int = 10_000,
    scouting: Scouting | None = _SCOUTING,
) -> PGPS:
    """Exact PGPS: weights, resampling, Metropolis-adjusted moves, and fields that one solve fits.

    Args:
        alpha: How far the path spreads the initial law around its mean, in [0, 1]; 1 if only beta is given.
        beta: How far the path shrinks the target towards that mean at first, in (0, 1]; 0.3 if only alpha is given.
            Shrinking finds modes that the initial law hardly reaches, where the geometric path, alpha = 0 and beta = 1,
            loses them.
        path: Another path p_t, instead of Eq. 5. If neither it nor alpha nor beta is given, the path has alpha = 1 and
            beta = 0.3, or is the geometric one where shrinking would take the target to where it explodes.
        field: The field; if none is given, the best of several linear families at each step, or none where none helps.
            `fields.Zero()` is none at all: plain adaptive tempered SMC.
        trainer: How it is fitted; if none is given, by least squares if it is linear, and else by gradient descent that
            held-out particles stop.
        conditional_ess: The share of the particles that each step keeps effective.
        moves: The moves after each step; if none are given, Hamiltonian ones, adapted to the local width of the density
            and to the distance that they cover.
        resample_below: Resample when the effective sample size falls below this share of the particles.
        max_steps: Stop after this many time steps, wherever t is then.
        scouting: How maxima of the density are looked for afterwards, to compare the mass around each with that of the
            particles. If they differ, the run is made again from a law that covers the maxima, unless it says
            `again=False`. None does not look.
    """
    if path is None:
        kind = paths.CautiousShrinkage if alpha is None and beta is None else paths.LogWeightedShrinkage
        path = kind(1.0 if alpha is None else alpha, 0.3 if beta is None else beta)
    if field is None:
        field = fields.Selection((fields.Affine(), fields.Additive(), fields.Local()), reserves=(fields.Quadratic(),))
    hmc = adjustments.HMC(0.5, num_leapfrog=None, precondition=True, local=True, jitter=0.5, mixing=0.4)
    return PGPS(
        path=path,
        field=field,
        trainer=_trainer_of(field) if trainer is None else trainer,
        stepper=steppers.ConditionalESS(conditional_ess),
        adjustment=hmc if moves is None else moves,
        weighing=weights.Weighing(resample_below),
        max_steps=max_steps,
        scouting=scouting,
    )


def _trainer_of(field: fields.AbstractField) -> trainers.AbstractTrainer:
    """The trainer that suits a field which is to be weighed."""
    if isinstance(field, fields.Zero):
        return trainers.NoTraining()
    if isinstance(field, fields.AbstractLinearField | fields.Selection):
        return trainers.LeastSquares()
    return trainers.Gradient(threshold=None, loss=trainers.variance, held_out=1 / 3)


def paper(
    alpha: float = 0.0,
    beta: float = 1.0,
    psi: float = 0.1,
    *,
    max_dt: float = 0.02,
    width: int = 64,
    learning_rate: float = 1e-2,
    max_training_steps: int = 1000,
    threshold: float = 1e-2,
    drop: trainers.LearningRateDrop | None = None,
    langevin_steps: int = 0,
    langevin_step_size: float = 1e-2,
    langevin_every: float | None = None,
    final_langevin_steps: int = 0,
) -> PGPS:
    """Algorithms 1-3 as published: an MLP trained by Adam along the path of Eq. 5, no weights.

    Args:
        alpha: How far the path spreads the initial law, in [0, 1].
        beta: How far the path shrinks the target at first, in (0, 1].
        psi: The mean distance that particles move in one time step.
        max_dt: The largest time step.
        width: Hidden units of the field.
        learning_rate: Adam's learning rate.
        max_training_steps: Training steps per time step, at most.
        threshold: The loss at which training stops.
        drop: When to lower the learning rate, if ever.
        langevin_steps: Langevin steps per adjustment; 0 with no final steps is no adjustment.
        langevin_step_size: Their step size.
        langevin_every: Adjust when t passes a multiple of this; None adjusts after every time step.
        final_langevin_steps: Further Langevin steps at t = 1.
    """
    langevin = adjustments.Langevin(langevin_step_size, langevin_steps, langevin_every, final_langevin_steps)
    return PGPS(
        path=paths.LogWeightedShrinkage(alpha, beta, center=0.0),
        field=fields.MLP(width),
        trainer=trainers.Gradient(learning_rate, max_training_steps, threshold, drop),
        stepper=steppers.ParticleStep(psi, max_dt),
        adjustment=langevin if langevin_steps or final_langevin_steps else adjustments.NoAdjustment(),
    )


def training_free(
    alpha: float = 0.0,
    beta: float = 1.0,
    *,
    dt: float = 0.01,
    langevin_steps: int = 30,
    langevin_step_size: float = 1e-2,
    final_langevin_steps: int = 0,
) -> PGPS:
    """Training-free PGPS: Langevin adjustment alone carries the particles along the path of Eq. 5.

    Args:
        alpha: How far the path spreads the initial law, in [0, 1].
        beta: How far the path shrinks the target at first, in (0, 1].
        dt: The time step.
        langevin_steps: Langevin steps after each time step.
        langevin_step_size: Their step size.
        final_langevin_steps: Further Langevin steps at t = 1.
    """
    return PGPS(
        path=paths.LogWeightedShrinkage(alpha, beta, center=0.0),
        field=fields.Zero(),
        trainer=trainers.NoTraining(),
        stepper=steppers.Fixed(dt),
        adjustment=adjustments.Langevin(langevin_step_size, langevin_steps, None, final_langevin_steps),
    )
