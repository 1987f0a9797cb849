//! Batches for Python: [`DataFeed`] walks through an epoch at a time, [`DataBatch`] is what comes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use farandole::Dtype;
use farandole_data::loader::{
    Broken, Content, Epoch, Images, Input, LoadedBatch, Loader, LoaderConfig, LoaderError, Mixing, Pixels,
};
use farandole_data::sample::Labels;
use farandole_data::sampler::SampleOrder;
use farandole_data::transform::{Element, Layout};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use super::array::DataArray;
use super::records::{DataRecords, classes_of};
use super::steps;
use crate::records::recording;
use crate::waiting::{SIGNAL_CHECK_INTERVAL, Waiting};

/// For a child of the process that made a loader.
const FORKED: &str = "this loader was made before the process was forked, and its threads are in the parent alone: make \
                      a loader in the child, or start workers with the method \"spawn\"";

/// Names and arguments of transforms, bands, element type and layout.
type ImageContent<'py> = (Vec<(String, Bound<'py, PyDict>)>, usize, String, String);

/// A rank's batches.
#[pyclass(frozen, module = "farandole._native")]
pub(crate) struct DataFeed {
    loader: Option<Arc<Loader>>,
    /// Taken by whoever asks for a batch while it waits, and by `stop`.
    epoch: Mutex<Option<Epoch>>,
    /// The process that has the threads.
    process: u32,
}

impl DataFeed {
    fn loader(&self) -> &Arc<Loader> {
        self.loader.as_ref().expect("invariant: a loader exists until its object is dropped")
    }

    fn epoch(&self) -> MutexGuard<'_, Option<Epoch>> {
        // An epoch that has panicked is dropped by the next who begins one.
        self.epoch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A child of a fork has no threads, and perhaps a lock that nobody will release.
    fn check_process(&self) -> PyResult<()> {
        if self.process == std::process::id() { Ok(()) } else { Err(PyRuntimeError::new_err(FORKED)) }
    }
}

#[pymethods]
impl DataFeed {
    /// `content`: none for records as they are. `nearby`: blocks and windows of an order with locality.
    #[new]
    #[pyo3(signature = (records, *, content, batch, global_batch, rank, world_size, drop_last, workers, prefetch, seed,
                        shuffle, nearby, skip_broken, mixup, cutmix))]
    #[expect(clippy::too_many_arguments, reason = "all but the first are keywords")]
    fn new(
        py: Python<'_>,
        records: &DataRecords,
        content: Option<ImageContent<'_>>,
        batch: usize,
        global_batch: Option<usize>,
        rank: usize,
        world_size: usize,
        drop_last: bool,
        workers: usize,
        prefetch: usize,
        seed: u64,
        shuffle: bool,
        nearby: Option<(usize, usize)>,
        skip_broken: bool,
        mixup: f32,
        cutmix: f32,
    ) -> PyResult<DataFeed> {
        let content = match content {
            None => Content::Encoded,
            Some((steps, bands, element, layout)) => {
                let steps = steps.iter().map(|(name, arguments)| steps::step(name, arguments));
                let steps = steps.collect::<PyResult<_>>()?;
                let pixels = Pixels::new(steps, bands, element_of(&element)?, layout_of(&layout)?);
                Content::Images(pixels.map_err(PyValueError::new_err)?)
            }
        };
        let order = match (shuffle, nearby) {
            (false, _) => SampleOrder::InOrder,
            (true, None) => SampleOrder::Shuffled,
            (true, Some((block, window))) => SampleOrder::ShuffledNearby { block, window },
        };
        let config = LoaderConfig {
            rank,
            world_size,
            batch,
            global_batch,
            drop_last,
            workers,
            prefetch,
            seed,
            order,
            broken: if skip_broken { Broken::Replaced } else { Broken::Refused },
            mixing: Mixing { mixup_alpha: mixup, cutmix_alpha: cutmix },
            recorder: recording().map(|job| Arc::clone(job.world.recorder())),
        };
        let input = Input::Records { records: Arc::clone(&records.0), content };
        let loader = py.detach(|| Loader::new(input, config)).map_err(raised)?;
        Ok(DataFeed { loader: Some(Arc::new(loader)), epoch: Mutex::new(None), process: std::process::id() })
    }

    /// Steps of an epoch.
    fn __len__(&self) -> usize {
        self.loader().steps()
    }

    /// Samples of all ranks in an epoch.
    #[getter]
    fn samples(&self) -> usize {
        self.loader().samples()
    }

    /// Samples of all ranks in a step.
    #[getter]
    fn global_batch(&self) -> usize {
        self.loader().global_batch()
    }

    /// Begins an epoch at a step; whatever was under way is given up. Threads begin at once.
    fn start(&self, py: Python<'_>, epoch: u64, step: usize) -> PyResult<()> {
        self.check_process()?;
        py.detach(|| {
            let mut current = self.epoch();
            *current = None;
            *current = Some(self.loader().epoch(epoch, step));
        });
        Ok(())
    }

    /// Ends the threads, if there are any. What was begun is given up.
    fn stop(&self, py: Python<'_>) {
        if self.check_process().is_ok() {
            py.detach(|| *self.epoch() = None);
        }
    }

    /// The next batch of the epoch, or none when it is over.
    fn next_batch(&self, py: Python<'_>) -> PyResult<Option<DataBatch>> {
        self.check_process()?;
        loop {
            let next = py.detach(|| {
                let _waiting = Waiting::begin();
                match &mut *self.epoch() {
                    Some(epoch) => epoch.next_within(SIGNAL_CHECK_INTERVAL),
                    None => Poll::Ready(None),
                }
            });
            match next {
                Poll::Ready(batch) => return Ok(batch.transpose().map_err(raised)?.map(|batch| self.hand_over(batch))),
                Poll::Pending => py.check_signals()?,
            }
        }
    }

    /// What was said about samples that could not be read since this was last asked.
    fn take_notices(&self) -> Vec<String> {
        self.loader().take_notices()
    }

    /// Sums over all workers, and the memory of batches.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (sums, memory) = (self.loader().stats(), self.loader().memory_bytes());
        let times = sums.stages;
        let stats = PyDict::new(py);
        for (name, count) in [
            ("batches", sums.batches),
            ("samples", times.samples),
            ("encoded_bytes", times.encoded_bytes),
            ("made_bytes", sums.made_bytes),
            ("replaced", sums.replaced),
            ("memory_bytes", memory.now as u64),
            ("peak_memory_bytes", memory.peak as u64),
        ] {
            stats.set_item(name, count)?;
        }
        for (name, ns) in [
            ("read_seconds", times.read_ns),
            ("decode_seconds", times.decode_ns),
            ("transform_seconds", times.transform_ns),
            ("store_seconds", times.store_ns),
            ("mix_seconds", times.mix_ns),
            ("workers_waited_seconds", sums.workers_waited_ns),
            ("consumer_waited_seconds", sums.consumer_waited_ns),
        ] {
            stats.set_item(name, ns as f64 / 1e9)?;
        }
        Ok(stats)
    }
}

impl DataFeed {
    fn hand_over(&self, batch: LoadedBatch) -> DataBatch {
        let LoadedBatch { step, count, global_count, images, labels, indices, replaced } = batch;
        let images = match (images, self.loader().input()) {
            (Images::Pixels(buffer), Input::Records { content: Content::Images(pixels), .. }) => {
                let (shape, count) = (pixels.shape(), count as u64);
                let (bands, height, width) = (shape.bands as u64, shape.height as u64, shape.width as u64);
                let dims = match pixels.layout() {
                    Layout::Nchw => vec![count, bands, height, width],
                    Layout::Nhwc => vec![count, height, width, bands],
                };
                Handed::Pixels(DataArray::of_images(buffer, dtype_of(pixels.element()), dims))
            }
            (images, _) => Handed::Encoded(images),
        };
        let classes = classes_of(self.loader().input().task());
        let indices = indices.into_iter().map(|index| index as i64).collect();
        DataBatch {
            step,
            count,
            global_count,
            replaced,
            content: Mutex::new(Some((images, labels))),
            classes,
            indices: Mutex::new(Some(indices)),
        }
    }
}

impl Drop for DataFeed {
    fn drop(&mut self) {
        let is_ours = self.check_process().is_ok();
        let epoch = self.epoch.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if !is_ours {
            // What would wait for threads, or for a lock that one of them had, belongs to the parent.
            std::mem::forget(epoch);
            std::mem::forget(self.loader.take());
            return;
        }
        // Threads end after the sample that they work on, which may wait for a disk. They need nothing of Python's.
        Python::attach(|py| py.detach(|| drop(epoch)));
    }
}

enum Handed {
    Pixels(DataArray),
    Encoded(Images),
}

/// Samples of one step.
#[pyclass(frozen, module = "farandole._native")]
pub(crate) struct DataBatch {
    #[pyo3(get)]
    step: usize,
    #[pyo3(get)]
    count: usize,
    #[pyo3(get)]
    global_count: usize,
    #[pyo3(get)]
    replaced: usize,
    /// Taken once, by whoever makes tensors of it; so are the indices.
    content: Mutex<Option<(Handed, Labels)>>,
    indices: Mutex<Option<Vec<i64>>>,
    classes: Option<usize>,
}

#[pymethods]
impl DataBatch {
    /// Images and labels, once: memory for DLPack. Records that are not decoded are a list of bytes.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, DataArray)> {
        let taken = self.content.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((images, labels)) = taken else { return Err(PyValueError::new_err("the batch was taken before")) };
        let images = match images {
            Handed::Pixels(array) => Bound::new(py, array)?.into_any(),
            Handed::Encoded(Images::Encoded(encoded)) => {
                PyList::new(py, encoded.iter().map(|bytes| PyBytes::new(py, bytes)).collect::<Vec<_>>())?.into_any()
            }
            Handed::Encoded(Images::Pixels(_) | Images::Floats(_)) => {
                unreachable!("invariant: pixels are made of records that are decoded")
            }
        };
        Ok((images, self.labels(labels)))
    }

    /// The numbers of its records, once.
    fn take_indices(&self) -> DataArray {
        let indices = self.indices.lock().unwrap_or_else(PoisonError::into_inner).take();
        DataArray::of_integers(indices.unwrap_or_default())
    }
}

impl DataBatch {
    /// Classes are whole numbers; those of mixed samples, and all others, are floats.
    fn labels(&self, labels: Labels) -> DataArray {
        let (count, classes) = (self.count as u64, self.classes.unwrap_or(1));
        match labels {
            Labels::Classes(classes) => DataArray::of_integers(classes.into_iter().map(i64::from).collect()),
            Labels::Mixed { first, second, share } => {
                let mut soft = vec![0.0; self.count * classes];
                for (number, ((first, second), share)) in first.iter().zip(&second).zip(&share).enumerate() {
                    let row = &mut soft[number * classes..(number + 1) * classes];
                    row[*first as usize] += share;
                    row[*second as usize] += 1.0 - share;
                }
                DataArray::of_floats(soft, vec![count, classes as u64])
            }
            Labels::Labels(all) => DataArray::of_floats(all, vec![count, classes as u64]),
            Labels::Values(values) | Labels::Images(values) => DataArray::of_floats(values, vec![count]),
        }
    }
}

fn element_of(word: &str) -> PyResult<Element> {
    match word {
        "uint8" => Ok(Element::U8),
        "float16" => Ok(Element::F16),
        "bfloat16" => Ok(Element::BF16),
        "float32" => Ok(Element::F32),
        other => {
            let words = "uint8, float16, bfloat16, float32";
            Err(PyValueError::new_err(format!("batches cannot have dtype {other}; they can have {words}")))
        }
    }
}

fn dtype_of(element: Element) -> Dtype {
    match element {
        Element::U8 => Dtype::U8,
        Element::F16 => Dtype::F16,
        Element::BF16 => Dtype::BF16,
        Element::F32 => Dtype::F32,
    }
}

fn layout_of(word: &str) -> PyResult<Layout> {
    match word {
        "NCHW" => Ok(Layout::Nchw),
        "NHWC" => Ok(Layout::Nhwc),
        other => Err(PyValueError::new_err(format!("the layout {other} is not known; there are NCHW and NHWC"))),
    }
}

fn raised(error: LoaderError) -> PyErr {
    match error {
        LoaderError::Config(_) => PyValueError::new_err(error.to_string()),
        LoaderError::Broken(_) => {
            PyOSError::new_err(format!("{error}; on_error=\"skip\" goes on with the next sample instead, and counts"))
        }
        LoaderError::Unreadable { .. } => PyOSError::new_err(error.to_string()),
        LoaderError::Misfit { .. } | LoaderError::Panicked { .. } | LoaderError::Thread(_) => {
            PyRuntimeError::new_err(error.to_string())
        }
    }
}
