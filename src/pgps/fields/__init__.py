"""Vector fields phi_t that carry the particles along the path: section 3.2 of the paper."""

from pgps.fields.base import AbstractField
from pgps.fields.mlp import MLP
from pgps.fields.zero import Zero

__all__ = ["MLP", "AbstractField", "Zero"]
