//! The data: settings of the input pipeline.

use crate::{Kind, Reader, Setting};

/// All of them, in the order of the page.
pub(crate) const SETTINGS: &[Setting] = &[
    DATA_CACHE,
    DATA_CACHE_BYTES,
    DATA_MEMORY_BYTES,
    DATA_ITEM_BYTES,
    DATA_PEERS,
    STORAGE_TIMEOUT_SECONDS,
    STORAGE_CONNECTIONS,
];

/// `FARANDOLE_DATA_CACHE`.
pub const DATA_CACHE: Setting = Setting::does(
    "FARANDOLE_DATA_CACHE",
    Reader::Ranks,
    Kind::Path("a folder"),
    "",
    "Where blocks of remote objects are kept on the host's disk, for all ranks of the host and for later jobs \
     (docs/storage.md); unset: nowhere.",
);

/// `FARANDOLE_DATA_CACHE_BYTES`. 64 GiB: a small share of a compute node's disk, and half of ImageNet.
pub const DATA_CACHE_BYTES: Setting = Setting::does(
    "FARANDOLE_DATA_CACHE_BYTES",
    Reader::Ranks,
    Kind::Bytes,
    "68719476736",
    "How much of the disk the cache of remote objects may take; the blocks that were not read for longest go first.",
);

/// `FARANDOLE_DATA_MEMORY_BYTES`. 256 MiB: some blocks for each worker thread of a rank.
pub const DATA_MEMORY_BYTES: Setting = Setting::does(
    "FARANDOLE_DATA_MEMORY_BYTES",
    Reader::Ranks,
    Kind::Bytes,
    "268435456",
    "How much memory each rank takes for blocks of remote objects; 0: none, and without a cache on disk every read is a \
     request.",
);

/// `FARANDOLE_DATA_ITEM_BYTES`. 1 GiB: images of 100 megapixels decode to less than half of it.
pub const DATA_ITEM_BYTES: Setting = Setting::does(
    "FARANDOLE_DATA_ITEM_BYTES",
    Reader::Ranks,
    Kind::Bytes,
    "1073741824",
    "How much memory decoding one item of a file may take: a record, a page or an array. A file that needs more, or \
     claims to, is refused.",
);

/// `FARANDOLE_DATA_PEERS`. Not off: it costs two sockets for each rank until a remote object is read.
pub const DATA_PEERS: Setting = Setting::does(
    "FARANDOLE_DATA_PEERS",
    Reader::Ranks,
    Kind::SwitchOrAuto,
    "auto",
    "Whether ranks get blocks of remote objects from each other: auto, where that is faster than the store; 1, always; \
     0, never (docs/storage.md).",
);

/// `FARANDOLE_STORAGE_TIMEOUT_SECONDS`. Two minutes: longer than a store that says `SlowDown` usually needs.
pub const STORAGE_TIMEOUT_SECONDS: Setting = Setting::does(
    "FARANDOLE_STORAGE_TIMEOUT_SECONDS",
    Reader::Ranks,
    Kind::Seconds,
    "120",
    "How long a read of a remote object may take with all its attempts, before it is an error.",
);

/// `FARANDOLE_STORAGE_CONNECTIONS`. Stores serve some 50 to 100 MB/s at each connection: enough for 10 Gbit/s.
pub const STORAGE_CONNECTIONS: Setting = Setting::does(
    "FARANDOLE_STORAGE_CONNECTIONS",
    Reader::Ranks,
    Kind::Count,
    "32",
    "How many requests each rank has under way at a store at once.",
);
