//! A whole switch in one value: pipeline and control plane.

use std::sync::Arc;

use fatbtree_p4runtime::tonic::Status;
use fatbtree_p4runtime::v1::{self, ForwardingPipelineConfig};

use super::arbitration::{StreamId, StreamOutput};
use super::config::{Carry, Prepared};
use super::control::{ControlPlane, Request, Response, Step};
use super::packet_io::CPU_PORT;
use super::read::Reading;
use super::write_batch::Write;
use crate::{Output, Pipe, Pipeline, Program};

/// A switch: frames and requests in, frames and responses out. No I/O, no clock.
///
/// ```
/// use fatbtree_p4runtime::v1;
/// use fatbtree_switch::Output;
/// use fatbtree_switch::service::{Request, Response, Switch};
///
/// let mut switch = Switch::new(1);
/// let mut output = Output::new();
/// // Without a program every frame is dropped and counted.
/// switch.handle_frame(0, 1, &[0; 64], &mut output);
/// assert_eq!(switch.frames_without_program(), 1);
/// // Requests are answered at once.
/// let request = Request::Capabilities(v1::CapabilitiesRequest::default());
/// let Response::Capabilities(Ok(answer)) = switch.handle_request(request) else { panic!() };
/// assert!(answer.p4runtime_api_version.starts_with("1."));
/// ```
#[derive(Debug)]
pub struct Switch {
    control: ControlPlane,
    pipeline: Option<Pipeline>,
    frames_without_program: u64,
}

impl Switch {
    /// A switch without a program, which waits for a controller to load one. `device_id` is not 0.
    pub fn new(device_id: u64) -> Self {
        Self::with_pipes(device_id, 1)
    }

    /// Switch with this number of threads that forward packets: see [`Pipeline`].
    pub fn with_pipes(device_id: u64, pipes: usize) -> Self {
        let control = ControlPlane::with_pipes(device_id, pipes);
        Self { control, pipeline: None, frames_without_program: 0 }
    }

    /// Loads a program from this side, without a controller.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` with what this switch cannot run, or where P4Info and program differ.
    pub fn load(&mut self, config: ForwardingPipelineConfig) -> Result<(), Status> {
        self.control.load(&mut self.pipeline, config)
    }

    /// Loads a program that is compiled already: its text need not be carried along.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` where P4Info and program differ.
    pub fn load_program(
        &mut self,
        config: ForwardingPipelineConfig,
        program: Arc<Program>,
    ) -> Result<(), Status> {
        self.control.load_program(&mut self.pipeline, config, program)
    }

    /// Processes one frame that came in on `port` at `now_ns`; appends the frames to send to `output`. Frames that leave by
    /// the [CPU port](super::CPU_PORT) of a program that has one go to the primary: [`poll_stream`](Self::poll_stream).
    #[inline]
    pub fn handle_frame(&mut self, now_ns: u64, port: u16, frame: &[u8], output: &mut Output) {
        let before = output.len();
        match &mut self.pipeline {
            Some(pipeline) => pipeline.process(now_ns, port, frame, output),
            None => self.frames_without_program += 1,
        }
        self.take_packets_in(before, output);
    }

    /// Forwards a frame whose buffer the switch may keep: see [`Pipeline::forward`].
    #[inline]
    pub fn forward_frame(&mut self, now_ns: u64, port: u16, frame: &mut Vec<u8>, output: &mut Output) {
        let before = output.len();
        match &mut self.pipeline {
            Some(pipeline) => pipeline.forward(now_ns, port, frame, output),
            None => self.frames_without_program += 1,
        }
        self.take_packets_in(before, output);
    }

    #[inline]
    fn take_packets_in(&mut self, before: usize, output: &mut Output) {
        if self.control.has_packet_in() {
            output.take_port_from(before, CPU_PORT, |frame| self.control.packet_in(frame));
        }
    }

    /// Takes a frame that has left by the CPU port in another thread's [`Pipe`]: it goes to the primary, or is lost and counted.
    pub fn handle_packet_in(&mut self, frame: &[u8]) {
        self.control.packet_in(frame);
    }

    /// Processes the packets that the primary has sent; appends what is sent to `output`. To be called after requests were handled: packets
    /// that wait are bounded, and those beyond are refused.
    pub fn handle_packets_out(&mut self, now_ns: u64, output: &mut Output) {
        while let Some(mut frame) = self.control.poll_packet_out() {
            self.forward_frame(now_ns, CPU_PORT, &mut frame, output);
        }
    }

    /// Packets for the controller that were lost: there was no primary, or no room for them on its way.
    pub fn packets_in_lost(&self) -> u64 {
        self.control.packets_in_lost()
    }

    /// Counts a packet for the primary that its stream had no room for.
    pub(super) fn lose_packet_in(&mut self) {
        self.control.lose_packet_in();
    }

    /// Answers a request. Afterwards, [`poll_stream`](Self::poll_stream) until it is empty.
    pub fn handle_request(&mut self, request: Request) -> Response {
        self.control.handle(&mut self.pipeline, request)
    }

    /// See [`ControlPlane::begin_write`].
    pub(super) fn begin_write(&self, request: v1::WriteRequest) -> Result<Write, Status> {
        self.control.begin_write(request)
    }

    /// See [`ControlPlane::go_on_writing`].
    pub(super) fn go_on_writing(
        &mut self,
        write: &mut Write,
        most: usize,
    ) -> Option<Result<v1::WriteResponse, Status>> {
        self.control.go_on_writing(&mut self.pipeline, write, most)
    }

    /// See [`ControlPlane::go_on_reading`].
    pub(super) fn go_on_reading(
        &mut self,
        reading: &mut Reading,
    ) -> (v1::ReadResponse, Option<Result<(), Status>>) {
        self.control.go_on_reading(&mut self.pipeline, reading)
    }

    /// See [`ControlPlane::set_prepared`].
    pub(super) fn set_prepared(
        &mut self,
        request: &v1::SetForwardingPipelineConfigRequest,
        prepared: Option<Prepared>,
    ) -> Result<Step, Status> {
        self.control.set_prepared(&mut self.pipeline, request, prepared)
    }

    /// See [`ControlPlane::go_on_carrying`].
    pub(super) fn go_on_carrying(&mut self, carry: Box<Carry>) -> Result<Step, Status> {
        self.control.go_on_carrying(&mut self.pipeline, carry)
    }

    /// Next message to a stream.
    pub fn poll_stream(&mut self) -> Option<(StreamId, StreamOutput)> {
        self.control.poll_stream()
    }

    /// The control plane.
    pub fn control(&self) -> &ControlPlane {
        &self.control
    }

    /// The pipeline; `None` before a program is loaded.
    pub fn pipeline(&self) -> Option<&Pipeline> {
        self.pipeline.as_ref()
    }

    /// The pipeline, to change it from this side.
    pub fn pipeline_mut(&mut self) -> Option<&mut Pipeline> {
        self.pipeline.as_mut()
    }

    /// [`Pipeline::lend`]; nothing where there is no program.
    pub fn lend(&mut self) -> Vec<Pipe> {
        self.pipeline.as_mut().map(Pipeline::lend).unwrap_or_default()
    }

    /// [`Pipeline::take_back`], before a request is handled.
    pub fn take_back(&mut self, pipes: Vec<Pipe>) {
        if let Some(pipeline) = &mut self.pipeline {
            pipeline.take_back(pipes);
        }
    }

    /// Frames dropped because there was no program.
    pub fn frames_without_program(&self) -> u64 {
        self.frames_without_program
    }
}
