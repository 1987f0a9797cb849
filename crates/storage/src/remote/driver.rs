//! The thread that drives all requests of a storage: [`Driver`].
//!
//! **Invariant:** the thread ends when the driver is dropped, and drops what it was doing.

use std::thread::JoinHandle;

/// The thread that drives requests.
pub(super) struct Driver {
    handle: tokio::runtime::Handle,
    /// Dropped: the thread ends.
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Driver {
    pub(super) fn start() -> Result<Driver, String> {
        Driver::try_start().map_err(|error| format!("a thread for requests cannot be started: {error}"))
    }

    fn try_start() -> std::io::Result<Driver> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            // Only names of hosts are looked up on them.
            .max_blocking_threads(4)
            .thread_name("farandole-names")
            .build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name("farandole-store".to_owned()).spawn(move || {
            let _ = runtime.block_on(stopped);
            // A name that is being looked up is not waited for.
            runtime.shutdown_background();
        })?;
        Ok(Driver { handle, stop: Some(stop), thread: Some(thread) })
    }

    pub(super) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.handle.spawn(task)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has failed the reads of its time already.
            let _ = thread.join();
        }
    }
}
