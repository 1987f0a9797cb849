"""Training that goes on when ranks leave or join, for every front end and for none: no framework is imported here.

`run` and the states are Horovod's (`loop`, `state`). `partition` is the arithmetic by which samples are seen once,
`agreement` the decision whose state goes on, `policies` what becomes of learning rate and batch when the size changes.
Front ends add states for what they train (`farandole.torch.elastic`, `.tensorflow.elastic`, `.keras.elastic`).

Not here: who is in the job. The engine decides that; `native` is all that is known of it.
"""

from farandole.elastic.loop import run, run_fn
from farandole.elastic.native import fence
from farandole.elastic.notification import HostUpdateResult, WorkerNotificationManager, notification_manager
from farandole.elastic.policies import KeepTotalBatch, LinearScaling
from farandole.elastic.state import ObjectState, State
from farandole.exceptions import HorovodInternalError, HostsUpdatedInterrupt

__all__ = [
    "HorovodInternalError",
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "KeepTotalBatch",
    "LinearScaling",
    "ObjectState",
    "State",
    "WorkerNotificationManager",
    "fence",
    "notification_manager",
    "run",
    "run_fn",
]
