"""Batches of images (or of any records) for training, made by threads in Rust: `Loader`.

A `Loader` stands where a `torch.utils.data.DataLoader` with a data set of files and a sampler stood. It opens folders
of images and shards (TFRecord, WebDataset, ...), reads, decodes and changes samples ahead of the training loop, and
gives each rank its share of each epoch. The same batches come for any number of workers, and for any number of ranks
with the same global batch; a state goes on exactly where it was saved.

`transforms` has torchvision's names. `shard` is for those who keep their own loader: this rank's share of a list.

Nothing of a framework is imported before batches for it are asked for.
"""

from farandole.data import transforms
from farandole.data.loader import Loader
from farandole.data.sharding import shard

__all__ = ["Loader", "shard", "transforms"]
