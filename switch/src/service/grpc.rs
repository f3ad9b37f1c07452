//! The gRPC server: decodes requests on tokio's threads and forwards them to the owner of the switch.

use std::future::Future;
use std::pin::Pin;

use fatbtree_p4runtime::client::{KEEP_ALIVE, MAX_HEADERS, MAX_MESSAGE};
use fatbtree_p4runtime::tonic::service::interceptor::InterceptedService;
use fatbtree_p4runtime::tonic::transport;
use fatbtree_p4runtime::tonic::{self, Status, Streaming};
use fatbtree_p4runtime::v1::p4_runtime_server::{P4Runtime, P4RuntimeServer};
use fatbtree_p4runtime::v1::{self, StreamMessageRequest, StreamMessageResponse};
use fatbtree_trust::{CONTROLLER, Connections, Door};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};

use super::arbitration::StreamId;
use super::control::{Request, Response};
use super::mailbox::{Mailbox, OUTBOUND, Outbound};

/// Largest request, bytes: a program, or some hundred thousand updates.
const MAX_REQUEST: usize = 64 << 20;

/// Requests of a connection that are received and worked on at one time; others wait.
const MAX_REQUESTS: usize = 8;

/// HTTP/2 streams of a connection, sessions and answers that are being read included.
const MAX_STREAMS: u32 = 64;

/// TCP connections at once: controllers and observers. Each may have a session.
const CONNECTIONS: Connections = Connections { all: 128, per_host: 64 };

/// Serves P4Runtime at a door until `shutdown` completes; where there are certificates, to the controller only.
///
/// # Errors
/// Tonic's error when the listener or a connection fails for good.
pub async fn serve(
    door: impl Into<Door<TcpListener>>,
    mailbox: Mailbox,
    shutdown: impl Future<Output = ()>,
) -> Result<(), transport::Error> {
    let door = door.into();
    let server = door.server()?;
    let (connections, door) = door.open(CONNECTIONS);
    let service = P4RuntimeServer::new(Service { mailbox })
        .max_decoding_message_size(MAX_REQUEST)
        .max_encoding_message_size(MAX_MESSAGE);
    let service = InterceptedService::new(service, move |request: tonic::Request<()>| {
        door.admit(&request, &[CONTROLLER]).map(|()| request)
    });
    server
        // A controller that is frozen, or whose machine is gone, is primary no longer.
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        // Batches of updates are large: do not let them wait for window updates.
        .initial_stream_window_size(8 << 20)
        .initial_connection_window_size(32 << 20)
        .max_concurrent_streams(MAX_STREAMS)
        .concurrency_limit_per_connection(MAX_REQUESTS)
        .http2_max_header_list_size(MAX_HEADERS)
        .add_service(service)
        .serve_with_incoming_shutdown(connections, shutdown)
        .await
}

/// The service: one device behind one mailbox.
struct Service {
    mailbox: Mailbox,
}

type BoxStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The inbox answers every request with the response of the same name.
fn mismatch() -> Status {
    Status::internal("the switch answered another request than the one it was asked")
}

#[tonic::async_trait]
impl P4Runtime for Service {
    type ReadStream = BoxStream<v1::ReadResponse>;
    type StreamChannelStream = BoxStream<StreamMessageResponse>;

    async fn write(
        &self,
        request: tonic::Request<v1::WriteRequest>,
    ) -> Result<tonic::Response<v1::WriteResponse>, Status> {
        match self.mailbox.call(Request::Write(request.into_inner())).await? {
            Response::Write(result) => result.map(tonic::Response::new),
            _ => Err(mismatch()),
        }
    }

    async fn read(
        &self,
        request: tonic::Request<v1::ReadRequest>,
    ) -> Result<tonic::Response<Self::ReadStream>, Status> {
        Ok(tonic::Response::new(Box::pin(ReceiverStream::new(self.mailbox.read(request.into_inner())))))
    }

    async fn set_forwarding_pipeline_config(
        &self,
        request: tonic::Request<v1::SetForwardingPipelineConfigRequest>,
    ) -> Result<tonic::Response<v1::SetForwardingPipelineConfigResponse>, Status> {
        match self.mailbox.call(Request::SetPipeline(Box::new(request.into_inner()))).await? {
            Response::SetPipeline(result) => result.map(tonic::Response::new),
            _ => Err(mismatch()),
        }
    }

    async fn get_forwarding_pipeline_config(
        &self,
        request: tonic::Request<v1::GetForwardingPipelineConfigRequest>,
    ) -> Result<tonic::Response<v1::GetForwardingPipelineConfigResponse>, Status> {
        match self.mailbox.call(Request::GetPipeline(request.into_inner())).await? {
            Response::GetPipeline(result) => result.map(|config| tonic::Response::new(*config)),
            _ => Err(mismatch()),
        }
    }

    async fn stream_channel(
        &self,
        request: tonic::Request<Streaming<StreamMessageRequest>>,
    ) -> Result<tonic::Response<Self::StreamChannelStream>, Status> {
        let inbound = request.into_inner();
        let (outbound, messages) = mpsc::channel(OUTBOUND);
        let mailbox = self.mailbox.clone();
        let (stream, opened) = mailbox.open_stream(outbound.clone()).await?;
        tokio::spawn(async move {
            // One that is refused has been told why.
            if opened.await.is_ok() {
                pass_on(stream, inbound, &outbound, &mailbox).await;
            }
            // Fails only when the switch is gone, and then there is no receiver.
            let _ = mailbox.close_stream(stream).await;
        });
        Ok(tonic::Response::new(Box::pin(ReceiverStream::new(messages))))
    }

    async fn capabilities(
        &self,
        request: tonic::Request<v1::CapabilitiesRequest>,
    ) -> Result<tonic::Response<v1::CapabilitiesResponse>, Status> {
        match self.mailbox.call(Request::Capabilities(request.into_inner())).await? {
            Response::Capabilities(result) => result.map(tonic::Response::new),
            _ => Err(mismatch()),
        }
    }
}

/// Passes a stream's messages on until it ends, from either side.
async fn pass_on(
    stream: StreamId,
    mut inbound: Streaming<StreamMessageRequest>,
    outbound: &Outbound,
    mailbox: &Mailbox,
) {
    loop {
        let message = tokio::select! {
            message = inbound.next() => message,
            // The switch has ended the stream, or the connection is gone.
            () = outbound.closed() => return,
        };
        let Some(Ok(message)) = message else { return };
        if mailbox.stream_message(stream, message).await.is_err() {
            return;
        }
    }
}
