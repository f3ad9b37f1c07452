//! Tells the controller what the client is asked for, and hears which connections are registered.

use std::net::Ipv4Addr;
use std::time::Duration;

use fatbtree_controller::grpc::{Client, ClientError, ClientReport, Controllers};
use tokio::sync::mpsc;

use super::link::{Answer, Out};

/// Pause between two attempts to reach a controller.
const PAUSE: Duration = Duration::from_millis(200);
/// Pause where the controller is of another release.
const PAUSE_OF_ANOTHER_RELEASE: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(2);

/// Reports to the controllers until the client ends.
pub(super) async fn serve<S>(
    controllers: Controllers,
    address: Ipv4Addr,
    mut reports: mpsc::Receiver<ClientReport>,
    out: Out<S>,
) {
    for controller in controllers.in_turn() {
        if reports.is_closed() {
            return;
        }
        let told = async {
            let mut client = Client::connect(controller, PATIENCE).await?;
            let registered = |(partition, queue_pair)| out.tell(Answer::Registered { partition, queue_pair });
            client.report(address, &mut reports, registered).await
        };
        let pause = match told.await {
            // It may be updated while the client runs.
            Err(error @ ClientError::OtherHeader { .. }) => {
                tracing::warn!(%error, "index reads are not used");
                PAUSE_OF_ANOTHER_RELEASE
            }
            Err(error) => {
                tracing::info!(%error, "not reported");
                PAUSE
            }
            Ok(()) => PAUSE,
        };
        tokio::time::sleep(pause).await;
    }
}
