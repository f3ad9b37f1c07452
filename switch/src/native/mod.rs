//! Lowered code as machine code of this host.
//!
//! ```text
//!   ops ──emit──> Cranelift's IR ──Cranelift──> before(run, slots)   parser, verify, ingress
//!                                               after(run, slots)    egress, update
//!                                               write(packet, slots, frame)   deparser: what headers have become
//!                                                  │  ▲
//!                                                  ▼  │  calls
//!                                               runtime    what needs tables, headers or the frame
//! ```
//!
//! Slots stay where they are, in memory; what compiling saves is finding out, packet by packet, what to do next. Actions are
//! emitted at each table that may run them. The machine's own loop ([`Machine::run`](crate::machine::Machine::run)) does the same
//! operation by operation: it runs on hosts that Cranelift has no code for, and is what compiled code is tested against.
#![expect(unsafe_code, reason = "calls code made at run time, which calls back with pointers")]

mod deparser;
mod emit;
mod hash;
mod header;
mod runtime;
mod select;
mod table;

use std::fmt;
use std::sync::Mutex;

use cranelift_codegen::settings::{self, Configurable};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{Linkage, Module, default_libcall_names};

use crate::code::Words;
use crate::machine::{Packet, State};
use crate::program::Code;
use runtime::Run;

/// A compiled function.
type Function = unsafe extern "C" fn(*mut Run<'_>, *mut Words);

/// A compiled function that writes headers into a frame of this length.
type Write = unsafe extern "C" fn(*const Packet, *const Words, *mut u8, usize);

/// Compiled code of a program.
pub(crate) struct Native {
    before: Function,
    after: Function,
    write: Write,
    /// Owns the memory that the functions lie in. Only `drop` takes the lock.
    module: Mutex<Option<JITModule>>,
}

impl Native {
    /// Compiles the phases before and after a packet's port is known. An error says in words what prevents that.
    pub(crate) fn compile(code: &Code) -> Result<Self, String> {
        let mut flags = settings::builder();
        for (name, value) in [("opt_level", "speed"), ("is_pic", "false")] {
            flags.set(name, value).map_err(|e| e.to_string())?;
        }
        let isa =
            cranelift_native::builder()?.finish(settings::Flags::new(flags)).map_err(|e| e.to_string())?;
        let mut module = JITModule::new(JITBuilder::with_isa(isa, default_libcall_names()));
        let mut builder = FunctionBuilderContext::new();
        let mut define = |name: &str, params: usize, emit: &dyn Fn(FunctionBuilder<'_>, &JITModule)| {
            let mut context = module.make_context();
            context.func.signature = emit::signature(&module, params, 0);
            emit(FunctionBuilder::new(&mut context.func, &mut builder), &module);
            let id = module.declare_function(name, Linkage::Export, &context.func.signature);
            let id = id.map_err(|e| e.to_string())?;
            module.define_function(id, &mut context).map_err(|e| e.to_string())?;
            Ok::<_, String>(id)
        };
        let phases = |phases| {
            move |builder: FunctionBuilder<'_>, module: &JITModule| emit::emit(code, phases, builder, module)
        };
        let before = define("before", 2, &phases(&code.before))?;
        let after = define("after", 2, &phases(&code.after))?;
        let write = define("write", 4, &|builder, _| deparser::emit(code, builder))?;
        module.finalize_definitions().map_err(|e| e.to_string())?;
        let [before, after, write] = [before, after, write].map(|id| module.get_finalized_function(id));
        // SAFETY: functions of these signatures were defined under these ids.
        let (before, after, write) = unsafe {
            (
                std::mem::transmute::<*const u8, Function>(before),
                std::mem::transmute::<*const u8, Function>(after),
                std::mem::transmute::<*const u8, Write>(write),
            )
        };
        Ok(Native { before, after, write, module: Mutex::new(Some(module)) })
    }

    /// Parser, verify and ingress.
    pub(crate) fn before(&self, job: Job<'_>) {
        job.run(self.before);
    }

    /// Egress and update.
    pub(crate) fn after(&self, job: Job<'_>) {
        job.run(self.after);
    }

    /// Writes the fields that may differ from the frame that came in over the outgoing frame's headers, which are in their places.
    pub(crate) fn write_headers(&self, packet: &Packet, slots: &Words, frame: &mut [u8]) {
        // SAFETY: the function reads the packet and slots, every one of which there is, and writes no further than the length.
        unsafe { (self.write)(packet, slots, frame.as_mut_ptr(), frame.len()) }
    }
}

/// State on which a program's compiled code runs. `code` is its source.
pub(crate) struct Job<'a> {
    pub(crate) packet: &'a mut Packet,
    pub(crate) slots: &'a mut Words,
    pub(crate) code: &'a Code,
    pub(crate) state: &'a mut State,
    pub(crate) frame: &'a [u8],
}

impl Job<'_> {
    fn run(self, function: Function) {
        let Job { packet, slots, code, state, frame } = self;
        let mut run = Run::new(packet, code, state, frame);
        // SAFETY: the function is compiled from `code`: it touches these slots and, through the runtime, the run.
        unsafe { function(&raw mut run, slots) }
    }
}

impl fmt::Debug for Native {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Native").finish_non_exhaustive()
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        if let Ok(Some(module)) = self.module.get_mut().map(Option::take) {
            // SAFETY: running a function borrows `self`.
            unsafe { module.free_memory() }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test that cannot go on says so
mod tests;
