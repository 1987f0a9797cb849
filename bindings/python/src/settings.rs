//! Settings that the Python package reads, through the table of settings.

use std::sync::OnceLock;

use farandole::settings::{self, Setting};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;

use crate::records::wants_device_times;

fn find(name: &str) -> PyResult<&'static Setting> {
    settings::find(name).ok_or_else(|| PyKeyError::new_err(format!("there is no setting {name}")))
}

/// What the environment says for the setting with this variable, or its default; `None` where there is neither.
#[pyfunction]
pub(crate) fn text_setting(name: &str) -> PyResult<Option<String>> {
    let setting = find(name)?;
    Ok(setting.in_environment().or_else(|| Some(setting.default.to_owned()).filter(|default| !default.is_empty())))
}

/// Whether the setting with this variable is on. What is neither on nor off counts as not set.
#[pyfunction]
pub(crate) fn switch_setting(name: &str) -> PyResult<bool> {
    let setting = find(name)?;
    Ok(setting.read(|variable| std::env::var(variable).ok()).unwrap_or_else(|_| setting.default_value()))
}

/// Whether the host goes on when collectives in device memory are queued. While a trace is kept it waits for them
/// unless the user wants it otherwise: what ranks are late for is known only when hosts see data come.
#[pyfunction]
pub(crate) fn runs_ahead() -> bool {
    static RUNS_AHEAD: OnceLock<Option<bool>> = OnceLock::new();
    let read = || {
        let setting = settings::ASYNC_COMPLETION;
        setting.read(|variable| std::env::var(variable).ok()).unwrap_or_else(|_| setting.default_value())
    };
    // In elastic jobs a step counts when the optimizer has made it: its gradients must have come well before.
    let is_elastic = farandole::elastic::is_enabled();
    !is_elastic && RUNS_AHEAD.get_or_init(read).unwrap_or_else(|| !wants_device_times())
}
