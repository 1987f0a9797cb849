//! Emission of a custom call into the program that TensorFlow is translating for XLA: [`Program`].
//!
//! TensorFlow has no C API for that. Its own kernels use C++ functions that `libtensorflow_cc.so.2` and
//! `libtensorflow_framework.so.2` export, and so do we, by their mangled names. A mangled name holds the types of all
//! parameters, Abseil's version among them, so a function whose parameters have changed is not found, and [`symbols`]
//! says which one it was: then compiled functions are refused, and nothing else.
//!
//! This is an unsafe module. What is relied on beyond the names, the same in TensorFlow 2.12 to 2.21 (x86-64,
//! libstdc++):
//!
//! - `xla::XlaOp` is a handle and the builder's address, passed and returned as two words.
//! - `absl::Span` is an address and a length. `std::string` begins with an address and a length, and is only read.
//! - An `xla::Shape` or `XlaOpKernelContext` that C++ makes has room in [`Storage`]. Neither holds its own address.
//! - The shapes in a tuple's shape lie one after the other, so they are the span that a custom call wants of its
//!   operands' shapes, and nobody needs to know how large a shape is.
//! - In `XlaOpKernelContext`, `ValueInference` comes after a pointer and a `bool`. It is all that has to be destroyed.
//!
//! What is deliberately not here: what is called (`call`) and which ops become calls (`xla`).

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

use super::super::api::{Library, Opaque};

/// Versions of Abseil in the names, newest first: of TensorFlow 2.21, 2.20, 2.16 to 2.19, 2.13 to 2.15, 2.12.
const ABSEILS: [&str; 5] = ["20250814", "20250127", "20230802", "20230125", "20220623"];

/// `xla::CustomCallApiVersion::API_VERSION_TYPED_FFI`.
const TYPED_FFI: c_int = 4;

/// `xla::CustomCallSchedule::SCHEDULE_NONE`.
const NO_SCHEDULE: c_int = 0;

/// Where `ValueInference` lies in an `XlaOpKernelContext`.
const INFERENCE_AT_BYTES: usize = 16;

/// How many computations are remembered: more than are nested in each other.
const MOST_COUNTS: usize = 64;

/// A value of the program.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct XlaOp {
    handle: i64,
    builder: Opaque,
}

/// `absl::Span<const T>`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Span {
    data: *const c_void,
    len: usize,
}

impl Span {
    fn of<T>(slice: &[T]) -> Span {
        Span { data: slice.as_ptr().cast(), len: slice.len() }
    }
}

/// A `std::string` that is only read: C++ looks at the first two words.
#[repr(C)]
struct StdString {
    data: *const u8,
    len: usize,
    _capacity: [usize; 2],
}

impl StdString {
    fn of(text: &str) -> StdString {
        StdString { data: text.as_ptr(), len: text.len(), _capacity: [text.len(), 0] }
    }
}

/// Room for an object of C++. In TensorFlow 2.21 a shape takes about 320 bytes and a context about 600.
#[repr(C, align(64))]
struct Storage(MaybeUninit<[u8; 8192]>);

impl Storage {
    fn new() -> Box<Storage> {
        Box::new(Storage(MaybeUninit::zeroed()))
    }

    fn address(&mut self) -> Opaque {
        std::ptr::from_mut(self).cast()
    }
}

/// `XlaCompiler::SetNodeToken` without its last parameter.
const SET_NODE_TOKEN: &str =
    "_ZN10tensorflow11XlaCompiler12SetNodeTokenERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";

macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions. `@` in a name stands for Abseil's namespace.
        struct Symbols {
            $($field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            set_output: SetOutput,
            set_node_token: SetNodeToken,
        }

        impl Symbols {
            fn look_up(library: &Library, abseil: &str) -> Result<Symbols, String> {
                let find = |symbol: &str| {
                    let name = symbol.replace('@', &format!("4absl12lts_{abseil}"));
                    library.symbol(&name).ok_or(name)
                };
                Ok(Symbols {
                    $($field: {
                        let address = find($symbol)?;
                        // SAFETY: the mangled name says the types; how they are passed is the module's text.
                        unsafe {
                            std::mem::transmute::<Opaque, unsafe extern "C" fn($($argument),*) $(-> $result)?>(address)
                        }
                    },)*
                    set_output: Taking::look_up(find, "_ZN10tensorflow18XlaOpKernelContext9SetOutputEi")?,
                    set_node_token: Taking::look_up(find, SET_NODE_TOKEN)?,
                })
            }
        }
    };
}

functions! {
    new_context = "_ZN10tensorflow18XlaOpKernelContextC1EPNS_15OpKernelContextE": fn(Opaque, Opaque);
    delete_inference = "_ZN3xla14ValueInferenceD2Ev": fn(Opaque);
    builder = "_ZNK10tensorflow18XlaOpKernelContext7builderEv": fn(Opaque) -> Opaque;
    input = "_ZN10tensorflow18XlaOpKernelContext5InputEi": fn(Opaque, c_int) -> XlaOp;
    new_shape = "_ZN3xla9ShapeUtil29MakeShapeWithDescendingLayoutENS_13PrimitiveTypeEN@4SpanIKlEE":
        fn(Opaque, c_int, Span);
    new_tuple_shape = "_ZN3xla9ShapeUtil22MakeTupleShapeWithPtrsEN@4SpanIKPKNS_5ShapeEEE": fn(Opaque, Span);
    shape_in_tuple = "_ZN3xla9ShapeUtil20GetTupleElementShapeERKNS_5ShapeEl": fn(Opaque, i64) -> Opaque;
    delete_shape = "_ZN3xla5ShapeD1Ev": fn(Opaque);
    custom_call = "_ZN3xla20CustomCallWithLayoutEPNS_10XlaBuilderERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIc\
        EEEN@4SpanIKNS_5XlaOpEEERKNS_5ShapeENSC_ISH_EES9_bNSC_IKSt4pairINS_10ShapeIndexESK_IlSL_EEEEPKNS_7LiteralE\
        NS_18CustomCallScheduleENS_20CustomCallApiVersionE":
        fn(Opaque, *const StdString, Span, Opaque, Span, *const StdString, bool, Span, Opaque, c_int, c_int) -> XlaOp;
    value_in_tuple = "_ZN3xla15GetTupleElementENS_5XlaOpEl": fn(XlaOp, i64) -> XlaOp;
    compiler = "_ZNK10tensorflow18XlaOpKernelContext8compilerEv": fn(Opaque) -> Opaque;
    node_token = "_ZN10tensorflow11XlaCompiler12GetNodeTokenERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE":
        fn(*mut StatusOrOp, Opaque, *const StdString);
}

/// A method whose last parameter is a value of the program. It was a reference up to TensorFlow 2.19 or 2.20.
enum Taking<V, R> {
    Value(V),
    Reference(R),
}

type SetOutput = Taking<unsafe extern "C" fn(Opaque, c_int, XlaOp), unsafe extern "C" fn(Opaque, c_int, *const XlaOp)>;

type SetNodeToken = Taking<
    unsafe extern "C" fn(*mut usize, Opaque, *const StdString, XlaOp),
    unsafe extern "C" fn(*mut usize, Opaque, *const StdString, *const XlaOp),
>;

impl<V, R> Taking<V, R> {
    /// Looks a method up by its name without the last parameter. `V` and `R` are functions of its types.
    fn look_up(find: impl Fn(&str) -> Result<Opaque, String>, name: &str) -> Result<Taking<V, R>, String> {
        assert!(size_of::<V>() == size_of::<Opaque>() && size_of::<R>() == size_of::<Opaque>());
        let by_value = find(&format!("{name}N3xla5XlaOpE"));
        // SAFETY: functions are addresses, and the mangled names say the types.
        unsafe {
            match by_value {
                Ok(address) => Ok(Taking::Value(std::mem::transmute_copy(&address))),
                Err(_) => {
                    let address = find(&format!("{name}RKN3xla5XlaOpE"))?;
                    Ok(Taking::Reference(std::mem::transmute_copy(&address)))
                }
            }
        }
    }
}

/// `absl::StatusOr<xla::XlaOp>`: the value is there if all is well. Otherwise it stays as it was.
#[repr(C)]
struct StatusOrOp {
    status: usize,
    value: XlaOp,
}

/// The functions, or what is missing.
fn symbols() -> Result<&'static Symbols, &'static str> {
    static SYMBOLS: OnceLock<Result<Symbols, String>> = OnceLock::new();
    let found = SYMBOLS.get_or_init(|| {
        if !cfg!(target_arch = "x86_64") {
            return Err("C++ functions of TensorFlow are called on x86-64 only".to_owned());
        }
        let library = Library::already_loaded(c"libtensorflow_cc.so.2")?;
        let mut missing = String::new();
        for abseil in ABSEILS {
            match Symbols::look_up(&library, abseil) {
                Ok(symbols) => return Ok(symbols),
                Err(symbol) if missing.is_empty() => missing = symbol,
                Err(_) => {}
            }
        }
        Err(format!("libtensorflow_cc.so.2 has no function {missing}"))
    });
    found.as_ref().map_err(String::as_str)
}

/// Whether calls can be emitted with this TensorFlow; the error says what is missing.
pub(super) fn check() -> Result<(), &'static str> {
    symbols().map(drop)
}

/// What an operand or a result is: its number in `xla::PrimitiveType` and its dimensions.
#[derive(Clone)]
pub(super) struct Array {
    pub(super) primitive_type: c_int,
    pub(super) dims: Vec<i64>,
}

/// The program under construction, as one kernel sees it.
pub(super) struct Program {
    symbols: &'static Symbols,
    context: Box<Storage>,
}

impl Program {
    /// # Safety
    /// `context` is the context of a kernel for an XLA device, whose compute function has not returned.
    pub(super) unsafe fn of_kernel(context: Opaque) -> Result<Program, &'static str> {
        let symbols = symbols()?;
        let mut storage = Storage::new();
        // SAFETY: constructs an `XlaOpKernelContext` of TensorFlow's `OpKernelContext`, which is what the C API passes.
        unsafe { (symbols.new_context)(storage.address(), context) };
        Ok(Program { symbols, context: storage })
    }

    /// The value of an input of the kernel.
    pub(super) fn input(&mut self, index: c_int) -> XlaOp {
        // SAFETY: a context that lives; TensorFlow checks the index.
        unsafe { (self.symbols.input)(self.context.address(), index) }
    }

    /// Sets an output of the kernel.
    pub(super) fn set_output(&mut self, index: c_int, value: XlaOp) {
        // SAFETY: as above, and a value of this program.
        unsafe {
            match self.symbols.set_output {
                Taking::Value(set) => set(self.context.address(), index, value),
                Taking::Reference(set) => set(self.context.address(), index, &raw const value),
            }
        }
    }

    /// The value that was left last with [`Program::leave`], in the computation that is under construction.
    pub(super) fn last_left(&mut self) -> Option<XlaOp> {
        let count = self.count_left();
        (count > 0).then(|| self.left(count - 1)).flatten()
    }

    /// Leaves a value for the next kernel of this computation. TensorFlow keeps it, as it keeps the tokens of its own
    /// ops with side effects, and forgets it with the computation.
    pub(super) fn leave(&mut self, value: XlaOp) {
        let count = self.count_left();
        let name = name_of_left(count);
        let (name, mut status) = (StdString::of(&name), 0);
        // SAFETY: the context, its compiler and the name live during the call; TensorFlow copies the name.
        unsafe {
            let compiler = (self.symbols.compiler)(self.context.address());
            match self.symbols.set_node_token {
                Taking::Value(set) => set(&raw mut status, compiler, &raw const name, value),
                Taking::Reference(set) => set(&raw mut status, compiler, &raw const name, &raw const value),
            }
        }
        lock_counts().insert(self.builder().addr(), count + 1);
    }

    /// How many values were left in this computation. The count is remembered by the builder's address, which a later
    /// one may have, too; so it is a hint.
    fn count_left(&mut self) -> usize {
        let builder = self.builder().addr();
        let hint = lock_counts().get(&builder).copied();
        if let Some(count) = hint
            && self.left(count - 1).is_some()
        {
            return count;
        }
        (0..).find(|&index| self.left(index).is_none()).expect("invariant: there is an end")
    }

    fn left(&mut self, index: usize) -> Option<XlaOp> {
        let builder = self.builder();
        let name = name_of_left(index);
        let name = StdString::of(&name);
        let mut found = StatusOrOp { status: 0, value: XlaOp { handle: -1, builder: std::ptr::null_mut() } };
        // SAFETY: as in `leave`. The status of a value that is not there is not destroyed: a few bytes for each
        // computation.
        unsafe {
            let compiler = (self.symbols.compiler)(self.context.address());
            (self.symbols.node_token)(&raw mut found, compiler, &raw const name);
        }
        (found.value.builder == builder).then_some(found.value)
    }

    fn builder(&mut self) -> Opaque {
        // SAFETY: a context that lives.
        unsafe { (self.symbols.builder)(self.context.address()) }
    }

    /// Emits a call that has side effects, all operands and results in row-major order, and returns its results. What
    /// is wrong with it, XLA says when the program is built.
    pub(super) fn call(
        &mut self,
        target: &str,
        attributes: &str,
        operands: &[(XlaOp, Array)],
        results: &[Array],
    ) -> Vec<XlaOp> {
        let values: Vec<XlaOp> = operands.iter().map(|(value, _)| *value).collect();
        let mut operand_shapes = TupleShape::new(self.symbols, operands.iter().map(|(_, array)| array));
        let mut result_shape = TupleShape::new(self.symbols, results.iter());
        let (target, attributes) = (StdString::of(target), StdString::of(attributes));
        let nothing = Span { data: std::ptr::null(), len: 0 };
        // SAFETY: everything lives until the call returns, and XLA copies what it keeps.
        unsafe {
            let tuple = (self.symbols.custom_call)(
                self.builder(),
                &raw const target,
                Span::of(&values),
                result_shape.storage.address(),
                operand_shapes.parts(),
                &raw const attributes,
                true,
                nothing,
                std::ptr::null_mut(),
                NO_SCHEDULE,
                TYPED_FFI,
            );
            (0..results.len()).map(|index| (self.symbols.value_in_tuple)(tuple, index.cast_signed() as i64)).collect()
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let inference = self.context.address().wrapping_byte_add(INFERENCE_AT_BYTES);
        // SAFETY: the part of the context that owns memory, destroyed once (module's text).
        unsafe { (self.symbols.delete_inference)(inference) };
    }
}

fn name_of_left(index: usize) -> String {
    format!("farandole_collective_{index}")
}

/// How many values were left in a computation, by its builder's address.
fn lock_counts() -> MutexGuard<'static, HashMap<usize, usize>> {
    static COUNTS: LazyLock<Mutex<HashMap<usize, usize>>> = LazyLock::new(Mutex::default);
    // Valid between any two statements, also if a holder panicked.
    let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    // Of computations that are long built.
    if counts.len() > MOST_COUNTS {
        counts.clear();
    }
    counts
}

/// The shape of a tuple.
struct TupleShape {
    symbols: &'static Symbols,
    storage: Box<Storage>,
    len: usize,
}

impl TupleShape {
    fn new<'a>(symbols: &'static Symbols, arrays: impl Iterator<Item = &'a Array>) -> TupleShape {
        let mut parts: Vec<Box<Storage>> = arrays
            .map(|array| {
                let mut storage = Storage::new();
                // SAFETY: constructs a shape in the storage.
                unsafe { (symbols.new_shape)(storage.address(), array.primitive_type, Span::of(&array.dims)) };
                storage
            })
            .collect();
        let addresses: Vec<Opaque> = parts.iter_mut().map(|part| part.address()).collect();
        let mut storage = Storage::new();
        // SAFETY: constructs a shape that holds copies of the parts, which are destroyed after that, once.
        unsafe {
            (symbols.new_tuple_shape)(storage.address(), Span::of(&addresses));
            for address in &addresses {
                (symbols.delete_shape)(*address);
            }
        }
        TupleShape { symbols, storage, len: addresses.len() }
    }

    /// The shapes of its parts.
    fn parts(&mut self) -> Span {
        if self.len == 0 {
            return Span { data: std::ptr::null(), len: 0 };
        }
        // SAFETY: a tuple's shape that has a first part; the others follow it (module's text).
        let first = unsafe { (self.symbols.shape_in_tuple)(self.storage.address(), 0) };
        Span { data: first.cast_const(), len: self.len }
    }
}

impl Drop for TupleShape {
    fn drop(&mut self) {
        // SAFETY: constructed in `new`, destroyed once.
        unsafe { (self.symbols.delete_shape)(self.storage.address()) };
    }
}
