//! A loader and a server that takes its time.

use std::time::Duration;

use fatbtree_memserver::grpc::proto::load_reply::What as Answer;
use fatbtree_memserver::grpc::proto::load_request::What as Word;
use fatbtree_memserver::grpc::proto::loader_server::{Loader, LoaderServer};
use fatbtree_memserver::grpc::{self, Content, load_all, proto};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

use crate::common::blocks::Info;

/// Messages of content, each as long as what a connection takes before it is read.
const MESSAGES: usize = 8;

/// A server whose storage takes a while to begin, as with a large region. It says so, and reads nothing meanwhile.
struct Slow;

#[tonic::async_trait]
impl Loader for Slow {
    type LoadStream = ReceiverStream<Result<proto::LoadReply, Status>>;

    async fn load(
        &self,
        request: Request<Streaming<proto::LoadRequest>>,
    ) -> Result<Response<Self::LoadStream>, Status> {
        let (replies, stream) = mpsc::channel(4);
        let mut requests = request.into_inner();
        tokio::spawn(async move {
            for _ in 0..2 {
                let sign = proto::LoadReply { what: Some(Answer::Building(proto::LoadBuilding {})) };
                let _ = replies.send(Ok(sign)).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let mut came = 0;
            while let Ok(Some(request)) = requests.message().await {
                came += usize::from(matches!(request.what, Some(Word::Content(_))));
                if came == MESSAGES {
                    let _ = replies.send(Err(Status::internal("all of it has come"))).await;
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

#[tokio::test]
async fn a_server_may_say_that_it_lives_before_all_is_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = tonic::transport::Server::builder().add_service(LoaderServer::new(Slow));
    tokio::spawn(serving.serve_with_incoming(TcpListenerStream::new(listener)));
    let client = grpc::Client::connect(&url).await.unwrap();
    let (send, messages) = mpsc::channel(MESSAGES);
    for _ in 0..MESSAGES {
        send.send((vec![0; 64 << 10], 1)).await.unwrap();
    }
    drop(send);
    let part = (client, Content { server: 0, announced: Vec::new(), messages });
    let failed = load_all::<Info>(vec![part], |_| {}).await.unwrap_err().to_string();
    assert!(failed.contains("all of it has come"), "{failed}");
}
