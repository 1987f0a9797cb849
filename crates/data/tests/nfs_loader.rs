//! The same seed gives the same batches from local files and from an NFS server, also when connections break and the
//! server is killed in the middle of an epoch.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use farandole_data::format::{NewRecord, ShardWriter as _, TarShard};
use farandole_data::loader::{Content, Images, Input, Loader, LoaderConfig, Pixels};
use farandole_data::sample::Label;
use farandole_data::source::{self, IndexPlace, RecordsConfig};
use farandole_data::storage::{StorageCounts, StorageOptions, open};
use farandole_data::transform::{Element, Layout, Step};
use farandole_testing::{Folder, NfsExport, NfsServer, TcpProxy, WireFaults, in_namespaces, wait_until};

const SHARDS: usize = 4;
const SAMPLES: usize = 200;

/// Shards of WebDataset with images that differ in every pixel.
fn write_shards(folder: &Path) {
    for shard in 0..SHARDS {
        let mut writer = Box::new(TarShard::create(&folder.join(format!("train-{shard:02}.tar"))).unwrap());
        for number in (shard * SAMPLES / SHARDS)..((shard + 1) * SAMPLES / SHARDS) {
            let mut encoded = b"P6 64 48 255\n".to_vec();
            encoded.extend((0..64 * 48 * 3).map(|at| ((at * 31 + number * 7919) % 251) as u8));
            let label = Label::Class((number % 10) as u32);
            writer.write(&NewRecord { name: &format!("{number:04}.ppm"), encoded: &encoded, label: &label }).unwrap();
        }
        writer.finish().unwrap();
    }
}

/// Pixels, labels and numbers of all batches of two epochs, and what the storage counted.
fn batches(url: &str, seed: u64, between: impl FnOnce()) -> (Vec<(Vec<u8>, String)>, StorageCounts) {
    let mut options = StorageOptions::from_environment().unwrap();
    options.silence_timeout = Duration::from_secs(2);
    options.first_pause = Duration::from_millis(20);
    options.retries = 40;
    // Little is kept, so that the second epoch asks the server again.
    options.cache.memory_bytes = 1 << 20;
    options.cache.block_bytes = 256 << 10;
    let (storage, path) = open(url, &options).unwrap();
    let config = RecordsConfig { index: IndexPlace::Nowhere, ..RecordsConfig::default() };
    let records = source::open(Arc::clone(&storage), &path, &config).unwrap();
    assert_eq!(records.len(), SAMPLES);
    let steps = vec![
        Step::RandomCrop { height: 40, width: 40, padding: 2 },
        Step::RandomHorizontalFlip { p: 0.5 },
        Step::normalize_imagenet(),
    ];
    let content = Content::Images(Pixels::new(steps, 3, Element::F32, Layout::Nchw).unwrap());
    let config = LoaderConfig { batch: 16, workers: 3, seed, ..LoaderConfig::default() };
    let loader = Loader::new(Input::Records { records, content }, config).unwrap();
    let mut between = Some(between);
    let mut all = Vec::new();
    for epoch in 0..2 {
        for batch in loader.epoch(epoch, 0) {
            let batch = batch.unwrap();
            let Images::Pixels(pixels) = &batch.images else { panic!("pixels were asked for") };
            all.push((pixels.to_vec(), format!("{:?} {:?}", batch.indices, batch.labels)));
            if all.len() == 5 {
                between.take().into_iter().for_each(|strike| strike());
            }
        }
    }
    (all, storage.counts())
}

#[test]
fn the_same_seed_gives_the_same_batches_from_a_failing_nfs_server() {
    if !in_namespaces("the_same_seed_gives_the_same_batches_from_a_failing_nfs_server", Duration::from_secs(100)) {
        return;
    }
    let folder = Folder::new();
    write_shards(&folder);
    let exports = [NfsExport::new(&folder)];
    let mut server = NfsServer::start(&exports);
    let (local, _) = batches(&folder.file("train-{00..03}.tar"), 3, || {});
    assert_eq!(local.len(), 2 * SAMPLES.div_ceil(16));
    assert!(local != batches(&folder.file("train-{00..03}.tar"), 4, || {}).0);
    // As they are.
    let (remote, counts) = batches(&format!("nfs://127.0.0.1{}", folder.file("train-{00..03}.tar")), 3, || {});
    assert!(remote == local);
    assert!(counts.retries == 0 && counts.bytes_fetched > 0, "{counts}");
    // A folder, over connections that are slow and end after a part of a block; the server is killed on the way.
    let proxy = TcpProxy::start(&format!("127.0.0.1:{}", NfsServer::NFS_PORT));
    proxy.set(WireFaults { cut_after: Some(150_001), bytes_per_second: Some(20_000_000), ..WireFaults::default() });
    let (remote, counts) = batches(&format!("nfs://127.0.0.1:{}{}", proxy.port(), folder.display()), 3, || {
        server.kill();
        let before = proxy.connections();
        wait_until("attempts while no server is there", Duration::from_secs(20), || proxy.connections() > before + 2);
        server.start_again(&exports);
    });
    assert!(remote == local);
    assert!(counts.retries > 10, "{counts}");
}
