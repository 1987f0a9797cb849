//! Between Burn's host memory and the engine's: the same memory where that is possible.
//!
//! A vector of elements can become a region and a region a vector again without a copy. Burn's bytes give up their
//! vector if they were one of just these elements, which is what kernels on the processor make; otherwise they are
//! copied. Gradients that travel in another precision are copied anyway, by the conversion.

use ::burn::tensor::{DType, TensorData, bf16, f16};
use farandole_plan::Dtype;
use farandole_tensor::element::with_bytes_mut;
use farandole_tensor::{Element, Region};

use crate::error::{Error, Result};

/// Our name for Burn's element type, if its elements can be added.
pub(crate) fn float_dtype(dtype: DType) -> Result<Dtype> {
    match dtype {
        DType::F64 => Ok(Dtype::F64),
        DType::F32 | DType::Flex32 => Ok(Dtype::F32),
        DType::F16 => Ok(Dtype::F16),
        DType::BF16 => Ok(Dtype::BF16),
        other => Err(Error::Parameters(format!("there is no average of {other:?} elements"))),
    }
}

/// Takes the elements out of Burn's hands.
pub(crate) fn into_region(data: TensorData) -> Result<Region> {
    fn take<T: Element + ::burn::tensor::Element>(data: TensorData) -> Result<Region> {
        let elements = data.try_into_vec::<T>();
        elements.map(Region::from_vec).map_err(|error| Error::Parameters(format!("a tensor cannot be read: {error:?}")))
    }
    match float_dtype(data.dtype())? {
        Dtype::F64 => take::<f64>(data),
        Dtype::F16 => take::<f16>(data),
        Dtype::BF16 => take::<bf16>(data),
        _ => take::<f32>(data),
    }
}

/// Gives elements to Burn.
pub(crate) fn into_data(region: Region, shape: &[usize]) -> Result<TensorData> {
    fn give<T: Element + ::burn::tensor::Element>(region: Region, shape: &[usize]) -> Result<TensorData> {
        // A region of the engine's own making holds no vector; its elements are copied.
        let elements = match region.into_vec::<T>() {
            Ok(elements) => elements,
            Err(region) => {
                let mut elements = vec![T::default(); region.len_elems()];
                with_bytes_mut(&mut elements, |bytes| bytes.copy_from_slice(region.as_bytes()));
                elements
            }
        };
        Ok(TensorData::new(elements, shape.to_vec()))
    }
    match region.dtype() {
        Dtype::F64 => give::<f64>(region, shape),
        Dtype::F16 => give::<f16>(region, shape),
        Dtype::BF16 => give::<bf16>(region, shape),
        Dtype::F32 => give::<f32>(region, shape),
        _ => Err(Error::WrongElement),
    }
}
