//! Reads single variables and complains about them by name.
//!
//! A variable that is set to nothing counts as not set: shells and batch systems leave such ones behind. A value that
//! cannot be understood is an error, never a default. Which variables there are is the business of those who ask.

use std::str::FromStr;

use crate::error::{Error, Result};

/// Where variables are looked up: the process's environment, or a table in a test.
#[derive(Clone, Copy)]
pub(super) struct Variables<'a> {
    lookup: &'a dyn Fn(&'static str) -> Option<String>,
}

impl<'a> Variables<'a> {
    pub(super) fn new(lookup: &'a dyn Fn(&'static str) -> Option<String>) -> Variables<'a> {
        Variables { lookup }
    }

    /// What the variable says, without space around it.
    pub(super) fn text(self, variable: &'static str) -> Option<String> {
        let text = (self.lookup)(variable)?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_string())
    }

    pub(super) fn has(self, variable: &'static str) -> bool {
        self.text(variable).is_some()
    }

    /// What the variable says, understood as `what`.
    pub(super) fn value<T: FromStr>(self, variable: &'static str, what: &str) -> Result<Option<T>> {
        self.text(variable).map(|text| parse(variable, &text, what)).transpose()
    }

    /// What a variable says that must be there because `others` are.
    pub(super) fn required<T: FromStr>(self, variable: &'static str, what: &str, others: &str) -> Result<T> {
        let missing = || wrong(variable, format!("is not set, though {others}: a launcher sets all of them"));
        self.value(variable, what)?.ok_or_else(missing)
    }
}

pub(super) fn parse<T: FromStr>(variable: &'static str, text: &str, what: &str) -> Result<T> {
    text.parse().map_err(|_| wrong(variable, format!("'{text}' is not {what}")))
}

pub(super) fn wrong(variable: &'static str, problem: impl Into<String>) -> Error {
    Error::Environment { variable, problem: problem.into() }
}
