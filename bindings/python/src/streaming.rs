//! Streams of a training's state, as Python uses them: from this process ([`StateSource`]), and to it before it joins
//! ([`Joining`], [`StateStream`]).
//!
//! What a state is, and whether it is taken over, is the front end's business: here it is bytes. A thread of Python
//! that trains hands over copies and goes on. One that joins is called back by `init` with a [`Joining`], gets a state,
//! and says when it is ready; another thread then makes the process a candidate (`lifecycle`).
//!
//! Not here: who is asked and when, which the package does (`farandole/elastic/follower.py`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use farandole::Setup;
use farandole::elastic::{self, BeforeJoining, Sources, Streamed, Streaming};
use farandole_c::job::{self, BeginError};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};

use crate::lent_memory::read;
use crate::waiting::SIGNAL_CHECK_INTERVAL;
use crate::world::peek;

/// Memory of the caller's: address, bytes, owner.
type Pieces = Vec<(usize, usize, Py<PyAny>)>;

/// The side of this process that sends its state.
#[pyclass(frozen, module = "farandole._native")]
pub(crate) struct StateSource(elastic::StateSource);

#[pymethods]
impl StateSource {
    /// There is one in a process; the limits of the first count.
    #[new]
    #[pyo3(signature = (*, least_bytes, most_log, bytes_per_second=None))]
    fn new(least_bytes: usize, most_log: usize, bytes_per_second: Option<u64>) -> StateSource {
        let mut streaming = Streaming::default();
        (streaming.least_bytes, streaming.most_log) = (least_bytes, most_log);
        streaming.bytes_per_second = bytes_per_second;
        StateSource(elastic::state_source(streaming))
    }

    /// Whether processes want a copy of the state.
    fn wants_snapshot(&self) -> bool {
        self.0.wants_snapshot()
    }

    /// Whether processes want every update.
    fn is_followed(&self) -> bool {
        self.0.is_followed()
    }

    /// A copy of the state for those who want one: a head, and memory behind it.
    fn give_snapshot(&self, py: Python<'_>, note: &[u8], head: &[u8], pieces: Pieces) -> PyResult<()> {
        if peek().is_some_and(|job| elastic::is_full(job.world.size())) {
            self.0.refuse("the job has as many ranks as it may have");
            return Ok(());
        }
        let state = collected(py, head, &pieces)?;
        py.detach(|| self.0.give_snapshot(note, state));
        Ok(())
    }

    /// What has led to the state with this note, for all who follow: a head, and memory behind it.
    fn give_update(&self, py: Python<'_>, note: &[u8], head: &[u8], pieces: Pieces) -> PyResult<()> {
        let update = collected(py, head, &pieces)?;
        py.detach(|| self.0.give_update(note, update));
        Ok(())
    }

    /// The state has changed without an update.
    fn begin_anew(&self) {
        self.0.begin_anew();
    }

    /// No steps are made, until `note_training`.
    fn note_boundary(&self) {
        self.0.note_boundary();
    }

    /// The training goes on.
    fn note_training(&self) {
        self.0.note_training();
    }
}

/// A head and pieces as one.
fn collected(py: Python<'_>, head: &[u8], pieces: &Pieces) -> PyResult<Vec<u8>> {
    let slices = slices(pieces)?;
    Ok(py.detach(|| [&[head], &slices[..]].concat().concat()))
}

fn slices(pieces: &Pieces) -> PyResult<Vec<&[u8]>> {
    pieces.iter().map(|(address, len_bytes, owner)| read(owner, *address, *len_bytes)).collect()
}

/// A number for each piece, which depends on all its bits.
#[pyfunction]
pub(crate) fn state_digests(py: Python<'_>, pieces: Pieces) -> PyResult<Vec<u64>> {
    let slices = slices(&pieces)?;
    Ok(py.detach(|| slices.iter().map(|bytes| elastic::state_digest(bytes)).collect()))
}

/// A process that is about to join.
#[pyclass(frozen, module = "farandole._native")]
pub(crate) struct Joining {
    members: Sources,
    /// Dropped when the process is to become a candidate.
    hold: Mutex<Option<Sender<()>>>,
    /// Set by the thread that makes it a rank, when it is one or cannot be; orders nothing.
    is_over: Arc<AtomicBool>,
}

#[pymethods]
impl Joining {
    /// How many members can be asked for their state.
    #[getter]
    fn sources(&self) -> usize {
        self.members.count()
    }

    /// Asks one for its state. `OSError` if it cannot be reached.
    fn connect(&self, py: Python<'_>, number: usize) -> PyResult<StateStream> {
        let stream = py.detach(|| self.members.connect(number));
        Ok(StateStream(Mutex::new(stream.map_err(|error| PyOSError::new_err(error.to_string()))?)))
    }

    /// The process may become a candidate.
    fn go(&self) {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Whether it was let in, or cannot be.
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// A state that comes from a member.
#[pyclass(frozen, module = "farandole._native")]
pub(crate) struct StateStream(Mutex<elastic::StateStream>);

/// A word, a note or text, content, and how many bytes wait behind it.
type Received<'py> = (&'static str, Bound<'py, PyBytes>, Bound<'py, PyByteArray>, u64);

#[pymethods]
impl StateStream {
    /// What has come or comes within so many seconds.
    fn receive<'py>(&self, py: Python<'py>, seconds: f64) -> PyResult<Option<Received<'py>>> {
        let time = Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let received = py.detach(|| self.0.lock().unwrap_or_else(PoisonError::into_inner).receive(time));
        let Some(received) = received else { return Ok(None) };
        let (word, note, content, left_bytes) = match received {
            Ok(Streamed::Wait) => ("wait", Vec::new(), Vec::new(), 0),
            Ok(Streamed::Again) => ("again", Vec::new(), Vec::new(), 0),
            Ok(Streamed::JoinNow(why)) => ("join_now", why.into_bytes(), Vec::new(), 0),
            Ok(Streamed::Snapshot { note, state, left_bytes }) => ("snapshot", note, state, left_bytes),
            Ok(Streamed::Update { note, update, left_bytes }) => ("update", note, update, left_bytes),
            Err(error) => ("lost", error.to_string().into_bytes(), Vec::new(), 0),
        };
        Ok(Some((word, PyBytes::new(py, &note), PyByteArray::new(py, &content), left_bytes)))
    }
}

/// Makes this process a rank, as [`job::begin`] does. If it is one that joins, and members stream their states,
/// `follow` is called with a [`Joining`] first; an exception of it is raised, and the process is not waited for.
pub(crate) fn begin_after(
    py: Python<'_>,
    setup: Setup,
    process_sets: Vec<Vec<u32>>,
    dynamic: bool,
    follow: &Bound<'_, PyAny>,
) -> PyResult<Result<(), BeginError>> {
    let (teller, mut moments) = mpsc::channel();
    let is_over = Arc::new(AtomicBool::new(false));
    let asker = teller.clone();
    let setup = setup.before_joining(BeforeJoining::new(move |members| {
        let (hold, held) = mpsc::channel();
        // It goes on when the other end is dropped.
        if asker.send(Moment::Following(members, hold)).is_ok() {
            let _ = held.recv();
        }
    }));
    let over = Arc::clone(&is_over);
    let begin = move || {
        let begun = job::begin(setup, &process_sets, dynamic);
        over.store(true, Ordering::Relaxed);
        let _ = teller.send(Moment::Begun(begun));
    };
    let thread = std::thread::Builder::new().name("init".into()).spawn(begin);
    thread.map_err(|error| PyRuntimeError::new_err(format!("no thread can be started: {error}")))?;
    loop {
        let waited = &mut moments;
        match py.detach(move || waited.recv_timeout(SIGNAL_CHECK_INTERVAL)) {
            Ok(Moment::Begun(begun)) => return Ok(begun),
            Ok(Moment::Following(members, hold)) => {
                let is_over = Arc::clone(&is_over);
                let joining = Bound::new(py, Joining { members, hold: Mutex::new(Some(hold)), is_over })?;
                let followed = follow.call1((&joining,));
                joining.get().go();
                followed?;
            }
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("the thread that makes this process a rank has ended"));
            }
        }
    }
}

/// What the thread that calls `init` hears from the one that makes the process a rank.
enum Moment {
    /// It may ask these members for a state; the process becomes a candidate when the sender is dropped.
    Following(Sources, Sender<()>),
    Begun(Result<(), BeginError>),
}
