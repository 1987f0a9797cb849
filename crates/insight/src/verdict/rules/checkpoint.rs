//! Checkpoints that everybody waits for.

use super::super::{Case, Finding};
use super::Saying;
use crate::replay::Change;

pub(super) fn in_background(case: &Case<'_>, _: &Finding) -> Option<Saying> {
    let change = "Write checkpoints behind the training: copy the state, let a thread write the copy, on one rank only; or write \
                  less often.";
    let how = [
        "torch:      state = {k: v.cpu().clone() for k, v in model.state_dict().items()}; Thread(target=torch.save, args=(state, path)).start()",
        "tensorflow: checkpoint.save(path, options=tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True))",
    ];
    Some(Saying::new(change, &how).gaining(case.gain(&[Change::NoCheckpoint])))
}
