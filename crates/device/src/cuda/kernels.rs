//! The kernels of `kernels.cu`, as the driver has loaded them: [`Kernels`].
//!
//! The PTX beside it is made by `cargo xtask kernels`. Its driver compiles it for the device at hand.

use std::ffi::{CString, c_void};
use std::ptr;

use farandole_plan::{Dtype, ReduceOp};
use farandole_tensor::Finish;

use super::api::{Api, Handle};
use crate::table::Launch;
use crate::{AdasumResult, DeviceAdasum, DeviceFold, Result};

const PTX: &str = concat!(include_str!("kernels.ptx"), "\0");

/// Threads of a block, as `kernels.cu` expects them.
const THREADS: u32 = 256;

/// The operations that have kernels.
const OPS: [(ReduceOp, &str); 4] =
    [(ReduceOp::Sum, "sum"), (ReduceOp::Min, "min"), (ReduceOp::Max, "max"), (ReduceOp::Product, "product")];

/// The functions of the module, which stays loaded until the process ends.
pub(super) struct Kernels {
    /// By element type and operation.
    folds: Vec<[Handle; OPS.len()]>,
    /// Folds whose results have another type, in the order of [`CONVERSIONS`].
    conversions: Vec<Handle>,
    copy: Handle,
    /// In the order of [`FLOATS`].
    adasum_dots: Vec<Handle>,
    adasum_factors: Handle,
    adasum_weigh: Vec<Handle>,
}

/// Element types that Adasum combines.
const FLOATS: [Dtype; 4] = [Dtype::F16, Dtype::BF16, Dtype::F32, Dtype::F64];

/// Folds whose results have another type.
const CONVERSIONS: [(Dtype, Dtype, ReduceOp); 10] = [
    (Dtype::F16, Dtype::F32, ReduceOp::Sum),
    (Dtype::F16, Dtype::F32, ReduceOp::Min),
    (Dtype::F16, Dtype::F32, ReduceOp::Max),
    (Dtype::F16, Dtype::F32, ReduceOp::Product),
    (Dtype::BF16, Dtype::F32, ReduceOp::Sum),
    (Dtype::BF16, Dtype::F32, ReduceOp::Min),
    (Dtype::BF16, Dtype::F32, ReduceOp::Max),
    (Dtype::BF16, Dtype::F32, ReduceOp::Product),
    (Dtype::F32, Dtype::F16, ReduceOp::Sum),
    (Dtype::F32, Dtype::BF16, ReduceOp::Sum),
];

impl Kernels {
    /// Loads the module into the current context.
    pub(super) fn load(api: &Api) -> Result<Kernels> {
        let mut module = ptr::null_mut();
        // SAFETY: the PTX ends with a zero, and the driver copies what it needs.
        let code = unsafe { (api.module_load_data)(&raw mut module, PTX.as_ptr().cast()) };
        api.check("cuModuleLoadData", code)?;
        let function = |name: &str| {
            let mut function = ptr::null_mut();
            let name = CString::new(name).expect("invariant: names of kernels have no zeros");
            // SAFETY: writes one handle; module and name live.
            let code = unsafe { (api.module_get_function)(&raw mut function, module, name.as_ptr()) };
            api.check("cuModuleGetFunction", code)?;
            Ok(function)
        };
        let folds = Dtype::ALL.iter().map(|dtype| {
            let mut of_type = [ptr::null_mut(); OPS.len()];
            for (place, (_, op)) in of_type.iter_mut().zip(OPS) {
                *place = function(&format!("fold_{}_{op}", word(*dtype)))?;
            }
            Ok(of_type)
        });
        let (folds, conversions) = (folds.collect::<Result<_>>()?, CONVERSIONS.iter().map(|one| function(&name(one))));
        let of_floats = |kernel: &str| -> Result<Vec<Handle>> {
            FLOATS.iter().map(|dtype| function(&format!("{kernel}_{}", word(*dtype)))).collect()
        };
        Ok(Kernels {
            folds,
            conversions: conversions.collect::<Result<_>>()?,
            copy: function("copy")?,
            adasum_dots: of_floats("adasum_dots")?,
            adasum_factors: function("adasum_factors")?,
            adasum_weigh: of_floats("adasum_weigh")?,
        })
    }

    pub(super) fn fold(&self, api: &Api, stream: Handle, launch: &Launch, folding: &DeviceFold<'_>) -> Result<()> {
        let column = column(folding.dtype, folding.op);
        let function = if folding.dtype == folding.stored {
            self.folds[folding.dtype as usize][column]
        } else {
            let wanted = (folding.dtype, folding.stored, OPS[column].0);
            let place = CONVERSIONS.iter().position(|known| *known == wanted);
            self.conversions[place.expect("invariant: a stream has checked what can be stored")]
        };
        let (mut finish, mut factor, mut divisor) = match folding.finish {
            Finish::Nothing => (0_u32, 1.0_f64, 1_u64),
            Finish::Multiply(factor) => (1, factor, 1),
            Finish::Divide(divisor) if folding.dtype.is_float() => (1, 1.0 / divisor.value() as f64, 1),
            Finish::Divide(divisor) => (2, 1.0, divisor.value()),
        };
        let (mut ranks, mut targets) = (folding.ranks as u32, folding.targets as u32);
        let (mut prescale, mut count) = (folding.prescale, launch.count);
        let mut parameters: [*mut c_void; 8] = [
            launch.words.as_ptr().cast_mut().cast(),
            (&raw mut count).cast(),
            (&raw mut ranks).cast(),
            (&raw mut targets).cast(),
            (&raw mut finish).cast(),
            (&raw mut prescale).cast(),
            (&raw mut factor).cast(),
            (&raw mut divisor).cast(),
        ];
        start(api, function, stream, launch.blocks, &mut parameters)
    }

    pub(super) fn copy(&self, api: &Api, stream: Handle, launch: &Launch) -> Result<()> {
        let mut count = launch.count;
        let mut parameters: [*mut c_void; 2] = [launch.words.as_ptr().cast_mut().cast(), (&raw mut count).cast()];
        start(api, self.copy, stream, launch.blocks, &mut parameters)
    }

    /// The inner products of all blocks, the factors of all pairs, and their combinations.
    pub(super) fn adasum(
        &self,
        api: &Api,
        stream: Handle,
        launch: &Launch,
        combining: &DeviceAdasum<'_>,
    ) -> Result<()> {
        let float = FLOATS.iter().position(|known| *known == combining.dtype);
        let float = float.expect("invariant: a stream has checked that Adasum combines this type");
        let table: *mut c_void = launch.words.as_ptr().cast_mut().cast();
        let (mut count, mut targets) = (launch.count, combining.width() as u32);
        let (mut prescale, mut scratch) = (combining.prescale, combining.scratch);
        let (mut is_finished, mut postscale) = match combining.result {
            AdasumResult::Carried => (0_u32, 1.0),
            AdasumResult::Finished(postscale) => (1, postscale),
        };
        let count: *mut c_void = (&raw mut count).cast();
        let targets: *mut c_void = (&raw mut targets).cast();
        let prescale: *mut c_void = (&raw mut prescale).cast();
        let scratch: *mut c_void = (&raw mut scratch).cast();
        let mut parameters = [table, count, targets, prescale, scratch];
        start(api, self.adasum_dots[float], stream, launch.blocks, &mut parameters)?;
        start(api, self.adasum_factors, stream, launch.count, &mut [table, targets, scratch])?;
        let (postscale, is_finished) = ((&raw mut postscale).cast(), (&raw mut is_finished).cast());
        let mut parameters = [table, count, targets, prescale, postscale, is_finished, scratch];
        start(api, self.adasum_weigh[float], stream, launch.blocks, &mut parameters)
    }
}

/// The name of a fold whose result has another type.
fn name(&(dtype, stored, op): &(Dtype, Dtype, ReduceOp)) -> String {
    format!("fold_{}_{}_{}", word(dtype), word(stored), OPS[column(dtype, op)].1)
}

/// The column of an operation. The average of truth values is true where all are.
fn column(dtype: Dtype, op: ReduceOp) -> usize {
    let op = match (op, dtype) {
        (ReduceOp::Average, Dtype::Bool) => ReduceOp::Min,
        (ReduceOp::Average, _) => ReduceOp::Sum,
        (op, _) => op,
    };
    OPS.iter().position(|(known, _)| *known == op).expect("invariant: Adasum is no fold")
}

fn start(api: &Api, function: Handle, stream: Handle, blocks: u32, parameters: &mut [*mut c_void]) -> Result<()> {
    let no_more = ptr::null_mut();
    // SAFETY: the parameters are those of the kernel, in its order, and are copied before this returns. The addresses
    // in the table are memory that regions, allocations and mappings have promised.
    let code = unsafe {
        (api.launch_kernel)(function, blocks, 1, 1, THREADS, 1, 1, 0, stream, parameters.as_mut_ptr(), no_more)
    };
    api.check("cuLaunchKernel", code)
}

/// The name of an element type among the kernels.
#[deny(clippy::wildcard_enum_match_arm, reason = "a new variant must get an arm")]
fn word(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Bool => "bool",
        Dtype::U8 => "u8",
        Dtype::I8 => "i8",
        Dtype::U16 => "u16",
        Dtype::I16 => "i16",
        Dtype::U32 => "u32",
        Dtype::I32 => "i32",
        Dtype::U64 => "u64",
        Dtype::I64 => "i64",
        Dtype::F16 => "f16",
        Dtype::BF16 => "bf16",
        Dtype::F32 => "f32",
        Dtype::F64 => "f64",
        _ => unreachable!("invariant: every element type has an arm"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_in_the_tree() {
        for dtype in Dtype::ALL {
            for (_, op) in OPS {
                let entry = format!(".entry fold_{}_{op}(", word(dtype));
                assert!(PTX.contains(&entry), "{entry}");
            }
        }
        assert!(PTX.contains(".entry copy(") && PTX.contains(".entry adasum_factors("));
        for dtype in FLOATS {
            for kernel in ["dots", "weigh"] {
                let entry = format!(".entry adasum_{kernel}_{}(", word(dtype));
                assert!(PTX.contains(&entry), "{entry}");
            }
        }
        for conversion in CONVERSIONS {
            assert!(PTX.contains(&format!(".entry {}(", name(&conversion))), "{conversion:?}");
        }
    }
}
