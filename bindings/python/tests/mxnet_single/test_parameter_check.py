"""Trainers and optimizers of MXNet warn where the parameters of ranks differ."""

from __future__ import annotations

import pytest
from jobs import run_job
from warnings_of_jobs import BEGIN, of

pytestmark = pytest.mark.timeout(120)


def test_parameters_that_were_not_broadcast_are_noticed_before_the_first_step() -> None:
    job = run_job(
        2,
        BEGIN
        + """
import mxnet as mx
import farandole.mxnet as hvd
hvd.init()

def trained(name, seed, broadcasts=False, in_units=60):
    scene(name)
    mx.random.seed(seed)
    net = mx.gluon.nn.HybridSequential(prefix=f"rank{hvd.rank()}_")
    with net.name_scope():
        net.add(mx.gluon.nn.Dense(60, in_units=in_units), mx.gluon.nn.Dense(1, in_units=60))
    net.initialize(mx.init.Uniform(1.0))
    if broadcasts:
        params = {str(place): param for place, param in enumerate(net.collect_params().values())}
        hvd.broadcast_parameters(params, root_rank=0)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
    for _ in range(3):
        with mx.autograd.record():
            loss = net(mx.nd.ones((2, 60))).sum()
        loss.backward()
        trainer.step(2)
    # The next trainer uses the same names.
    mx.nd.waitall()

trained("forgotten", hvd.rank())
trained("broadcast", hvd.rank(), broadcasts=True)
trained("shapes that come later", hvd.rank(), broadcasts=True, in_units=0)

scene("optimizer")
optimizer = hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=0.1))
weights = [mx.nd.ones((3,)), mx.nd.ones((3,)) * hvd.rank()]
for _ in range(2):
    for index, weight in enumerate(weights):
        optimizer.update(index, weight, mx.nd.ones((3,)), None)
    mx.nd.waitall()
scene("end")
print("done")
""",
        seconds=90,
    )
    assert all(job.lines(rank) == ["done"] for rank in range(2)), job
    scenes = of(job)
    [forgotten] = scenes["forgotten"]
    assert "was hvd.broadcast_parameters(net.collect_params(), root_rank=0) forgotten?" in forgotten
    assert forgotten.endswith('dense0_weight": rank 0 and rank 1 differ')
    assert scenes["broadcast"] == scenes["shapes that come later"] == []
    [text] = scenes["optimizer"]
    assert text.endswith('"1": rank 0 and rank 1 differ')
