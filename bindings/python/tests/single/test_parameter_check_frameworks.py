"""TensorFlow, Keras on its backends, and JAX warn where the parameters of ranks differ, and say nothing where a script
broadcasts them when Horovod's scripts do: before the first step, or at its end."""

from __future__ import annotations

import pytest
from jobs import Job, run_job
from warnings_of_jobs import BEGIN, of

pytestmark = pytest.mark.timeout(240)

# TensorFlow takes seconds to load, and longer where many processes do so at once.
SECONDS = 200

_FORGOTTEN = "parameters differ between ranks after the first step; was {} forgotten? The first that differs is"


def check(job: Job, remedy: str, name: str, forgotten: list[str], silent: list[str]) -> None:
    """Which scenes warn, with a first parameter whose name ends like this."""
    assert all(job.lines(rank) == ["done"] for rank in range(2)), job
    scenes = of(job)
    for scene in forgotten:
        [text] = scenes[scene]
        assert _FORGOTTEN.format(remedy) in text, text
        assert text.endswith(f'{name}": rank 0 and rank 1 differ'), text
    assert {scene: scenes[scene] for scene in silent} == {scene: [] for scene in silent}


def test_tensorflow_compares_variables_when_their_gradients_are_reduced_again() -> None:
    job = run_job(
        2,
        BEGIN
        + """
import tensorflow as tf
import farandole.tensorflow as hvd
hvd.init()

class Model:
    def __init__(self, seed):
        start = tf.random.stateless_normal((40, 40), seed=(seed, 1))
        self.variables = [tf.Variable(start, name="kernel"), tf.Variable(tf.zeros(40), name="bias")]

    def loss(self):
        return tf.reduce_sum(tf.matmul(tf.ones((2, 40)), self.variables[0]) + self.variables[1])

def gradients(model, persistent=False):
    with tf.GradientTape(persistent=persistent) as tape:
        loss = model.loss()
    tape = hvd.DistributedGradientTape(tape)
    found = tape.gradient(loss, model.variables)
    return tape.gradient(loss, model.variables) if persistent else found

def trained(name, model, compiled=False, broadcasts=False, persistent=False):
    scene(name)
    def step():
        for variable, gradient in zip(model.variables, gradients(model, persistent)):
            variable.assign_sub(0.01 * gradient)
    run = tf.function(step) if compiled else step
    for number in range(4):
        run()
        if number == 0 and broadcasts:
            hvd.broadcast_variables(model.variables, root_rank=0)

trained("eager", Model(hvd.rank()))
trained("eager, broadcast", Model(hvd.rank()), broadcasts=True)
trained("persistent tape, broadcast", Model(hvd.rank()), broadcasts=True, persistent=True)
trained("function", Model(hvd.rank()), compiled=True)
trained("function, broadcast", Model(hvd.rank()), compiled=True, broadcasts=True)

scene("an evaluation that one rank makes")
model = Model(1)
evaluate = tf.function(model.loss)
trained("function, alike", model, compiled=True)
if hvd.rank() == 0:
    for _ in range(3):
        evaluate()

scene("local variables")
models = [Model(1), Model(10 + hvd.rank())]
for _ in range(3):
    with tf.GradientTape() as tape:
        loss = models[0].loss() + models[1].loss()
    tape = hvd.DistributedGradientTape(tape)
    for variable in models[1].variables:
        tape.register_local_source(variable)
    tape.gradient(loss, models[0].variables + models[1].variables)

scene("optimizer of version 1")
model = Model(hvd.rank())
optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
for _ in range(3):
    optimizer.minimize(model.loss, var_list=model.variables)
scene("end")
print("done")
""",
        seconds=SECONDS,
    )
    check(
        job,
        "hvd.broadcast_variables(model.variables, root_rank=0)",
        "kernel",
        ["eager", "function", "optimizer of version 1"],
        [
            "eager, broadcast",
            "persistent tape, broadcast",
            "function, broadcast",
            "function, alike",
            "an evaluation that one rank makes",
            "local variables",
        ],
    )


_KERAS = BEGIN + """
import numpy as np
import keras
import farandole.keras as hvd
hvd.init()

def trained(name, seed, **options):
    scene(name)
    if hvd.rank() == 1 and "callbacks" not in options:
        # Ranks may have made different numbers of layers: their names differ then.
        keras.layers.Dense(3)
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.layers.Input((40,)), keras.layers.Dense(40), keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9))
    callbacks = options.pop("callbacks", [])
    model.compile(optimizer, "mse", **options)
    model.fit(np.ones((12, 40)), np.ones((12, 1)), batch_size=4, verbose=0, callbacks=callbacks)

trained("callback", hvd.rank(), callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

class AtTheEndOfTheFirstBatch(hvd.callbacks.BroadcastGlobalVariablesCallback):
    def on_train_begin(self, logs=None):
        pass

trained("callback after the first batch", hvd.rank(), callbacks=[AtTheEndOfTheFirstBatch(0)])
trained("forgotten", hvd.rank())
trained("eager", hvd.rank(), run_eagerly=True)
scene("end")
print("done")
"""


@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_keras_compares_weights_before_the_second_step(backend: str) -> None:
    job = run_job(2, f'import os\nos.environ["KERAS_BACKEND"] = "{backend}"\n' + _KERAS, seconds=SECONDS)
    check(
        job,
        "hvd.callbacks.BroadcastGlobalVariablesCallback(0)",
        "kernel",
        ["forgotten"] if backend == "jax" else ["forgotten", "eager"],
        ["callback", "callback after the first batch"],
    )


def test_jax_compares_what_update_and_gradients_are_given_before_the_first_step() -> None:
    job = run_job(
        2,
        BEGIN
        + """
import functools
import jax, jax.numpy as jnp, optax
import farandole.jax as hvd
hvd.init()

def fresh(seed):
    # More elements than a sample has.
    return {"kernel": jax.random.normal(jax.random.key(seed), (60, 60)), "zero": jnp.zeros(60)}

def loss(params):
    return jnp.sum(jnp.ones((2, 60)) @ params["kernel"] + params["zero"])

def trained(name, params, jit=jax.jit, steps=3, **options):
    tx = hvd.DistributedOptimizer(optax.sgd(0.01), name=name, **options)
    def step(params, state):
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state
    step, state = jit(step), tx.init(params)
    scene(name)
    for _ in range(steps):
        params, state = step(params, state)
    jax.block_until_ready(params)
    hvd.barrier()
    finish()

# Threads that compare have written what they have found.
from farandole import _native
finish = _native.jax_finish_comparing

params = fresh(hvd.rank())
trained("jit", params)
trained("broadcast", hvd.broadcast_parameters(params, root_rank=0))
trained("hvd.jit", params, jit=hvd.jit)
trained("without a program", params, jit=lambda step: step)
trained("half precision", params, compression=hvd.Compression.fp16)
trained("donated", fresh(hvd.rank()), jit=functools.partial(jax.jit, donate_argnums=(0, 1)))
trained("two passes", params, backward_passes_per_step=2, steps=4)
trained("adasum", params, op=hvd.Adasum)

scene("value_and_grad")
value_and_grad = jax.jit(hvd.distributed_value_and_grad(loss, name="of the loss"))
for _ in range(2):
    value_and_grad(params)
finish()

scene("transformed")
def twice(scale, params):
    return jnp.sum(hvd.allreduce_gradients(scale * params["kernel"], parameters=params, name="scaled"))
alike = fresh(1)
assert jnp.allclose(jax.grad(twice)(2.0, alike), jnp.sum(alike["kernel"]))
rows = jax.vmap(lambda row: hvd.allreduce_gradients(row, parameters=row, name="rows"))(alike["kernel"])
assert rows.shape == (60, 60)
finish()

scene("ends after the only step")
trained("one step", params, steps=1)
print("done")
""",
        seconds=SECONDS,
    )
    assert all(job.lines(rank) == ["done"] for rank in range(2)), job
    scenes = of(job)
    forgotten = ["jit", "hvd.jit", "without a program", "half precision", "donated", "two passes", "value_and_grad"]
    for scene in [*forgotten, "one step"]:
        [text] = scenes[scene]
        assert "before the first step; was hvd.broadcast_parameters(params, root_rank=0) forgotten?" in text
        assert text.endswith("\"['kernel']\": rank 0 and rank 1 differ"), text
    assert scenes["broadcast"] == scenes["adasum"] == scenes["transformed"] == []


def test_jax_finds_a_single_element_after_as_many_steps_as_asked_for() -> None:
    job = run_job(
        2,
        BEGIN
        + """
os.environ["FARANDOLE_CHECK_PARAMETERS"] = "2"
import jax, jax.numpy as jnp, optax
import farandole.jax as hvd
from farandole import _native
hvd.init()
tx = hvd.DistributedOptimizer(optax.sgd(0.01))
params = {"kernel": jnp.ones((60, 60))}
state = tx.init(params)

@jax.jit
def step(params, state):
    updates, state = tx.update(jax.grad(lambda params: jnp.sum(params["kernel"] ** 2))(params), state, params)
    return optax.apply_updates(params, updates), state

scene("one element")
for number in range(8):
    params, state = step(params, state)
    if number == 2 and hvd.rank() == 1:
        params = {"kernel": params["kernel"].at[31, 17].add(1e-4)}
_native.jax_finish_comparing()
scene("end")
print("done")
""",
        seconds=SECONDS,
    )
    assert all(job.lines(rank) == ["done"] for rank in range(2)), job
    [text] = of(job)["one element"]
    assert "parameters differ between ranks after 4 steps" in text and "\"['kernel']\": rank 0 and rank 1" in text
