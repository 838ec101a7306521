"""Where particles are: on the devices of a mesh, and in batches that are evaluated one after another.

A program is written for all particles at once. `Spread` says that they are divided over devices, and XLA divides the
program: sums, sorts and solves over particles become collectives of its own, also across processes. So every method
is right on any mesh, and differs from one device by rounding alone.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from pgps import _checks

T = TypeVar("T")

# Islands are divided, too, and there are two of them.
_PER_DEVICE = 2


def _automatic(mesh: Any) -> Any:
    """The same devices on axes along which XLA may divide programs as it likes."""
    if not isinstance(mesh, Mesh):
        return mesh
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


class Spread(eqx.Module):
    """How particles are spread.

    Args:
        mesh: The devices that share them, along all axes of this mesh; None: one device.
        batch_size: How many are evaluated at once on each device; None: all.
    """

    mesh: Mesh | None = eqx.field(static=True, default=None, converter=_automatic)
    batch_size: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        if self.mesh is not None:
            _checks.instance("mesh", self.mesh, Mesh, "jax.make_mesh((jax.device_count(),), ('particles',))")
        if self.batch_size is not None:
            _checks.whole("batch_size", self.batch_size, at_least=1)

    @property
    def num_devices(self) -> int:
        """How many devices share the particles."""
        return 1 if self.mesh is None else self.mesh.size

    @property
    def num_processes(self) -> int:
        """How many processes run this program together."""
        return 1 if self.mesh is None else len({device.process_index for device in self.mesh.devices.flat})

    def check(self, num_particles: int) -> None:
        """Raise unless so many particles can be shared evenly."""
        if self.mesh is not None and num_particles % (_PER_DEVICE * self.num_devices):
            unit = _PER_DEVICE * self.num_devices
            nearest = max(round(num_particles / unit), 1) * unit
            raise ValueError(
                f"num_particles must be a multiple of {unit} on {self.num_devices} devices, got {num_particles}; "
                f"take {nearest}"
            )

    def map(self, function: Callable[..., T], *arrays: Array) -> T:
        """Apply a function to the rows of arrays."""
        if (size := self.batch_size) is None:
            return jax.vmap(function)(*arrays)

        def batched(*arrays: Array) -> T:
            return jax.lax.map(lambda row: function(*row), arrays, batch_size=min(size, len(arrays[0])))

        if self.mesh is None:
            return batched(*arrays)
        # A loop over batches is a loop on each device: left to itself, XLA would take them to all devices in turn.
        rows = PartitionSpec(self.mesh.axis_names)
        return jax.shard_map(batched, mesh=self.mesh, in_specs=rows, out_specs=rows, check_vma=False)(*arrays)

    def divided(self, rows: PyTree) -> PyTree:
        """Arrays with a leading axis over particles, divided over the devices."""
        return rows if self.mesh is None else self._placed(rows, PartitionSpec(self.mesh.axis_names))

    def shared(self, tree: PyTree) -> PyTree:
        """Arrays that every device has."""
        return tree if self.mesh is None else self._placed(tree, PartitionSpec())

    def _placed(self, tree: PyTree, spec: PartitionSpec) -> PyTree:
        assert self.mesh is not None
        sharding = NamedSharding(self.mesh, spec)
        return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, sharding), tree)

    def gathered(self, tree: PyTree) -> PyTree:
        """Arrays that this process can read; those of a single process it can read already."""
        if self.num_processes == 1:
            return tree
        return eqx.filter_jit(self.shared)(tree)

    def agreed(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Facts as the first process sees them, since clocks differ and processes must not part company."""
        if self.num_processes == 1:
            return facts
        return jax.tree.map(np.asarray, multihost_utils.broadcast_one_to_all(facts))


ONE_DEVICE = Spread()
