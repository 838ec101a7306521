"""Vector fields phi_t that carry the particles along the path: section 3.2 of the paper."""

from pgps.fields.additive import Additive
from pgps.fields.affine import Affine
from pgps.fields.base import AbstractField
from pgps.fields.kernel import Kernel
from pgps.fields.linear import AbstractLinearField
from pgps.fields.local import Local
from pgps.fields.mlp import MLP
from pgps.fields.quadratic import Quadratic
from pgps.fields.selection import Selection
from pgps.fields.zero import Zero

__all__ = [
    "MLP",
    "AbstractField",
    "AbstractLinearField",
    "Additive",
    "Affine",
    "Kernel",
    "Local",
    "Quadratic",
    "Selection",
    "Zero",
]
