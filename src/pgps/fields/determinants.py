"""Log-determinants of small matrices, one for each particle, where many particles are one vector.

LAPACK takes one matrix after the other; by elimination, written out, a processor takes several at once.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

# Larger determinants are LAPACK's.
_MOST_ROWS = 6


def log_det_of_sum(rows: list[list[Float[Array, "*n"]]]) -> Float[Array, "*n"]:
    """ln |det(I + M)| of a matrix by rows: by elimination with pivots."""
    num = len(rows)
    rows = [[a + 1 if i == j else a for j, a in enumerate(row)] for i, row in enumerate(rows)]
    if num > _MOST_ROWS:
        return jnp.linalg.slogdet(jnp.moveaxis(jnp.stack([jnp.stack(row) for row in rows]), (0, 1), (-2, -1)))[1]
    log_det = 0.0
    for i in range(num):
        for j in range(i + 1, num):
            swaps = jnp.abs(rows[j][i]) > jnp.abs(rows[i][i])
            both = list(zip(rows[i], rows[j], strict=True))
            rows[i] = [jnp.where(swaps, b, a) for a, b in both]
            rows[j] = [jnp.where(swaps, a, b) for a, b in both]
        pivot = rows[i][i]
        log_det += jnp.log(jnp.abs(pivot))
        for j in range(i + 1, num):
            share = jnp.where(pivot == 0, 0.0, rows[j][i] / pivot)
            rows[j] = [b - share * a for a, b in zip(rows[i], rows[j], strict=True)]
    return jnp.asarray(log_det)
