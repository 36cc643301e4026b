//! Applies the CSIDriver objects as `csidriver` decides.

use k8s_openapi::api::storage::v1::CSIDriver;
use kube::Api;
use kube::api::{Patch, PatchParams};
use proto::names::DriverName;
use serde_json::json;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::kubernetes::csidriver;
use crate::kubernetes::csidriver::Decision;
use crate::kubernetes::keeper::{Away, Keeper, applied};
use crate::kubernetes::managed_fields::MANAGER;

impl Keeper {
    /// Brings the CSIDriver objects of all drivers up to date.
    ///
    /// # Errors
    /// The API server is away. Other failures are tried again later.
    pub(super) async fn apply_csidrivers(&mut self) -> Result<(), Away> {
        let drivers: Vec<_> = self.facts.policies.keys().cloned().collect();
        for driver in drivers {
            self.update_csidriver(&driver).await?;
        }
        Ok(())
    }

    async fn update_csidriver(&mut self, driver: &DriverName) -> Result<(), Away> {
        let known = self.facts.store.read(|state| {
            let required = state.driver(driver).map(|of| csidriver::attach_required(of.info()));
            required.and_then(Result::ok)
        });
        // Sidecars and kubelets would act on a guess.
        let Some(attach_required) = known else { return Ok(()) };
        let Some(settings) = self.facts.csidrivers.get(driver) else { return Ok(()) };
        let wanted = csidriver::wanted(driver, attach_required, settings);
        let live = self.mirror.objects().drivers.items().get(driver.as_str()).cloned();
        match csidriver::decide(&wanted, live.as_ref()) {
            Decision::Keep => {
                self.published.set(driver, "ours");
            }
            Decision::Leave(who) => {
                if self.published.set(driver, &format!("left to {who}")) {
                    info!(
                        %driver,
                        who,
                        "the CSIDriver object is somebody else's, and is left alone"
                    );
                }
            }
            Decision::Remake(field) => {
                if self.published.set(driver, &format!("{field} differs; delete it")) {
                    warn!(
                        %driver,
                        field,
                        "the CSIDriver object says something that cannot be changed; when no \
                         volume of the driver is in use, `kubectl delete csidriver {driver}`, \
                         and it is made again"
                    );
                }
            }
            Decision::Apply => return self.apply_csidriver(driver, wanted).await,
        }
        Ok(())
    }

    async fn apply_csidriver(
        &mut self,
        driver: &DriverName,
        wanted: CSIDriver,
    ) -> Result<(), Away> {
        let about = format!("CSIDriver {driver}");
        if !self.retries.may(&about, Instant::now()) {
            return Ok(());
        }
        let api: Api<CSIDriver> = Api::all(self.server.client.clone());
        let metadata = json!({ "name": driver.as_str(), "labels": wanted.metadata.labels });
        let object = applied::<CSIDriver>(metadata, serde_json::to_value(&wanted.spec).ok());
        let patch = Patch::Apply(object);
        let params = PatchParams::apply(MANAGER);
        let applying = api.patch(driver.as_str(), &params, &patch);
        let answered = self.server.ask("CSIDriver apply", applying).await;
        if let Some(live) = self.settled(&about, answered)? {
            info!(%driver, "applied the CSIDriver object");
            self.published.set(driver, "ours");
            self.mirror.objects().drivers.set(driver.to_string(), Some(live));
        }
        Ok(())
    }
}
