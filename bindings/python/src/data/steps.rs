//! Transforms, as Python says them: a name of torchvision's and its arguments by name.

use farandole_data::transform::{Fill, Interpolation, ResizeTo, Step};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// A transform: its name, and its arguments, all of them.
pub(super) fn step(name: &str, arguments: &Bound<'_, PyDict>) -> PyResult<Step> {
    let given = Given(arguments);
    Ok(match name {
        "Resize" => match given.get::<(Option<usize>, usize)>("size")? {
            (Some(height), width) => Step::Resize { to: ResizeTo::Exact { height, width } },
            (None, side) => Step::Resize { to: ResizeTo::Shorter(side) },
        },
        "CenterCrop" => {
            let (height, width) = given.get("size")?;
            Step::CenterCrop { height, width }
        }
        "RandomResizedCrop" => {
            let (height, width) = given.get("size")?;
            Step::RandomResizedCrop { height, width, scale: given.get("scale")?, ratio: given.get("ratio")? }
        }
        "RandomCrop" => {
            let (height, width) = given.get("size")?;
            Step::RandomCrop { height, width, padding: given.get("padding")? }
        }
        "RandomHorizontalFlip" => Step::RandomHorizontalFlip { p: given.get("p")? },
        "RandomVerticalFlip" => Step::RandomVerticalFlip { p: given.get("p")? },
        "RandomRotation" => {
            let interpolation = match given.get::<String>("interpolation")?.as_str() {
                "bilinear" => Interpolation::Bilinear,
                _ => Interpolation::Nearest,
            };
            Step::RandomRotation { degrees: given.get("degrees")?, interpolation }
        }
        "ColorJitter" => Step::ColorJitter {
            brightness: given.get("brightness")?,
            contrast: given.get("contrast")?,
            saturation: given.get("saturation")?,
            hue: given.get("hue")?,
        },
        "Grayscale" => Step::Grayscale,
        "RandomErasing" => {
            let fill = given.get::<Option<f32>>("value")?.map_or(Fill::Noise, Fill::Constant);
            Step::RandomErasing { p: given.get("p")?, scale: given.get("scale")?, ratio: given.get("ratio")?, fill }
        }
        "Normalize" => Step::Normalize { mean: given.get("mean")?, std: given.get("std")? },
        other => return Err(PyValueError::new_err(format!("there is no transform {other}"))),
    })
}

struct Given<'a, 'py>(&'a Bound<'py, PyDict>);

impl<'py> Given<'_, 'py> {
    fn get<T: for<'a> FromPyObject<'a, 'py, Error: Into<PyErr>>>(&self, name: &str) -> PyResult<T> {
        let value = self.0.get_item(name)?;
        let value = value.ok_or_else(|| PyValueError::new_err(format!("a transform lacks `{name}`")))?;
        value.extract::<T>().map_err(|error| {
            let error: PyErr = error.into();
            PyValueError::new_err(format!("`{name}` of a transform: {error}"))
        })
    }
}
