//! The control plane of one switch: requests in, responses out, no I/O.

use fatbtree_p4runtime::tonic::{Code, Status};
use fatbtree_p4runtime::v1::{
    self, ForwardingPipelineConfig, ReadResponse, StreamMessageRequest,
    get_forwarding_pipeline_config_request::ResponseType, set_forwarding_pipeline_config_request::Action,
    stream_message_request, stream_message_response,
};

use super::API_VERSION;
use super::arbitration::{Arbitration, StreamId, StreamOutput};
use super::config::{Carry, Loaded, Prepared};
use super::packet_io::Packets;
use super::read::{Reader, Reading};
use super::refusal::Refusal;
use super::write::Scratch;
use super::write_batch::Write;
use crate::Pipeline;

/// An RPC for a switch.
#[derive(Debug)]
pub enum Request {
    /// `Write`
    Write(v1::WriteRequest),
    /// `Read`
    Read(v1::ReadRequest),
    /// `SetForwardingPipelineConfig`
    SetPipeline(Box<v1::SetForwardingPipelineConfigRequest>),
    /// `GetForwardingPipelineConfig`
    GetPipeline(v1::GetForwardingPipelineConfigRequest),
    /// `Capabilities`
    Capabilities(v1::CapabilitiesRequest),
    /// Event on a `StreamChannel`. Messages of the switch to streams are polled separately, because they may go to
    /// other streams: [`ControlPlane::poll_stream`].
    Stream(StreamId, StreamEvent),
}

/// Message from a `StreamChannel`.
#[derive(Debug)]
pub enum StreamEvent {
    /// A message from the controller.
    Message(StreamMessageRequest),
    /// The controller is gone.
    Closed,
}

/// The answer to the [`Request`] of the same name.
#[derive(Debug)]
pub enum Response {
    /// `Write`
    Write(Result<v1::WriteResponse, Status>),
    /// `Read`
    Read(ReadOutcome),
    /// `SetForwardingPipelineConfig`
    SetPipeline(Result<v1::SetForwardingPipelineConfigResponse, Status>),
    /// `GetForwardingPipelineConfig`
    GetPipeline(Result<Box<v1::GetForwardingPipelineConfigResponse>, Status>),
    /// `Capabilities`
    Capabilities(Result<v1::CapabilitiesResponse, Status>),
    /// `StreamChannel`: see [`ControlPlane::poll_stream`].
    Stream,
}

/// Result of a read, and its end: a batch of reads can fail in part.
#[derive(Debug)]
pub struct ReadOutcome {
    /// The result, in parts.
    pub parts: Vec<ReadResponse>,
    /// Result of the read as a whole.
    pub end: Result<(), Status>,
}

/// A switch's control plane: its primary, its program, and the meaning of the program's ids.
///
/// The pipeline is handed in with every request, so that the owner can run packets through it in between; it is `None`
/// until a program is committed.
#[derive(Debug)]
pub struct ControlPlane {
    device_id: u64,
    /// Pipes of every pipeline.
    pipes: usize,
    arbitration: Arbitration,
    running: Option<Loaded>,
    /// Program and state after VERIFY_AND_SAVE: reads and writes go there, until COMMIT puts them active.
    saved: Option<Prepared>,
    /// Number of the program that reads and writes are about.
    generation: u64,
    packets: Packets,
    scratch: Scratch,
}

impl ControlPlane {
    /// The control plane of a switch without a program. `device_id`, which is not 0, is the switch's id for controllers.
    pub fn new(device_id: u64) -> Self {
        Self::with_pipes(device_id, 1)
    }

    /// Control plane with pipelines of several [pipes](crate::Pipe). No pipe may be lent when a request is handled.
    pub fn with_pipes(device_id: u64, pipes: usize) -> Self {
        let arbitration = Arbitration::new(device_id);
        Self {
            device_id,
            pipes,
            arbitration,
            running: None,
            saved: None,
            generation: 0,
            packets: Packets::default(),
            scratch: Scratch::default(),
        }
    }

    /// The id controllers call this switch by.
    pub fn device_id(&self) -> u64 {
        self.device_id
    }

    /// Pipes of a pipeline.
    pub(super) fn pipes(&self) -> usize {
        self.pipes
    }

    /// The program active.
    pub fn config(&self) -> Option<&ForwardingPipelineConfig> {
        self.running.as_ref().map(|loaded| &loaded.config)
    }

    /// Loads a program from this side, without a controller: as `VERIFY_AND_COMMIT` does it.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` with what this switch cannot run, or where P4Info and program differ.
    pub fn load(
        &mut self,
        pipeline: &mut Option<Pipeline>,
        config: ForwardingPipelineConfig,
    ) -> Result<(), Status> {
        self.commit(pipeline, Prepared::new(config, self.pipes).map_err(Status::invalid_argument)?);
        Ok(())
    }

    /// Loads a program that is compiled already: its text need not be carried along.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` where P4Info and program differ.
    pub fn load_program(
        &mut self,
        pipeline: &mut Option<Pipeline>,
        config: ForwardingPipelineConfig,
        program: std::sync::Arc<crate::Program>,
    ) -> Result<(), Status> {
        let loaded = Loaded::with_program(config, program).map_err(Status::invalid_argument)?;
        self.commit(pipeline, Prepared::of(loaded, self.pipes).map_err(Status::invalid_argument)?);
        Ok(())
    }

    /// Answers a request.
    pub fn handle(&mut self, pipeline: &mut Option<Pipeline>, request: Request) -> Response {
        match request {
            Request::Write(request) => Response::Write(self.write(pipeline, request)),
            Request::Read(request) => Response::Read(self.read(pipeline, request)),
            Request::SetPipeline(request) => Response::SetPipeline(
                self.set_pipeline(pipeline, *request).map(|()| v1::SetForwardingPipelineConfigResponse {}),
            ),
            Request::GetPipeline(request) => Response::GetPipeline(self.get_pipeline(&request).map(Box::new)),
            Request::Capabilities(request) => Response::Capabilities(self.capabilities(&request)),
            Request::Stream(stream, event) => {
                self.stream(stream, event);
                Response::Stream
            }
        }
    }

    /// Next message to a stream.
    pub fn poll_stream(&mut self) -> Option<(StreamId, StreamOutput)> {
        self.arbitration.poll().or_else(|| self.poll_packet_in())
    }

    fn poll_packet_in(&mut self) -> Option<(StreamId, StreamOutput)> {
        loop {
            let packet = self.packets.pop_in()?;
            match self.arbitration.primary() {
                Some(primary) => {
                    let update = Some(stream_message_response::Update::Packet(packet));
                    let message = v1::StreamMessageResponse { update };
                    return Some((primary, StreamOutput::Message(message)));
                }
                None => self.packets.lose(1), // it has left meanwhile
            }
        }
    }

    /// Whether frames that leave by the [CPU port](super::CPU_PORT) go to the controller: the program active says so.
    pub(super) fn has_packet_in(&self) -> bool {
        self.running.as_ref().is_some_and(|loaded| loaded.mapping.headers.has_packet_in())
    }

    /// Takes a frame that has left by the CPU port.
    pub(super) fn packet_in(&mut self, frame: &[u8]) {
        let headers = self.running.as_ref().map(|loaded| &loaded.mapping.headers);
        let packet = headers.filter(|_| self.arbitration.primary().is_some());
        self.packets.push_in(packet.and_then(|headers| headers.packet(frame)));
    }

    /// The next frame from the controller.
    pub(super) fn poll_packet_out(&mut self) -> Option<Vec<u8>> {
        self.packets.pop_out()
    }

    /// Counts a packet for the primary that its stream had no room for.
    pub(super) fn lose_packet_in(&mut self) {
        self.packets.lose(1);
    }

    /// Packets for the controller that were lost.
    pub(super) fn packets_in_lost(&self) -> u64 {
        self.packets.lost()
    }

    /// Takes a packet from the primary ("PacketOut").
    fn packet_out(&mut self, packet: &v1::PacketOut) -> Result<(), Refusal> {
        let no_port = "this switch has no CPU port: its program declares no `packet_out` controller header";
        let loaded = self.running.as_ref().ok_or_else(|| {
            Refusal::new(
                Code::FailedPrecondition,
                "this switch runs no program yet, and so it has no CPU port",
            )
        })?;
        let frame = loaded.mapping.headers.frame(packet).ok_or_else(|| Refusal::unimplemented(no_port))??;
        self.packets.push_out(frame)
    }

    fn check_device(&self, device_id: u64, role: &str, role_id: u64) -> Result<(), Status> {
        if device_id != self.device_id {
            let expected = self.device_id;
            return Err(Status::not_found(format!("expected device {expected}, found device {device_id}")));
        }
        if !role.is_empty() || role_id != 0 {
            return Err(Status::not_found(format!(
                "expected the default role (role unset), found role `{role}` (id {role_id})"
            )));
        }
        Ok(())
    }

    /// The program and state that reads and writes are about.
    fn target<'a>(
        running: &'a mut Option<Loaded>,
        saved: &'a mut Option<Prepared>,
        pipeline: &'a mut Option<Pipeline>,
    ) -> Result<(&'a mut Loaded, &'a mut Pipeline), Status> {
        match (saved, running, pipeline) {
            (Some(Prepared { loaded, pipeline }), _, _) => Ok((loaded, pipeline)),
            (None, Some(loaded), Some(pipeline)) => Ok((loaded, pipeline)),
            _ => Err(Status::failed_precondition(
                "this switch runs no program yet: send a SetForwardingPipelineConfig first",
            )),
        }
    }

    fn write(
        &mut self,
        pipeline: &mut Option<Pipeline>,
        request: v1::WriteRequest,
    ) -> Result<v1::WriteResponse, Status> {
        let mut write = self.begin_write(request)?;
        self.go_on_writing(pipeline, &mut write, usize::MAX).expect("no bound stops it before its end")
    }

    /// Begins a write that is done part by part, with packets in between: see [`go_on_writing`](Self::go_on_writing). Nothing is changed yet.
    ///
    /// # Errors
    /// When the request as a whole is refused.
    pub(super) fn begin_write(&self, request: v1::WriteRequest) -> Result<Write, Status> {
        #[allow(deprecated, reason = "old clients name roles by number")]
        self.check_device(request.device_id, &request.role, request.role_id)?;
        self.arbitration.check_primary(request.election_id.as_ref())?;
        Write::new(request)
    }

    /// Applies up to `most` further updates; gives the answer when the write has ended.
    pub(super) fn go_on_writing(
        &mut self,
        pipeline: &mut Option<Pipeline>,
        write: &mut Write,
        most: usize,
    ) -> Option<Result<v1::WriteResponse, Status>> {
        match Self::target(&mut self.running, &mut self.saved, pipeline) {
            Ok((loaded, pipeline)) => write.go_on(loaded, pipeline, &mut self.scratch, most),
            Err(status) => Some(Err(status)),
        }
    }

    fn read(&mut self, pipeline: &mut Option<Pipeline>, request: v1::ReadRequest) -> ReadOutcome {
        let mut reading = Reading::new(request);
        let mut parts = Vec::new();
        loop {
            let (part, end) = self.go_on_reading(pipeline, &mut reading);
            parts.extend(Some(part).filter(|part| !part.entities.is_empty()));
            if let Some(end) = end {
                return ReadOutcome { parts, end };
            }
        }
    }

    /// Reads the next part; also returns the result of the read if that was the last. Entries are as they are now. Of entries that come, go
    /// or
    /// change between two parts, either state may be told.
    pub(super) fn go_on_reading(
        &mut self,
        pipeline: &mut Option<Pipeline>,
        reading: &mut Reading,
    ) -> (ReadResponse, Option<Result<(), Status>>) {
        let refused = |status| (ReadResponse::default(), Some(Err(status)));
        if reading.generation.is_none()
            && let Err(status) = self.check_device(reading.request.device_id, &reading.request.role, 0)
        {
            return refused(status);
        }
        if *reading.generation.get_or_insert(self.generation) != self.generation {
            return refused(Status::aborted(
                "the switch was given another program while this was read: read again",
            ));
        }
        match Self::target(&mut self.running, &mut self.saved, pipeline) {
            Ok((loaded, pipeline)) => reading.go_on(&Reader { loaded, pipeline }),
            Err(status) => refused(status),
        }
    }

    /// Checks that a request to set the pipeline may be answered, without looking at its config.
    pub(super) fn check_set_pipeline(
        &self,
        request: &v1::SetForwardingPipelineConfigRequest,
    ) -> Result<(), Status> {
        #[allow(deprecated, reason = "old clients name roles by number")]
        self.check_device(request.device_id, &request.role, request.role_id)?;
        self.arbitration.check_primary(request.election_id.as_ref())
    }

    fn set_pipeline(
        &mut self,
        pipeline: &mut Option<Pipeline>,
        mut request: v1::SetForwardingPipelineConfigRequest,
    ) -> Result<(), Status> {
        self.check_set_pipeline(&request)?;
        let prepared = prepare(&mut request, self.pipes)?;
        let mut carry = match self.set_prepared(pipeline, &request, prepared)? {
            Step::Done(_) => return Ok(()),
            Step::Carry(carry) => carry,
        };
        loop {
            match self.go_on_carrying(pipeline, carry)? {
                Step::Done(_) => return Ok(()),
                Step::Carry(rest) => carry = rest,
            }
        }
    }

    /// Carries out a request with the program that was [prepared](prepare) for it. That takes no time, unless state is to be carried over.
    pub(super) fn set_prepared(
        &mut self,
        pipeline: &mut Option<Pipeline>,
        request: &v1::SetForwardingPipelineConfigRequest,
        prepared: Option<Prepared>,
    ) -> Result<Step, Status> {
        self.check_set_pipeline(request)?;
        let action = Action::try_from(request.action).unwrap_or(Action::Unspecified);
        match (action, prepared) {
            (Action::VerifyAndSave, Some(prepared)) => {
                self.generation += 1;
                Ok(Step::Done(self.saved.replace(prepared).into_iter().collect()))
            }
            (Action::VerifyAndCommit, Some(prepared)) => Ok(Step::Done(self.commit(pipeline, prepared))),
            (Action::ReconcileAndCommit, Some(prepared)) => Ok(self.reconcile(pipeline, prepared)),
            (Action::Commit, _) => {
                let saved = self.saved.take().ok_or_else(|| {
                    Status::not_found("no config is saved: send it with VERIFY_AND_SAVE before COMMIT")
                })?;
                Ok(Step::Done(self.commit(pipeline, saved)))
            }
            (_, prepared) => Ok(Step::Done(prepared.into_iter().collect())), // verified, or nothing asked for
        }
    }

    fn reconcile(&mut self, pipeline: &mut Option<Pipeline>, mut prepared: Prepared) -> Step {
        match &mut self.running {
            Some(old) if prepared.loaded.is_the_same(old) => {
                // The state stays where it is.
                prepared.loaded.take_default_cookies(old);
                std::mem::swap(old, &mut prepared.loaded);
                self.generation += 1;
                Step::Done([Some(prepared), self.saved.take()].into_iter().flatten().collect())
            }
            Some(_) => Step::Carry(Box::new(Carry::new(prepared, self.generation))),
            None => Step::Done(self.commit(pipeline, prepared)),
        }
    }

    /// Carries the next part of the state over to another program, and puts that active after the last.
    ///
    /// # Errors
    /// When the new program cannot hold it: the old one stays active.
    pub(super) fn go_on_carrying(
        &mut self,
        pipeline: &mut Option<Pipeline>,
        mut carry: Box<Carry>,
    ) -> Result<Step, Status> {
        let (Some(old), Some(state)) = (&self.running, &*pipeline) else {
            return Ok(Step::Done(self.commit(pipeline, carry.into_prepared())));
        };
        if carry.generation != self.generation {
            return Err(Status::aborted("the switch was given another program meanwhile: send yours again"));
        }
        match carry.go_on(old, state).map_err(Status::invalid_argument)? {
            true => Ok(Step::Done(self.commit(pipeline, carry.into_prepared()))),
            false => Ok(Step::Carry(carry)),
        }
    }

    /// Puts a program active; returns what was there before.
    fn commit(&mut self, pipeline: &mut Option<Pipeline>, prepared: Prepared) -> Vec<Prepared> {
        let before = (self.running.replace(prepared.loaded), pipeline.replace(prepared.pipeline));
        let before = match before {
            (Some(loaded), Some(pipeline)) => Some(Prepared { loaded, pipeline }),
            _ => None,
        };
        self.generation += 1;
        self.packets.clear();
        before.into_iter().chain(self.saved.take()).collect()
    }

    fn get_pipeline(
        &self,
        request: &v1::GetForwardingPipelineConfigRequest,
    ) -> Result<v1::GetForwardingPipelineConfigResponse, Status> {
        self.check_device(request.device_id, "", 0)?;
        let parts = ResponseType::try_from(request.response_type).map_err(|_| {
            Status::invalid_argument(format!(
                "expected a response type of 0 to 3, found {}",
                request.response_type
            ))
        })?;
        // What was saved last: reads and writes are about that one, too.
        let loaded = self.saved.as_ref().map(|saved| &saved.loaded).or(self.running.as_ref());
        let config = loaded.map(|loaded| {
            let config = &loaded.config;
            let with_info = matches!(parts, ResponseType::All | ResponseType::P4infoAndCookie);
            let with_program = matches!(parts, ResponseType::All | ResponseType::DeviceConfigAndCookie);
            ForwardingPipelineConfig {
                p4info: config.p4info.clone().filter(|_| with_info),
                p4_device_config: if with_program { config.p4_device_config.clone() } else { Vec::new() },
                cookie: config.cookie,
            }
        });
        Ok(v1::GetForwardingPipelineConfigResponse { config })
    }

    fn capabilities(&self, request: &v1::CapabilitiesRequest) -> Result<v1::CapabilitiesResponse, Status> {
        if request.device_id != 0 {
            self.check_device(request.device_id, "", 0)?;
        }
        Ok(v1::CapabilitiesResponse { p4runtime_api_version: API_VERSION.to_owned(), experimental: None })
    }

    fn stream(&mut self, stream: StreamId, event: StreamEvent) {
        use stream_message_request::Update;
        let message = match event {
            StreamEvent::Closed => return self.arbitration.closed(stream),
            StreamEvent::Message(message) => message,
        };
        use v1::stream_error::Details;
        let details = match message.update {
            Some(Update::Arbitration(bid)) => return self.arbitration.bid(stream, &bid),
            Some(Update::Packet(packet)) if self.arbitration.is_primary(stream) => {
                match self.packet_out(&packet) {
                    Ok(()) => return,
                    Err(refusal) => {
                        let details = Details::PacketOut(v1::PacketOutError { packet_out: Some(packet) });
                        return self.refuse(stream, refusal, details);
                    }
                }
            }
            Some(Update::Packet(packet)) => {
                Details::PacketOut(v1::PacketOutError { packet_out: Some(packet) })
            }
            Some(Update::DigestAck(ack)) => {
                Details::DigestListAck(v1::DigestListAckError { digest_list_ack: Some(ack) })
            }
            Some(Update::Other(other)) => Details::Other(v1::StreamOtherError { other: Some(other) }),
            None => Details::Other(v1::StreamOtherError::default()),
        };
        let refusal = match self.arbitration.is_primary(stream) {
            true => Refusal::unimplemented("this switch takes arbitration messages and packets only"),
            false => Refusal::new(Code::PermissionDenied, "only the primary controller may send this"),
        };
        self.refuse(stream, refusal, details);
    }

    /// Tells a stream that one of its messages was refused.
    fn refuse(&mut self, stream: StreamId, refusal: Refusal, details: v1::stream_error::Details) {
        let error = v1::StreamError {
            canonical_code: refusal.code.into(),
            message: refusal.message,
            details: Some(details),
            ..v1::StreamError::default()
        };
        let update = Some(stream_message_response::Update::Error(error));
        self.arbitration.push(stream, StreamOutput::Message(v1::StreamMessageResponse { update }));
    }
}

/// Remaining work when a pipeline is set.
pub(super) enum Step {
    /// No work is left. Holds the programs that are not needed any more, because freeing their memory takes long.
    Done(Vec<Prepared>),
    /// State is to be carried over.
    Carry(Box<Carry>),
}

/// Prepares the program that a request to set the pipeline needs, from its config. That takes long, and needs no switch.
pub(super) fn prepare(
    request: &mut v1::SetForwardingPipelineConfigRequest,
    pipes: usize,
) -> Result<Option<Prepared>, Status> {
    match (Action::try_from(request.action), request.config.take()) {
        (Ok(Action::Unspecified) | Err(_), _) => Err(Status::invalid_argument(format!(
            "expected an action of VERIFY (1) to RECONCILE_AND_COMMIT (5), found {}",
            request.action
        ))),
        (Ok(Action::Commit), None) => Ok(None),
        (Ok(Action::Commit), Some(_)) => {
            Err(Status::invalid_argument("expected no config with COMMIT: it was saved before"))
        }
        (Ok(_), None) => Err(Status::invalid_argument("expected a config for this action, found none")),
        (Ok(_), Some(config)) => Prepared::new(config, pipes).map(Some).map_err(Status::invalid_argument),
    }
}
