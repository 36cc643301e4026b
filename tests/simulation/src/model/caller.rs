//! A caller that goes on over whatever happens: it connects anew when its connection is lost.

use prost::Message;
use tonic::Code;

use super::client::{Client, Reply, Unusual};
use super::world::World;
use crate::dice::Dice;
use crate::process::Process;

/// The caller.
pub(super) struct Caller {
    who: &'static str,
    world: World,
    life: u64,
    client: Option<(Client, Process)>,
}

impl Caller {
    /// One without a connection yet.
    pub(super) fn new(who: &'static str, world: &World) -> Self {
        Self { who, world: world.clone(), life: 0, client: None }
    }

    /// Calls an RPC.
    ///
    /// # Errors
    /// There is no cloud.
    pub(super) async fn call(
        &mut self,
        method: &'static str,
        key: &str,
        request: &impl Message,
    ) -> Result<Reply, Code> {
        if self.client.as_ref().is_none_or(|(client, _)| client.is_broken()) {
            self.connect().await;
        }
        let Some((client, _)) = &self.client else { return Err(Code::Unavailable) };
        Ok(client.call(method, key, request, &Unusual::default()).await)
    }

    async fn connect(&mut self) {
        if let Some((_, process)) = self.client.take() {
            process.end.cancel();
            process.tasks.stop();
        }
        let World { fleet, record, trace, seed, timeout, .. } = &self.world;
        let process = Process::default();
        let dice = Dice::new(*seed, &format!("{} {}", self.who, self.life));
        self.life += 1;
        let notes = (record.clone(), trace.clone());
        let client = Client::connect(self.who, fleet, &process, *timeout, dice, notes).await;
        self.client = client.ok().map(|client| (client, process));
    }
}
