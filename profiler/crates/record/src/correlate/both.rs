//! Several listeners of one tracker.

use super::{
    CallSink, DeviceFact, DeviceSpan, FinishedCall, ImagePiece, KernelEvent, Launch, PlacedKernel,
    RangeSpan, Submission,
};
use std::rc::Rc;

/// Listens to nothing.
impl CallSink for () {
    fn call(&mut self, _: &FinishedCall) {}

    fn launch(&mut self, _: &Launch) {}
}

/// Two listeners: the first gets everything before the second.
pub struct Both<'a>(pub &'a mut dyn CallSink, pub &'a mut dyn CallSink);

impl std::fmt::Debug for Both<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Both").finish_non_exhaustive()
    }
}

impl CallSink for Both<'_> {
    fn call(&mut self, call: &FinishedCall) {
        self.0.call(call);
        self.1.call(call);
    }

    fn launch(&mut self, launch: &Launch) {
        self.0.launch(launch);
        self.1.launch(launch);
    }

    fn kernel(&mut self, event: &KernelEvent) {
        self.0.kernel(event);
        self.1.kernel(event);
    }

    fn device_fact(&mut self, fact: &DeviceFact) {
        self.0.device_fact(fact);
        self.1.device_fact(fact);
    }

    fn image_piece(&mut self, piece: &ImagePiece<'_>) {
        self.0.image_piece(piece);
        self.1.image_piece(piece);
    }

    fn kernel_named(&mut self, pid: u32, kernel: u64, name: &Rc<str>) {
        self.0.kernel_named(pid, kernel, name);
        self.1.kernel_named(pid, kernel, name);
    }

    fn kernel_placed(&mut self, placed: &PlacedKernel) {
        self.0.kernel_placed(placed);
        self.1.kernel_placed(placed);
    }

    fn kernel_gone(&mut self, pid: u32, number: u64, at_ns: u64) {
        self.0.kernel_gone(pid, number, at_ns);
        self.1.kernel_gone(pid, number, at_ns);
    }

    fn kernels_inherited(&mut self, parent: u32, pid: u32, at_ns: u64) {
        self.0.kernels_inherited(parent, pid, at_ns);
        self.1.kernels_inherited(parent, pid, at_ns);
    }

    fn process_gone(&mut self, pid: u32, at_ns: u64) {
        self.0.process_gone(pid, at_ns);
        self.1.process_gone(pid, at_ns);
    }

    fn device_span(&mut self, span: &DeviceSpan) {
        self.0.device_span(span);
        self.1.device_span(span);
    }

    fn device_untimed(&mut self, span: &DeviceSpan) {
        self.0.device_untimed(span);
        self.1.device_untimed(span);
    }

    fn runtime_record(&mut self, span: &DeviceSpan) {
        self.0.runtime_record(span);
        self.1.runtime_record(span);
    }

    fn range(&mut self, range: &RangeSpan) {
        self.0.range(range);
        self.1.range(range);
    }

    fn submission(&mut self, submission: &Submission) {
        self.0.submission(submission);
        self.1.submission(submission);
    }
}
