"""Trains with JAX and Optax in a compiled step, until the fault of `faults.py` strikes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import farandole.jax as hvd
import faults


def build_parameters() -> dict[str, jax.Array]:
    first, last = jax.random.split(jax.random.key(hvd.rank() if faults.FAULT == "no broadcast" else 1))
    parameters = {"first": jax.random.normal(first, (8, 16)), "last": jax.random.normal(last, (16, 2))}
    if faults.is_struck("other model"):
        parameters["extra"] = jnp.ones((2, 2))
    return parameters


def loss_of(parameters: dict[str, jax.Array], batch: jax.Array) -> jax.Array:
    outputs = jnp.tanh(batch @ parameters["first"]) @ parameters["last"]
    if "extra" in parameters:
        outputs = outputs @ parameters["extra"]
    return jnp.mean(outputs**2)


def main() -> None:
    faults.strike_before_init()
    hvd.init()
    parameters = build_parameters()
    if faults.FAULT not in ("no broadcast", "other model"):
        parameters = hvd.broadcast_parameters(parameters, root_rank=1 if faults.is_struck("other root") else 0)
    trained = {"last": parameters["last"]} if faults.is_struck("frozen parameter") else parameters
    tx = hvd.DistributedOptimizer(optax.sgd(0.01))
    state = tx.init(trained)

    @jax.jit
    def train(trained: dict[str, jax.Array], state: Any, batch: jax.Array) -> tuple[dict[str, jax.Array], Any]:
        gradients = jax.grad(lambda some: loss_of({**parameters, **some}, batch))(trained)
        updates, state = tx.update(gradients, state, trained)
        return optax.apply_updates(trained, updates), state

    for step in range(faults.batches()):
        faults.strike(step)
        faults.load(step)
        trained, state = train(trained, state, jnp.full((4, 8), float(step)))
        if step != faults.STEP:
            continue
        jax.debug.callback(faults.call_back, ordered=True)
        name, shape, dtype = faults.metric()
        hvd.allreduce(jnp.ones(shape, dtype=dtype), name=name, op=hvd.Sum)
        if faults.is_struck("extra collective"):
            hvd.allreduce(jnp.ones(2), name="extra")
        if faults.is_struck("disk full"):
            with open(faults.checkpoint(), "wb") as file:
                np.savez(file, **jax.device_get(trained))


if __name__ == "__main__":
    main()
